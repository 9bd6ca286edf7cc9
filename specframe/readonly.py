"""What drafters are given of a request, so that nothing that they do to it reaches the core.

Values are frozen already; here are the parts that are alive: the grammar, whose masks may be cached where it makes them, and
the caller's logits processors, which may keep state. The tokenizer is the target's own, shared, and not to be changed.
"""

from __future__ import annotations

import attrs
import numpy as np
import numpy.typing as npt

from specframe.grammar import Forced, Grammar, State, TextGrammar
from specframe.proposal import DraftRequest, TargetFacts
from specframe.request import Request


def draft_request(request: Request, facts: TargetFacts) -> DraftRequest:
    """Return what drafters may know of a request on a target with these facts."""
    return DraftRequest(
        prompt_ids=request.prompt_ids,
        facts=facts,
        policy=attrs.evolve(request.policy, processors=()),  # the core applies them, whoever proposes
        stop_ids=request.stop_ids,
        grammar=read_only(request.grammar) if request.grammar is not None else None,
    )


def read_only(grammar: Grammar) -> Grammar:
    """Return a grammar that is like another, whose masks cannot be written."""
    return ReadOnlyTextGrammar(grammar) if isinstance(grammar, TextGrammar) else ReadOnlyGrammar(grammar)


class ReadOnlyGrammar:
    """A grammar as drafters see it. States are the grammar's own: they are never changed."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    @property
    def start(self) -> State:
        return self._grammar.start

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        """Return a view of the grammar's mask; a write into it raises ``ValueError``."""
        mask = np.asarray(self._grammar.mask(state)).view()
        mask.flags.writeable = False
        return mask

    def advance(self, state: State, token: int) -> State:
        return self._grammar.advance(state, token)

    def is_final(self, state: State) -> bool:
        return self._grammar.is_final(state)


class ReadOnlyTextGrammar(ReadOnlyGrammar):
    """A grammar over text as drafters see it."""

    def __init__(self, grammar: TextGrammar) -> None:
        super().__init__(grammar)
        self._text_grammar = grammar

    @property
    def start_inside(self) -> State:
        return self._text_grammar.start_inside

    def forced(self, state: State) -> Forced:
        return self._text_grammar.forced(state)
