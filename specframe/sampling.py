"""The sampling policy: pure data, checked when made.

Knows no tensors: what the values do to a row is ``policy.py``'s.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from specframe.checks import count, number
from specframe.errors import InvalidRequest

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
