"""The grammar as a drafter: what it forces is proposed before anyone else has to guess.

Knows a request's grammar through the protocol alone, whatever its language; without one it proposes nothing. It only offers,
so every token it proposes is a point mass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import specframe

if TYPE_CHECKING:
    from specframe import Commit, DraftRequest, Grammar, Round, TargetFacts
    from specframe_grammar.options import GrammarOptions


class GrammarDrafter:
    """Propose the ids and the text that the request's grammar forces. Keeps nothing of any request."""

    def __init__(self, options: GrammarOptions, facts: TargetFacts) -> None:
        self._options = options

    def open(self, request: DraftRequest) -> GrammarSession:
        """Start a session at the beginning of the grammar's text."""
        return GrammarSession(request, self._options)

    def reset(self) -> None:
        """Do nothing: nothing is learned from requests."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class GrammarSession:
    """Follow one generation's grammar."""

    def __init__(self, request: DraftRequest, options: GrammarOptions) -> None:
        self._grammar: Grammar | None = request.grammar
        self._offers_held = options.held
        self._num_prompt = len(request.prompt_ids)
        self._num_known = self._num_prompt
        self._state: Any = request.grammar.start if request.grammar is not None else None

    def propose(self, round: Round) -> None:
        """Offer what is forced, run after run, as long as there is room."""
        if self._grammar is None:
            return
        state = self._state
        for token in round.context[self._num_known :]:
            state = self._grammar.advance(state, token)
        while round.room > 0:
            ids = self._next_ids(self._grammar, state)
            if not ids:
                return
            for token in ids:
                if not round.offer(token):
                    return
                state = self._grammar.advance(state, token)

    def commit(self, commit: Commit) -> None:
        """Follow the new ids."""
        if self._grammar is None or commit.start_pos < self._num_prompt:
            return
        for token in commit.ids:
            self._state = self._grammar.advance(self._state, token)
        self._num_known += len(commit.ids)

    def close(self) -> None:
        """Forget the request."""
        self._grammar = self._state = None

    def _next_ids(self, grammar: Grammar, state: Any) -> tuple[int, ...]:
        forced = grammar.forced(state) if isinstance(grammar, specframe.TextGrammar) else specframe.Forced()
        if forced.ids:
            return forced.ids
        mask = grammar.mask(state)
        if np.count_nonzero(mask) == 1:
            return (int(mask.argmax()),)
        return forced.held if self._offers_held else ()
