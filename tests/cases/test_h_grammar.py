"""Cases H1, H2, H4, H5 and F3: masks, states, final states, constraints that begin in a block, forced text."""

from __future__ import annotations

import numpy as np
import pytest
from grammars import FACTS, STOP_IDS, TOKENIZER, ending_target, small_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from models import engine_on

from specframe import Engine, GrammarError, TargetFacts
from specframe.testing import Adversary, TableTarget
from specframe_grammar.parser import compile_lark
from specframe_grammar.regex import compile_regex

WIDTH = len(TOKENIZER)
A, B = ord("a"), ord("b")


def target_that_likes(*ids, width=WIDTH):
    row = [float(9 * (token in ids)) for token in range(width)]
    return TableTarget({}, vocab_size=width, default=row, stop_ids=sorted(STOP_IDS), tokenizer=TOKENIZER)


@pytest.mark.parametrize("language", [{"regex": "[ab]{3}"}, {"lark": "start: /[ab]{3}/"}, {"choice": ["aba"]}])
def test_h1_logits_wider_than_the_tokenizer(language):
    """Masks are as wide as the logits, and the tail is not allowed, however high its logits are."""
    width = len(TOKENIZER) + 4
    result = Engine(target_that_likes(width - 2, width=width), strategy="none").generate([1], **language)
    assert len(result.text) == 3
    assert {*result.text} <= {*"ab"}


@pytest.mark.parametrize(
    "compile", [lambda: compile_regex("a(b|ca*)d*", FACTS), lambda: compile_lark("start: /a(b|ca*)d*/", FACTS)]
)
@given(data=st.data())
def test_h2_accept_and_rollback_are_inverse(compile, data):
    """Stop ids, ids that are half legal, and more steps than any history limit; a refused one changes nothing."""
    grammar = compile()
    states = [grammar.start]
    masks = [grammar.mask(grammar.start).copy()]
    for _ in range(data.draw(st.integers(1, 60))):
        token = data.draw(
            st.sampled_from(
                [*b"abcd", *STOP_IDS, TOKENIZER.convert_tokens_to_ids("ab"), TOKENIZER.convert_tokens_to_ids("xay")]
            )
        )
        if masks[-1][token]:
            states.append(grammar.advance(states[-1], token))
            masks.append(grammar.mask(states[-1]).copy())
            assert masks[-1].any() == (token not in STOP_IDS)
        else:
            with pytest.raises(GrammarError):
                grammar.advance(states[-1], token)
            assert (grammar.mask(states[-1]) == masks[-1]).all()
    for n in reversed(range(len(states))):
        assert (grammar.mask(states[n]) == masks[n]).all()
        assert hash(states[n]) == hash(states[n])


@pytest.mark.parametrize("language", [{"regex": "a*"}, {"lark": "start: /a*/"}], ids=["regex", "lark"])
def test_h4_lengths_of_a_star_are_geometric(language):
    """In a final state both stop ids and continuations: with three equal ids each length has 1/3 of what is left.

    1,000 outputs; a deviation of more than 5 standard errors at one of four lengths has odds below 1 in 100,000.
    """
    target = target_that_likes(A, *STOP_IDS)
    engine = Engine(target, strategy="none")
    lengths = [len(r.text) for r in engine.generate([1], temperature=1.0, seed=3, n=1000, **language)]
    for length in range(4):
        expected = (2 / 3) * (1 / 3) ** length
        error = np.sqrt(expected * (1 - expected) / 1000)
        assert abs(lengths.count(length) / 1000 - expected) < 5 * error


@pytest.mark.parametrize("language", [{"regex": "1{1,3}"}, {"lark": "start: /1{1,3}/"}], ids=["regex", "lark"])
def test_h4_after_the_last_repeat_only_stop_ids(language):
    result = Engine(target_that_likes(ord("1")), strategy="none").generate([1], **language)
    assert result.text == "111"
    assert result.token_ids[-1] in STOP_IDS


