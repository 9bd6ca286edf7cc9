"""A constraint that begins behind a marker: free text up to it, then a grammar.

The grammar's text begins at the token after the marker. A token that holds the marker's end and more would put text
between the two, so it is not allowed; stop ids are not allowed before the marker, or the constrained text might never come.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specframe.errors import InvalidRequest
from specframe.grammar import Forced, Grammar, State, TextGrammar
from specframe.proposal import TargetFacts
from specframe.text import TokenBytes


class Behind(NamedTuple):
    """A state behind the marker; before it, the state is the number of the marker's bytes that the text ends with."""

    inner: State


class AfterMarker:
    """A grammar that begins after a marker: an id, or a text, which may be spelled by any tokens."""

    def __init__(self, grammar: Grammar, marker: int | str, facts: TargetFacts) -> None:
        self._grammar = grammar
        self._token = marker if isinstance(marker, int) else _special_id(marker, facts)
        if self._token in facts.stop_ids:
            raise InvalidRequest("grammar_after", "must not be a stop id, which ends the output", marker)
        self._bytes = marker.encode() if isinstance(marker, str) else b""
        self._table = TokenBytes(facts.tokenizer) if self._token is None else None
        self._num_ids, self._stop_ids = facts.vocab_size, sorted(facts.stop_ids)
        self._masks: dict[State, npt.NDArray[np.bool_]] = {}

    @property
    def start(self) -> State:
        return 0

    @property
    def start_inside(self) -> State:
        return 0

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        if isinstance(state, Behind):
            return self._grammar.mask(state.inner)
        if state not in self._masks:
            self._masks[state] = self._free_mask(state)
        return self._masks[state]

    def advance(self, state: State, token: int) -> State:
        if isinstance(state, Behind):
            return Behind(self._grammar.advance(state.inner, token))
        if self._table is None:
            is_marker = token == self._token
        else:
            text = self._bytes[:state] + self._table[token]
            is_marker = text.endswith(self._bytes)
            state = next(n for n in range(len(self._bytes), -1, -1) if text.endswith(self._bytes[:n]))
        if not is_marker:
            return state
        grammar = self._grammar
        return Behind(grammar.start_inside if isinstance(grammar, TextGrammar) else grammar.start)

    def is_final(self, state: State) -> bool:
        return isinstance(state, Behind) and self._grammar.is_final(state.inner)

    def forced(self, state: State) -> Forced:
        if isinstance(state, Behind) and isinstance(self._grammar, TextGrammar):
            return self._grammar.forced(state.inner)
        return Forced()

    def _free_mask(self, state: State) -> npt.NDArray[np.bool_]:
        mask = np.ones(self._num_ids, dtype=np.bool_)
        mask[self._stop_ids] = False
        if self._table is None:
            return mask
        before = self._bytes[:state]
        for token, added in self._going_on:
            if self._bytes in (before + added)[:-1]:
                mask[token] = False
        return mask

    @cached_property
    def _going_on(self) -> list[tuple[int, bytes]]:
        """The ids whose text goes on behind the marker's last byte, and that text."""
        assert self._table is not None
        texts = ((token, self._table[token]) for token in range(self._num_ids))
        return [(token, text) for token, text in texts if self._bytes[-1:] in text[:-1]]


def _special_id(marker: str, facts: TargetFacts) -> int | None:
    """Return the id of a marker that is a special token, which adds no text; None for a text without one."""
    tokenizer, table = facts.tokenizer, TokenBytes(facts.tokenizer)
    token = tokenizer.convert_tokens_to_ids(marker)
    if isinstance(token, int) and tokenizer.convert_ids_to_tokens(token) == marker and table.is_special(token):
        return token
    if any(map(table.is_special, tokenizer.encode(marker, add_special_tokens=False))):
        way_out = "a special token adds no text to be found; give it alone"
        raise InvalidRequest("grammar_after", "must not hold a special token beside other text", marker, way_out)
    return None
