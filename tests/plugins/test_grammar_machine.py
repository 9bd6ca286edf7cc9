"""The parts below the grammar of a regular expression: the alphabet, the byte machine's two forms, and the trie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe import InvalidGrammar
from specframe_grammar import alphabet, automaton, characters, pattern
from specframe_grammar.machine import DEAD, make_machine
from specframe_grammar.trie import Trie, Walk

SOURCES = [r"\w+", "[^a]é?", r"(?:ab|a\d){2}", "[一-龥😀-🙏]{1,3}", r"[\W\S]*x"]


def symbol_of(made, character):
    """Read a character's UTF-8 through an alphabet's machine."""
    node = alphabet.ROOT
    for byte in character.encode():
        assert node >= 0, "a whole character is read at once"
        node = int(made.table[node, byte])
    assert node < 0, "the machine is between characters again"
    return ~node


def test_symbols_tell_apart_what_sets_tell_apart():
    """And nothing else: two characters are one symbol exactly if every set treats them alike."""
    sets = [characters.matching(cls, int(re.UNICODE)) for cls in ("[a-f]", "[d-z]", r"\w", "[^é]")]
    made = alphabet.make_alphabet(sets)
    groups: dict[int, set[tuple[bool, ...]]] = {}
    for character in [*map(chr, range(0x300)), "一", "龥", "😀", "\ud7ff", "\ue000", "\U0010ffff"]:
        inside = tuple(any(first <= ord(character) <= last for first, last in ranges) for ranges in sets)
        groups.setdefault(symbol_of(made, character), set()).add(inside)
        assert {i for i, ranges in enumerate(sets) if symbol_of(made, character) in made.symbols[ranges]} == {
            i for i, is_inside in enumerate(inside) if is_inside
        }
    assert all(len(signatures) == 1 for signatures in groups.values())
    assert len({next(iter(signatures)) for signatures in groups.values()}) == len(groups)


@pytest.mark.parametrize("source", SOURCES)
def test_one_state_steps_as_many_do(source):
    """One byte from one state, every byte from it, and every byte from many: the same moves, none into a dead end."""
    made = make_machine(pattern.parse(source))
    states = [made.start]
    for state in states:
        reached = [made.advance(state, bytes([byte])) for byte in range(256)]
        assert made.step(np.full(256, state), np.arange(256)).tolist() == reached
        assert made.next_bytes(state) == [byte for byte, following in enumerate(reached) if following != DEAD]
        assert made.is_final(state) or made.next_bytes(state)
        states += [s for s in dict.fromkeys(reached) if s != DEAD and s not in states][: 30 - len(states)]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=12), st.sampled_from([*SOURCES, "(?s:.)*", "a"]))
def test_the_walk_is_byte_by_byte_advance(texts, source):
    """Whatever the texts: empty ones, equal ones, ones that begin others, ones that are no UTF-8."""
    made = make_machine(pattern.parse(source))
    walk = Walk(Trie(texts), made)
    for state in {made.start} | walk.reached(made.start):
        reached = [made.advance(state, text) if text else DEAD for text in texts]
        assert walk.allowed(state).tolist() == [following != DEAD for following in reached]
        assert walk.reached(state) == {*reached} - {DEAD}


@pytest.mark.parametrize(
    ("source", "without", "expected"),
    [
        ("[a-c]{3}", b"", True),
        ("[a-c]{3}", b"b", True),
        ("[a-c]{3}", b"abc", False),
        ("[ab]*c", b"c", False),
        ("(?s:.)*", b"\x04\xf1\xf2", True),
        ("(?s:.)*\x04", b"\x04", False),
        ("a|é", b"\xc3", True),
        ("a|é", b"\xa9", False),
        ("é?", b"\xa9", False),
        ("(?:a|é)b", b"a", True),
    ],
)
def test_what_single_bytes_complete_is_told(source, without, expected):
    """From every state, also inside a character: so that few patterns need a search for dead ends."""
    made = make_machine(pattern.parse(source))
    assert made.is_completed_by(frozenset(range(256)) - frozenset(without)) == expected


def test_only_live_states_are_kept():
    """A branch that no text completes is no way: its first characters are not allowed."""
    made = make_machine(pattern.parse(r"ab[^\s\S]|ac"))
    assert made.next_bytes(made.advance(made.start, b"a")) == [ord("c")]
    sets = automaton.character_sets(pattern.parse("[ab]c[ab]"))
    assert len(sets) == 2


def test_classes_times_states_are_bounded(monkeypatch):
    """Prevents a Unicode class in a long pattern from taking gigabytes."""
    monkeypatch.setattr(automaton, "MOST_CELLS", 20_000)
    with pytest.raises(InvalidGrammar, match=r"UTF-8 nodes are too many; use simpler classes"):
        make_machine(pattern.parse(r"\w{100}"))