@pytest.mark.parametrize("strategy", ["none", "grammar"])
def test_h5_a_constraint_that_begins_in_the_middle_of_a_block(strategy):
    """Free text until the marker, then the grammar: rows behind the marker are masked, and none is taken twice."""
    marker = ord("M")
    script = [ord("x"), marker, *b"{}", min(STOP_IDS)]

    def row(ids):
        return [9.0 * (token == script[min(len(ids) - 1, len(script) - 1)]) for token in range(len(TOKENIZER))]

    def target():
        return TableTarget(row, vocab_size=len(TOKENIZER), order=50, stop_ids=sorted(STOP_IDS), tokenizer=TOKENIZER)

    arguments = {"regex": r"\{\}", "grammar_after": marker, "max_new_tokens": 20}
    expected = Engine(target(), strategy="none").generate([1], **arguments)
    assert expected.text == "xM{}"
    if strategy == "grammar":
        assert Engine(target(), strategy="grammar").generate([1], **arguments).token_ids == expected.token_ids
        return
    for draft in ([*script[:2], ord("y"), ord("z")], [*script[:2], ord("{"), ord("y")], script, [marker, ord("{")]):
        drafter = Adversary(lambda context, index, draft=draft: draft[index] if index < len(draft) else None)
        found = engine_on(target(), drafter, length=6).generate([1], **arguments)
        assert found.token_ids == expected.token_ids


PIECES = (b'"', b'"n', b'"na', b"name", b'":', b'":"', b"x", b":", b"n", b"a", b"m", b"e", b"me", b"na")
MERGES = [(b"n", b"a"), (b"m", b"e"), (b"na", b"me"), (b'"', b":"), (b'":', b'"')]
SMALL = small_tokenizer(*PIECES, merges=MERGES)
STOP = len(PIECES)


def table(seed):
    def row(ids):
        return np.random.default_rng([seed, *ids]).normal(0, 3, STOP + 1).tolist()

    return TableTarget(row, vocab_size=STOP + 1, order=2, stop_ids=[STOP], tokenizer=SMALL)


@pytest.mark.parametrize("tokenization", ["any", "canonical"])
def test_f3_forced_text_is_not_forced_tokens(tokenization):
    """The target may spell forced text as it likes; proposals of it give the tokens, ends and budgets of plain decoding."""
    spellings = set()
    for seed in range(8):
        plain, engine = Engine(table(seed), strategy="none"), Engine(table(seed), strategy="grammar", debug=True)
        for budget in (1, 2, 4, 40):
            for sampling in ({}, {"temperature": 1.0, "seed": seed}):
                arguments = {"regex": '"name":["x]{2,}', "grammar_tokenization": tokenization, "max_new_tokens": budget}
                expected = plain.generate([6], **arguments, **sampling)
                found = engine.generate([6], **arguments, **sampling)
                assert (found.token_ids, found.finish_reason) == (expected.token_ids, expected.finish_reason)
                spellings.add(expected.token_ids[:3])
    if tokenization == "any":
        assert len(spellings) > 8  # the target really spells it in many ways


def test_f3_the_last_piece_is_held():
    """`":` could become `":"`: it is proposed at most, never declared."""
    grammar = compile_regex(
        '"name":["x]{2,}', TargetFacts(vocab_size=STOP + 1, stop_ids=frozenset({STOP}), tokenizer=SMALL)
    )
    forced = grammar.forced(grammar.start)
    assert [PIECES[token] for token in forced.ids] == [b'"', b"name"]
    assert [PIECES[token] for token in forced.held] == [b'":']
    before = grammar.mask(grammar.start).copy()
    grammar.forced(grammar.start)
    assert (grammar.mask(grammar.start) == before).all()


def test_f3_stops_are_asked_for_forced_tokens_too():
    """A stop string inside a forced run ends the output there."""
    for strategy in ("none", "grammar"):
        engine = Engine(ending_target(), strategy=strategy)
        result = engine.generate([1], regex="hello, world[ab]", stop=[", w"], grammar_tokenization="canonical")
        assert (result.text, result.stop_match) == ("hello", ", w")
