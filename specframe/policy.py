"""The one function that makes a row's distribution from its logits and its prefix, under a sampling policy.

Baseline and verification call the same pipeline; drafts are processed by it too. Order: penalties, bias and suppression,
the caller's processors, grammar, temperature, top-k, top-p, min-p, typical. What transformers has as a ``LogitsProcessor``
before the grammar is used as it is (``processors.py``); from the grammar on, rows are on the host in float64, so that every
device gives one result.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from specframe.distribution import Distribution, Floats, Ids, NotADistribution
from specframe.errors import GrammarError, TargetError, described
from specframe.prefix import Prefix
from specframe.processors import build_processors
from specframe.sampling import SamplingPolicy
from specframe.verify import Choice
from specframe.warpers import build_warpers


class Pipeline:
    """A request's processing, built once: from a row of logits and a prefix to a greedy choice or a distribution."""

    def __init__(
        self,
        policy: SamplingPolicy,
        *,
        vocab_size: int,
        stop_ids: frozenset[int],
        num_prompt: int,
        device: str = "cpu",
    ) -> None:
        self.vocab_size = vocab_size
        self.processors = build_processors(policy, stop_ids=stop_ids, num_prompt=num_prompt, device=device)
        self.warpers = build_warpers(policy)
        self._all_ids = np.arange(vocab_size)

    def is_plain(self, prefix: Prefix) -> bool:
        """Whether a greedy choice is the argmax of the raw logits."""
        return not self.processors and prefix.grammar is None

    def scores(self, logits: torch.Tensor, prefix: Prefix, length: int) -> torch.Tensor:
        """Return a row after processors and grammar, ``[vocab]``; ``logits`` is ``[vocab]`` and is not written."""
        scores = logits
        if self.processors:
            ids = prefix.tensor(length)
            batch = logits.to(torch.promote_types(logits.dtype, torch.float32), copy=True)[None]
            for processor in self.processors:
                batch = _process(processor, ids, batch)
            scores = batch[0]
        if prefix.grammar is not None:
            mask = torch.tensor(prefix.mask(length), device=scores.device)  # a copy: the grammar's own may be read-only
            if mask.shape != scores.shape:
                raise GrammarError(f"the grammar's mask has shape {list(mask.shape)}, the logits {list(scores.shape)}")
            if not mask.any():
                raise GrammarError("the grammar allows no token here: no text of this tokenizer completes it")
            scores = scores.masked_fill(~mask, -torch.inf)
        return scores

    def choose(self, logits: torch.Tensor, prefix: Prefix, length: int) -> Choice:
        """Return the greedy token of a row. Raises ``NotADistribution``."""
        return checked(_top_choice(self.scores(logits, prefix, length)))

    def distribution(self, logits: torch.Tensor, prefix: Prefix, length: int) -> Distribution:
        """Return the distribution of a row in the context of the prefix's first ``length`` ids.

        Raises ``NotADistribution`` for a NaN, +inf, or when no id is left.
        """
        scores = self.scores(logits, prefix, length)
        weights: Floats = scores.to("cpu", torch.float64).numpy()
        peak = weights.max()
        if not np.isfinite(peak):
            raise NotADistribution(describe_peak(float(peak)))
        ids: Ids = self._all_ids
        # Masked ids leave the support; with none masked the shared ids are used as they are.
        finite = np.isfinite(weights)
        if not finite.all():
            ids, weights = ids[finite], weights[finite]
        with np.errstate(under="ignore"):
            for warp in self.warpers:
                ids, weights = warp(ids, weights)
        return Distribution(ids, weights, self.vocab_size)


def _process(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    name = type(processor).__name__
    try:
        processed = processor(ids, scores)
    except Exception as error:
        raise TargetError(f"logits processor {name} failed ({described(error)})") from error
    if not isinstance(processed, torch.Tensor) or processed.shape != scores.shape:
        got = list(processed.shape) if isinstance(processed, torch.Tensor) else type(processed).__name__
        raise TargetError(f"logits processor {name} must return scores of shape {list(scores.shape)} (got {got})")
    return processed


def top_choices(rows: torch.Tensor) -> list[Choice]:
    """Return the greedy choice of every row, ``[rows, vocab]``, in one host synchronisation.

    A row that is no distribution gets a NaN margin, to be told only if the row counts. ``rows`` is left as it was.
    """
    if rows.device.type == "cpu":
        return list(map(_top_choice, rows))
    peaks, tokens = rows.max(dim=-1, keepdim=True)  # a NaN anywhere in a row becomes its peak
    rows.scatter_(-1, tokens, -torch.inf)
    margins = peaks.double() - rows.amax(dim=-1, keepdim=True).double()
    rows.scatter_(-1, tokens, peaks)
    margins.masked_fill_(~peaks.isfinite(), torch.nan)
    pairs = torch.cat((tokens.double(), margins), dim=-1).tolist()
    return [Choice(int(token), margin) for token, margin in pairs]


def _top_choice(row: torch.Tensor) -> Choice:
    """Return the greedy choice of one row, ``[vocab]``, as ``top_choices`` does."""
    if row.device.type != "cpu":
        return top_choices(row[None])[0]
    # numpy's argmax takes a tenth of the time of torch's on a row that is in the cache, and the second a fifth of a maximum.
    scores = (row if row.dtype in (torch.float32, torch.float64) else row.float()).numpy()
    token = int(scores.argmax())  # the first NaN, where there is one
    peak = scores[token]
    scores[token] = -np.inf
    rest = scores[scores.argmax()]
    scores[token] = peak
    return Choice(token, float(peak) - float(rest) if math.isfinite(peak) else math.nan)


def checked(choice: Choice) -> Choice:
    """Return the choice of a row that counts. Raises ``NotADistribution`` where the row is none."""
    if math.isnan(choice.margin):
        raise NotADistribution("the row has a NaN, a +inf, or no valid token")
    return choice


def describe_peak(peak: float) -> str:
    """Say what is wrong with a row whose greatest score is not finite."""
    if math.isnan(peak):
        return "the row has a NaN"
    return "the row has a +inf" if peak > 0 else "the row has no valid token (all are masked)"
