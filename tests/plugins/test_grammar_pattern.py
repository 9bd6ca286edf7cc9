"""Patterns: what is parsed means what Python's ``re`` means, and what is not is refused with its offset."""

from __future__ import annotations

import contextlib
import itertools
import re
import time

import pytest
from grammars import FACTS, takes
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe import InvalidGrammar
from specframe_grammar import characters, pattern
from specframe_grammar.machine import make_machine
from specframe_grammar.regex import compile_regex


def matches(source, text):
    """Tell whether the byte machine of a pattern takes a text."""
    machine = make_machine(pattern.parse(source))
    return machine.is_final(machine.advance(machine.start, text.encode()))


REFUSED = {
    "a^b": 1, "a$b": 1, "(^a)": 1, r"a\bb": 1, r"\Ba": 0, r"a\Ab": 1, r"(a\Z)": 2,
    r"(a)\1": 3, "(?P<x>a)(?P=x)": 8, "a(?=b)": 1, "a(?!b)": 1, "(?<=a)b": 0, "(?<!a)b": 0,
    "(a)(?(1)b|c)": 3, "(?>a)b": 0, "a*+b": 2, "a++": 2, "a?+": 2, "a{1,2}+": 6, "(?x) a": 0, "a{20000}": 1,
    "(ab){3,20000}": 4, "a{20000,}": 1,
}  # fmt: skip


@pytest.mark.parametrize(("source", "offset"), REFUSED.items())
def test_what_is_not_supported_is_refused_with_its_offset(source, offset):
    """Prevents an assertion from being dropped, or a construct from being read as another (case I2)."""
    re.compile(source)  # it is valid, and would mean something
    with pytest.raises(InvalidGrammar) as caught:
        pattern.parse(source)
    assert caught.value.offset == offset, caught.value
    assert str(caught.value).startswith("regex grammar: ")


@pytest.mark.parametrize(
    ("source", "offset"),
    [
        ("a(b", 1), ("a**", 2), ("[z-a]", 1), (r"\p{L}", 0), ("a{3,1}", 2), ("*", 0),
        ("a{" + "9" * 5_000 + "}", None), ("a{99999999999}", None), ("(?a)(?u)a", None), ("(" * 2_000 + ")" * 2_000, None),
    ],
)  # fmt: skip
def test_what_is_no_pattern_is_told_with_its_offset(source, offset):
    """Python's own message and position, where it knows one."""
    with pytest.raises(InvalidGrammar) as caught:
        pattern.parse(source)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "source",
    [
        "[]a]", "[^]a]", r"[\W\S]", r"[\W\D]", "[a-]", r"[\d\-x]", "a{,2}", "a{2,}", "a{,}b", "a{}", "a{x}", "{",
        "a{2", "]", "}", "(?#note)a(?#b)*", "(?i:a)b", "(?i)ab", "(?s:.)a", ".a", "a|", "|", "", "()", "(?:)*", "(a|b)*?a",
        "a??b", r"\x61\u0062",
        r"\141b", r"\0", r"\07a", r"[\b]", r"\n\t", r"\.\-\ ", "(?P<name>a)b", "(?-i:a)", "^ab$", r"\Aab\Z", "^a|b$", "(?m)^a$",
        "((a*)*)*", "(a|ab)(c|bcd)", "(a?){3}", "(?:a|b){2}(?:a|b)?", r"(?a:\w)b", r"\N{LATIN SMALL LETTER A}",
        "a{\u0661}", "(?P<a\u00b7>a)b", "(?i)(?s)a.", "(?#x)(?i)(?#y)(?a)ab", "a{0}b", "(?:a{0,0}|b)a", "(?:){3}a", "\\\u00e9",
    ],
)  # fmt: skip
def test_patterns_mean_what_re_means(source):
    """Every text of at most 4 characters of a small alphabet (case I2)."""
    alphabet = "ab1 -]{}"
    texts = ["".join(t) for n in range(4) for t in itertools.product(alphabet, repeat=n)]
    texts += [
        "abab",
        "aabb",
        "\n",
        "\na",
        "\n\t",
        "A",
        "Ab",
        "aB",
        "AB",
        "\0",
        "\7a",
        "\b",
        "x",
        ".- ",
        "a,b",
        "é",
        "acd",
        "abcd",
        "abbcd",
        "ac",
        "a{\u0661}",
        "A\n",
    ]
    machine = make_machine(pattern.parse(source))
    judge = re.compile(source)
    for text in texts:
        found = machine.is_final(machine.advance(machine.start, text.encode()))
        assert found == (judge.fullmatch(text) is not None), text


