"""The canonical tokenisation: forced text has one spelling, everything else stays as it was."""

import numpy as np

from specframe.canonical import Canonical
from specframe.grammar import Forced, TextGrammar


class Letters:
    """Ids 0 (`a`), 1 (`b`) and 2 (`ab`) over the text `abx`, then id 3 (`x`) or 4 (the stop id)."""

    start = start_inside = ""

    def mask(self, state):
        return np.isin(np.arange(5), {"": [0, 2], "a": [1], "ab": [3, 4]}.get(state, []))

    def advance(self, state, token):
        return state + ["a", "b", "ab", "x", ""][token]

    def is_final(self, state):
        return state == "ab"

    def forced(self, state):
        return {"": Forced((2,)), "a": Forced((1,)), "ab": Forced()}.get(state, Forced())


def test_forced_text_has_one_spelling():
    """The mask of such a state has one id, so that it is certain."""
    grammar = Canonical(Letters())
    assert isinstance(grammar, TextGrammar)
    assert np.flatnonzero(grammar.mask(grammar.start)).tolist() == [2]
    assert np.flatnonzero(Letters().mask("")).tolist() == [0, 2]


def test_what_is_not_forced_stays():
    grammar = Canonical(Letters())
    state = grammar.advance(grammar.start, 2)
    assert np.flatnonzero(grammar.mask(state)).tolist() == [3, 4]
    assert grammar.is_final(state)
    assert not grammar.is_final(grammar.start)
    assert grammar.forced(state) == Forced()
    assert grammar.start_inside == Letters.start_inside


def test_the_mask_is_never_wider_than_the_grammars():
    """Prevents a grammar that forces what it does not allow from letting it through."""

    class Wrong(Letters):
        def forced(self, state):
            return Forced((3,))

    assert not Canonical(Wrong()).mask("").any()


def test_held_pieces_do_not_narrow_the_mask():
    """A piece that could merge with what follows is not declared to be the only one."""

    class Held(Letters):
        def forced(self, state):
            return Forced((), (2,))

    assert np.flatnonzero(Canonical(Held()).mask("")).tolist() == [0, 2]
