"""A next-token distribution on the host, and the arithmetic that exactness rests on, in float64.

Knows nothing about logits processors, drafters or requests. Source: the report's "Mathematical reconstruction".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class NotADistribution(ValueError):
    """A row has a NaN or +inf, or no valid token; ``row`` is its index where the raiser knows it."""

    row: int | None = None


class Residual(NamedTuple):
    """The correction law [q - p]+ before normalisation, on q's ids; ``agree``: p and q are equal to rounding."""

    weights: Floats
    agree: bool


class Distribution:
    """Probabilities over the support of a processed row.

    ``ids``: ``[n]`` int64, ascending; ``log_weights``: ``[n]`` float64, finite, not normalised; ``vocab_size``: width of
    the row that it came from. Ids that are not in ``ids`` have probability 0.
    """

    __slots__ = ("_probs", "ids", "log_weights", "vocab_size")

    def __init__(self, ids: Ids, log_weights: Floats, vocab_size: int) -> None:
        self.ids, self.log_weights, self.vocab_size = ids, log_weights, vocab_size
        self._probs: Floats | None = None

    @classmethod
    def from_probs(cls, probs: npt.ArrayLike) -> Distribution:
        """Make a distribution from dense probabilities ``[vocab]``, kept as they are up to normalisation."""
        dense = np.asarray(probs, dtype=np.float64)
        ids = np.flatnonzero(dense)
        made = cls(ids, np.log(dense[ids]), len(dense))
        made._probs = dense[ids] / dense[ids].sum()
        return made

    @property
    def probs(self) -> Floats:
        """Probabilities of ``ids``, ``[n]`` float64, summing to 1; made once, so that every reader sees one vector."""
        if self._probs is None:
            with np.errstate(under="ignore"):  # who lets numpy raise for that means arithmetic of his own
                weights = np.exp(self.log_weights - self.log_weights.max())
                self._probs = weights / weights.sum()
        return self._probs

    def prob(self, token: int) -> float:
        """Return the probability of one id."""
        index = int(np.searchsorted(self.ids, token))
        return float(self.probs[index]) if index < len(self.ids) and self.ids[index] == token else 0.0

    def probs_at(self, ids: Ids) -> Floats:
        """Return the probabilities of any ids, ``[len(ids)]`` float64."""
        if ids is self.ids:
            return self.probs
        index = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return np.where(self.ids[index] == ids, self.probs[index], 0.0)

    def dense(self) -> Floats:
        """Return all probabilities, ``[vocab]`` float64."""
        out = np.zeros(self.vocab_size)
        out[self.ids] = self.probs
        return out

    def entropy(self) -> float:
        """Return the entropy, in nats; 0 where one id is left."""
        log_total = self.log_weights.max() - np.log(self.probs.max())
        return max(0.0, float(log_total - self.probs @ self.log_weights))

    def argmax(self) -> tuple[int, float]:
        """Return the likeliest id (the lowest of equals) and the margin of its log weight over the next."""
        return _top(self.ids, self.log_weights)

    def sample(self, uniform: float) -> int:
        """Return the id at a uniform in [0, 1) of the cumulative distribution; never one of probability 0."""
        return _inverse_cdf(self.ids, self.probs, uniform)

    def perturbed_argmax(self, noise: Floats) -> tuple[int, float]:
        """Return the Gumbel-max id, argmax of log weight + noise, and its margin; ``noise`` is ``[n]``, of ``ids``."""
        return _top(self.ids, self.log_weights + noise)

    def residual(self, draft: Distribution | int) -> Residual:
        """Return [q - p]+ for this target law q and a draft law p (a distribution, or the id of a point mass).

        Its mass is not above V * 2**-52 only if p and q agree to rounding, or if the two are not both distributions;
        ``agree`` tells the two apart.
        """
        if isinstance(draft, Distribution):
            draft_probs = draft.probs_at(self.ids)
            draft_mass = float(draft.probs.sum())
        else:
            draft_probs = (self.ids == draft).astype(np.float64)
            draft_mass = 1.0
        difference = self.probs - draft_probs
        weights = np.maximum(difference, 0.0)
        unmatched = -float(np.minimum(difference, 0.0).sum()) + draft_mass - float(draft_probs.sum())
        floor = self.vocab_size * 2.0**-52
        return Residual(weights, bool(weights.sum() <= floor and abs(unmatched) <= 2 * floor))


def sample_weights(ids: Ids, weights: Floats, uniform: float) -> int:
    """Return the id at a uniform in [0, 1) of unnormalised weights; never one of weight 0."""
    return _inverse_cdf(ids, weights, uniform)


def _top(ids: Ids, scores: Floats) -> tuple[int, float]:
    best = int(scores.argmax())
    rest = max(scores[:best].max(initial=-np.inf), scores[best + 1 :].max(initial=-np.inf))
    return int(ids[best]), float(scores[best] - rest)


def _inverse_cdf(ids: Ids, weights: Floats, uniform: float) -> int:
    cumulative = np.cumsum(weights)
    # 'right' finds the first bucket that ends strictly above the point, so that an empty one is never taken.
    index = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    if index == len(cumulative):  # the product rounded up to the total
        index = int(np.searchsorted(cumulative, cumulative[-1], side="left"))
    return int(ids[index])
