"""Constraints behind a marker: where they begin, what is free before, and what may not stand between (case H5)."""

import attrs
import numpy as np
import pytest
from grammars import FACTS, STOP_IDS, TOKENIZER, allowed

from specframe import GrammarError, InvalidRequest, TokenBytes
from specframe.grammar import Forced, TextGrammar
from specframe.marker import AfterMarker, Behind

X, Y = ord("x"), ord("y")


class Once:
    """The id of `y`, then a stop id; it is told where it begins."""

    start, start_inside = "start", "inside"

    def mask(self, state):
        return np.isin(np.arange(len(TOKENIZER)), [Y] if state != "end" else [*STOP_IDS])

    def advance(self, state, token):
        if not self.mask(state)[token]:
            raise GrammarError("not allowed")
        return "end"

    def is_final(self, state):
        return state == "end"

    def forced(self, state):
        return Forced((Y,)) if state != "end" else Forced()


def test_before_an_id_everything_but_stop_ids_is_free():
    grammar = AfterMarker(Once(), 9, FACTS)
    assert isinstance(grammar, TextGrammar)
    assert {*range(len(TOKENIZER))} - {*allowed(grammar)} == STOP_IDS
    state = grammar.advance(grammar.start, X)
    assert state == grammar.start
    assert not grammar.is_final(state)
    assert grammar.forced(state) == Forced()


def test_the_mask_switches_behind_the_marker():
    """Behind it the grammar's text is not the first of the output."""
    grammar = AfterMarker(Once(), 9, FACTS)
    state = grammar.advance(grammar.start, 9)
    assert state == Behind("inside")
    assert np.flatnonzero(grammar.mask(state)).tolist() == [Y]
    assert grammar.forced(state) == Forced((Y,))
    end = grammar.advance(state, Y)
    assert grammar.is_final(end)
    assert {*np.flatnonzero(grammar.mask(end)).tolist()} == STOP_IDS


def test_a_text_may_be_spelled_by_any_tokens():
    """`xay` is one id of the byte tokenizer, and three."""
    grammar = AfterMarker(Once(), "ay", FACTS)
    piece = TOKENIZER.convert_tokens_to_ids("xay")
    assert grammar.advance(grammar.start, piece) == Behind("inside")
    state = grammar.start
    for token, expected in ((ord("a"), 1), (ord("a"), 1), (X, 0), (ord("a"), 1)):
        state = grammar.advance(state, token)
        assert state == expected
    assert grammar.advance(state, Y) == Behind("inside")


def test_no_text_stands_between_the_marker_and_the_constrained_text():
    """A token that holds the marker's end and more is not allowed; one that ends with it is."""
    grammar = AfterMarker(Once(), "xa", FACTS)
    piece = TOKENIZER.convert_tokens_to_ids("xay")
    assert not grammar.mask(grammar.start)[piece]
    assert grammar.mask(grammar.start)[TOKENIZER.convert_tokens_to_ids("abc")]
    partly = grammar.advance(grammar.start, X)
    assert not grammar.mask(partly)[TOKENIZER.convert_tokens_to_ids("ab")]
    assert grammar.mask(partly)[ord("a")]


def test_markers_that_overlap_themselves_are_found():
    """`aab` in `aaab`: the text goes on being compared where it may still begin."""
    grammar = AfterMarker(Once(), "aab", FACTS)
    state = grammar.start
    for token in b"aaab":
        state = grammar.advance(state, token)
    assert isinstance(state, Behind)


def test_a_special_token_is_found_by_its_name():
    """Special ids add no text, so that their text is never seen in an output."""
    grammar = AfterMarker(Once(), "<s>", FACTS)
    assert isinstance(grammar.advance(grammar.start, TOKENIZER.convert_tokens_to_ids("<s>")), Behind)


@pytest.mark.parametrize("marker", [min(STOP_IDS), "</s>"])
def test_a_stop_id_is_no_marker(marker):
    """Prevents a marker that ends the output, or is not allowed before itself, from never coming."""
    with pytest.raises(InvalidRequest, match="must not be a stop id"):
        AfterMarker(Once(), marker, FACTS)
    other = attrs.evolve(FACTS, stop_ids=frozenset({X}))
    assert AfterMarker(Once(), marker, other).mask(0)[min(STOP_IDS)]


def test_a_special_token_with_other_text_is_no_marker():
    """Prevents a text that no output holds, for special tokens add none, from being waited for."""
    with pytest.raises(InvalidRequest, match=r"must not hold a special token beside other text.*give it alone"):
        AfterMarker(Once(), "<s>\n", FACTS)


@pytest.mark.parametrize("marker", ["xa", "a", "ay", "xay", "\u00e9", "aa"])
def test_what_is_free_before_a_marker_is_told_by_its_definition(marker):
    """For every id, in every state: forbidden if it ends the output or holds the marker and more."""
    grammar, table = AfterMarker(Once(), marker, FACTS), TokenBytes(TOKENIZER)
    for state in range(len(marker.encode())):
        before = marker.encode()[:state]
        for token, is_allowed in enumerate(grammar.mask(state)):
            text = before + table[token]
            holds_more = any(text[:end].endswith(marker.encode()) for end in range(len(text)))
            assert is_allowed == (token not in STOP_IDS and not holds_more)


def test_a_grammar_without_text_may_stand_behind_a_marker():
    class Plain:
        start = "end"

        def mask(self, state):
            return Once().mask(state)

        def advance(self, state, token):
            return state

        def is_final(self, state):
            return True

    grammar = AfterMarker(Plain(), 9, FACTS)
    assert grammar.advance(0, 9) == Behind("end")
    assert grammar.forced(Behind("end")) == Forced()
    with pytest.raises(GrammarError):
        AfterMarker(Once(), 9, FACTS).advance(Behind("inside"), X)
