"""The parts below the grammar of a regular expression: the alphabet, the byte machine's two forms, and the trie."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe import InvalidGrammar
from specframe_grammar import alphabet, automaton, characters, machine, pattern
from specframe_grammar.machine import DEAD, make_machine
from specframe_grammar.trie import Trie

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
def test_both_forms_of_a_machine_are_one(source, monkeypatch):
    """Moves that are written out, and moves made from the two tables where states are many."""
    written = make_machine(pattern.parse(source))
    monkeypatch.setattr(machine, "MOST_ROWS", 0)
    made = make_machine(pattern.parse(source))
    trie = Trie([b"", b"a", b"ab", "é".encode(), b"\xc3", "一".encode(), b"\xe4\xb8", b"1x", "😀".encode(), b"a"])
    states = [written.start]
    for state in states:
        assert (trie.allowed(written, state) == trie.allowed(made, state)).all()
        assert written.next_bytes(state) == made.next_bytes(state)
        for byte in written.next_bytes(state)[::7]:
            assert written.advance(state, bytes([byte])) == made.advance(state, bytes([byte])) != DEAD
        states += [s for s in sorted(trie.reached(written, state)) if s not in states][: 30 - len(states)]


@settings(max_examples=60)
@given(st.lists(st.binary(max_size=4), min_size=1, max_size=12), st.sampled_from([*SOURCES, "(?s:.)*", "a"]))
def test_the_walk_is_byte_by_byte_advance(texts, source):
    """Whatever the texts: empty ones, equal ones, ones that begin others, ones that are no UTF-8."""
    made = make_machine(pattern.parse(source))
    mask = Trie(texts).allowed(made, made.start)
    assert mask.tolist() == [bool(text) and made.advance(made.start, text) != DEAD for text in texts]


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
