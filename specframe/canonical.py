"""The tokenisation ``canonical``: where a grammar forces text, only its canonical tokens are allowed.

A restriction of the grammar, and so a part of the target's declared distribution. It makes forced text certain: the mask
of such a state has one id.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specframe.grammar import Forced, State, TextGrammar


class Canonical:
    """A grammar whose forced text has one spelling: its pieces ``Forced.ids``; where only held ones are left, any."""

    def __init__(self, grammar: TextGrammar) -> None:
        self._grammar = grammar

    @property
    def start(self) -> State:
        return self._grammar.start

    @property
    def start_inside(self) -> State:
        return self._grammar.start_inside

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        ids = self._grammar.forced(state).ids
        mask = self._grammar.mask(state)
        if not ids:
            return mask
        only = np.zeros_like(mask)
        only[ids[0]] = mask[ids[0]]
        return only

    def advance(self, state: State, token: int) -> State:
        return self._grammar.advance(state, token)

    def is_final(self, state: State) -> bool:
        return self._grammar.is_final(state)

    def forced(self, state: State) -> Forced:
        return self._grammar.forced(state)
