"""The sampling policy, and the one function that makes a row's distribution from its logits and its prefix.

Baseline and verification call the same pipeline; drafts are processed by it too. Order: penalties, bias and suppression,
the caller's processors, grammar, temperature, top-k, top-p, min-p, typical. What transformers has as a ``LogitsProcessor``
before the grammar is used as it is (``processors.py``); from the grammar on, rows are on the host in float64, so that every
device gives one result.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch

from specframe.checks import count, number
from specframe.distribution import Distribution, Floats, Ids, NotADistribution
from specframe.errors import GrammarError, InvalidRequest, TargetError
from specframe.prefix import Prefix
from specframe.processors import build_processors
from specframe.verify import Choice
from specframe.warpers import build_warpers

if TYPE_CHECKING:
    from transformers import LogitsProcessor


MOST_BIAS = 1e30  # far from where float32 ends


def _ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest(name, "must be a list of ids", value)
    ids = tuple(value)
    if any(isinstance(token, bool) or not isinstance(token, numbers.Integral) for token in ids):
        raise InvalidRequest(name, "must hold integer ids", value)
    return tuple(map(int, ids))


def _suppressed(value: Any) -> tuple[int, ...]:
    return () if value is None else _ids("suppress_tokens", value)


def _bad_words(value: Any) -> tuple[tuple[int, ...], ...]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest("bad_words_ids", "must be a list of id sequences", value)
    words = tuple(_ids("bad_words_ids", word) for word in value)
    if not all(words):
        raise InvalidRequest("bad_words_ids", "must not hold an empty sequence", value)
    return words


def _bias(value: Any) -> tuple[tuple[int, float], ...]:
    if value is None:
        return ()
    pairs = tuple(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, tuple) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise InvalidRequest("logit_bias", "must map ids to numbers", value)
    _ids("logit_bias", [token for token, _ in pairs])
    for _, addend in pairs:
        if isinstance(addend, bool) or not isinstance(addend, numbers.Real) or not abs(float(addend)) <= MOST_BIAS:
            rule = f"must map ids to numbers in [-{MOST_BIAS:g}, {MOST_BIAS:g}]"
            raise InvalidRequest("logit_bias", rule, addend, "use suppress_tokens to forbid an id")
    return tuple(sorted((int(token), float(addend)) for token, addend in pairs))


def _callables(value: Any) -> tuple[Any, ...]:
    if value is not None and not isinstance(value, Iterable):
        raise InvalidRequest("processors", "must be a list of functions of (ids, scores)", value)
    processors = tuple(value or ())
    for processor in processors:
        if not callable(processor):
            raise InvalidRequest("processors", "must hold functions of (ids, scores)", processor)
    return processors


@attrs.frozen(kw_only=True)
class SamplingPolicy:
    """How the target's logits become its declared distribution. Every value is off by default; nothing is implied.

    ``temperature``: what logits are divided by, None or 0 is greedy; ``top_k``: keep the k likeliest ids; ``top_p``: keep the
    likeliest ids that reach this probability; ``min_p``: drop ids below this part of the best probability; ``typical_p``:
    keep typical ids that reach this probability; ``repetition_penalty``: divide scores of ids seen, those of the prompt too;
    ``presence_penalty``: subtract from ids generated before; ``frequency_penalty``: subtract for each time an id was
    generated; ``no_repeat_ngram_size``: let no run of so many ids occur twice, the prompt counted; ``logit_bias``: ids and
    what is added to their logits (a mapping is kept as pairs); ``bad_words_ids``: id sequences that may not be completed;
    ``suppress_tokens``: ids that are never generated; ``min_new_tokens``: forbid stop ids before so many; ``processors``: the
    caller's own, functions of (ids, scores). ``specframe.pure(processor)`` declares one a pure function; one that is neither
    declared nor can be restored switches speculation off for the request. Raises ``InvalidRequest`` naming the field, the
    rule and the value.
    """

    temperature: float | None = attrs.field(default=None, validator=number(0))
    top_k: int | None = attrs.field(default=None, validator=count(1))
    top_p: float | None = attrs.field(default=None, validator=number(0, 1, open_low=True))
    min_p: float | None = attrs.field(default=None, validator=number(0, 1))
    typical_p: float | None = attrs.field(default=None, validator=number(0, 1, open_low=True))
    repetition_penalty: float | None = attrs.field(default=None, validator=number(0, open_low=True))
    presence_penalty: float | None = attrs.field(default=None, validator=number(-100, 100))
    frequency_penalty: float | None = attrs.field(default=None, validator=number(-100, 100))
    no_repeat_ngram_size: int | None = attrs.field(default=None, validator=count(1))
    logit_bias: tuple[tuple[int, float], ...] = attrs.field(default=None, converter=_bias)
    bad_words_ids: tuple[tuple[int, ...], ...] = attrs.field(default=None, converter=_bad_words)
    suppress_tokens: tuple[int, ...] = attrs.field(default=None, converter=_suppressed)
    min_new_tokens: int | None = attrs.field(default=None, validator=count(0))
    processors: tuple[LogitsProcessor, ...] = attrs.field(default=None, converter=_callables, repr=False)

    @property
    def is_greedy(self) -> bool:
        """Whether the target's token is an argmax."""
        return not self.temperature

    def check_ids(self, vocab_size: int) -> None:
        """Raise ``InvalidRequest`` for an id outside ``[0, vocab_size)``."""
        fields = {
            "logit_bias": (token for token, _ in self.logit_bias),
            "suppress_tokens": self.suppress_tokens,
            "bad_words_ids": (token for word in self.bad_words_ids for token in word),
        }
        for name, ids in fields.items():
            for token in ids:
                if not 0 <= token < vocab_size:
                    raise InvalidRequest(name, f"must hold ids in [0, {vocab_size})", token)


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
        return checked(top_choices(self.scores(logits, prefix, length)[None])[0])

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
        for warp in self.warpers:
            ids, weights = warp(ids, weights)
        return Distribution(ids, weights, self.vocab_size)