def nodes(alphabet="abé"):
    atoms = st.sampled_from([*alphabet, "[ab]", "[^a]", ".", r"\w", "(?i:É)", "[]b]", r"[\W\S]"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=3).map("".join),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )


TEXTS = ["".join(t) for n in range(5) for t in itertools.product("abé", repeat=n)] + ["É", "aÉ", "\n", "a\n", "x"]


@settings(max_examples=100)
@given(nodes())
def test_random_patterns_mean_what_re_means(source):
    """The differential test of the parser, the subset construction and the UTF-8 machine together."""
    machine = make_machine(pattern.parse(source))
    judge = re.compile(source)
    for text in TEXTS:
        found = machine.is_final(machine.advance(machine.start, text.encode()))
        assert found == (judge.fullmatch(text) is not None), text


@pytest.mark.parametrize(
    "cls",
    [
        r"\d",
        r"\D",
        r"\w",
        r"\s",
        r"\S",
        ".",
        "[^a-z]",
        "[一-龥]",
        "[😀-🙏]",
        r"[^\W\d_]",
        r"[\u00e9-\u4e00\s]",
        "[é-ÿ一]",
    ],
)
@pytest.mark.parametrize("flags", [re.UNICODE, re.ASCII, re.UNICODE | re.IGNORECASE, re.UNICODE | re.DOTALL])
def test_a_class_holds_what_re_says(cls, flags):
    """A sample of all planes, both sides of every range's ends among it; surrogates are in no class."""
    ranges = characters.matching(cls, int(flags))
    ends = {point + delta for pair in ranges[:200] for point in pair for delta in (-1, 0, 1)}
    points = {*range(0, 0x110000, 997), *ends, 0xD7FF, 0xE000, 0x10FFFF}
    judge = re.compile(cls, flags)
    inside = {point for first, last in ranges for point in (first, last)}
    assert all(judge.fullmatch(chr(point)) for point in inside)
    for point in points:
        if 0 <= point < 0x110000 and not 0xD800 <= point < 0xE000:
            found = any(first <= point <= last for first, last in ranges)
            assert found == (judge.fullmatch(chr(point)) is not None), hex(point)
    assert not any(first < 0xE000 and last >= 0xD800 for first, last in ranges)


@pytest.mark.parametrize("character", "aß\u1e9e\u017fsS\u212akK\u0131\u0130iÉéǅǆΣ\u03c3ςA1_")
def test_a_literal_without_case_matches_what_re_says(character):
    """Folding is Python's: the sharp s and its capital, s and the long s, k and the Kelvin sign."""
    ranges = characters.matching_literal(character, int(re.IGNORECASE | re.UNICODE))
    found = {chr(point) for first, last in ranges for point in range(first, last + 1)}
    judge = re.compile(re.escape(character), re.IGNORECASE)
    assert found == {c for c in characters._every_character() if judge.fullmatch(c)}


def test_deep_nesting_and_blow_ups_are_refused():
    """Prevents a short pattern from taking minutes or gigabytes; every refusal comes within seconds."""
    for source in ("(" * 150 + "a" + ")" * 150, "(a|b)*a(a|b){18}", "((a{100}){100}){100}", "(?:a?){9000}b"):
        with pytest.raises(InvalidGrammar):
            make_machine(pattern.parse(source))


@pytest.mark.parametrize(
    "source",
    [
        "(?:(?:(?:){10000}){10000}){10000}",
        "(?:(?:a{0}){10000}){10000}",
        "(?:(?:a|b)*a(?:a|b){10}(?:|){9000})*",
    ],
)
def test_what_holds_no_character_counts_against_the_bounds(source):
    """Prevents repeats of nothing, and long ways without a character, from taking minutes unseen."""
    start = time.perf_counter()
    with contextlib.suppress(InvalidGrammar):
        make_machine(pattern.parse(source))
    assert time.perf_counter() - start < 20


def test_a_pattern_of_nothing_is_told():
    with pytest.raises(InvalidGrammar, match="no text matches it"):
        compile_regex(r"[^\s\S]", FACTS)
    assert takes(compile_regex("", FACTS), "")


def test_the_oracle_can_fail():
    """The negative control: a machine of another pattern does not pass for this one."""
    assert matches("a+", "a")
    assert not matches("a+", "")
    assert any(matches("a*", text) != (re.fullmatch("a+", text) is not None) for text in TEXTS)