def _process(processor: Any, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    name = type(processor).__name__
    try:
        processed = processor(ids, scores)
    except Exception as error:
        raise TargetError(f"logits processor {name} failed ({type(error).__name__}: {error})") from error
    if not isinstance(processed, torch.Tensor) or processed.shape != scores.shape:
        got = list(processed.shape) if isinstance(processed, torch.Tensor) else type(processed).__name__
        raise TargetError(f"logits processor {name} must return scores of shape {list(scores.shape)} (got {got})")
    return processed


def top_choices(rows: torch.Tensor) -> list[Choice]:
    """Return the greedy choice of every row, ``[rows, vocab]``, in one host synchronisation.

    A row that is no distribution gets a NaN margin, to be told only if the row counts. ``rows`` is left as it was.
    """
    if rows.device.type == "cpu":
        # numpy's argmax takes a tenth of the time of torch's on a row that is in the cache.
        scores = (rows if rows.dtype in (torch.float32, torch.float64) else rows.float()).numpy()
        return [_host_choice(row) for row in scores]
    peaks, tokens = rows.max(dim=-1, keepdim=True)  # a NaN anywhere in a row becomes its peak
    rows.scatter_(-1, tokens, -torch.inf)
    margins = peaks.double() - rows.amax(dim=-1, keepdim=True).double()
    rows.scatter_(-1, tokens, peaks)
    margins.masked_fill_(~peaks.isfinite(), torch.nan)
    pairs = torch.cat((tokens.double(), margins), dim=-1).tolist()
    return [Choice(int(token), margin) for token, margin in pairs]


def _host_choice(scores: Any) -> Choice:
    token = int(scores.argmax())  # the first NaN, where there is one
    peak = float(scores[token])
    rest = max(scores[:token].max(initial=-np.inf), scores[token + 1 :].max(initial=-np.inf))
    return Choice(token, peak - float(rest) if np.isfinite(peak) else np.nan)


def checked(choice: Choice) -> Choice:
    """Return the choice of a row that counts. Raises ``NotADistribution`` where the row is none."""
    if np.isnan(choice.margin):
        raise NotADistribution("the row has a NaN, a +inf, or no valid token")
    return choice


def describe_peak(peak: float) -> str:
    """Say what is wrong with a row whose greatest score is not finite."""
    if np.isnan(peak):
        return "the row has a NaN"
    return "the row has a +inf" if peak > 0 else "the row has no valid token (all are masked)"
