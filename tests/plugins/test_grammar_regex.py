"""The grammar of a regular expression over ids: masks against brute force, states, stop ids, forced text, dead ends."""

from __future__ import annotations

import itertools
import json
import re

import numpy as np
import pytest
from grammars import FACTS, STOP_IDS, TOKENIZER, after, allowed, ending_target, small_facts, takes
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe import Engine, GrammarError, InvalidGrammar, TargetFacts
from specframe.testing import sentencepiece_tokenizer
from specframe_grammar import regex
from specframe_grammar.masks import Masks
from specframe_grammar.regex import STOPPED, compile_choice, compile_regex

PIECES = (b"a", b"b", b"ab", b"ba", b"aab", "é".encode(), b"\xc3", b"\xa9", b"\xa9a", b"b\xc3")
PIECE_FACTS = small_facts(*PIECES)
ALPHABET = "abé"
MOST = 7


def texts_of(source):
    """Return every text of at most ``MOST`` characters that ``re`` matches, as bytes."""
    judge = re.compile(source)
    return [
        text.encode()
        for n in range(MOST + 1)
        for text in map("".join, itertools.product(ALPHABET, repeat=n))
        if judge.fullmatch(text)
    ]


class Oracle:
    """Masks by brute force: an id is allowed if some text of the language goes on with it."""

    def __init__(self, source, pieces):
        self.texts, self.pieces = texts_of(source), pieces
        self.prefixes = {text[:end] for text in self.texts for end in range(len(text) + 1)}

    def allowed(self, prefix):
        ids = [i for i, piece in enumerate(self.pieces) if piece and prefix + piece in self.prefixes]
        return ids + ([len(self.pieces)] if prefix in self.texts else [])


def finite_patterns():
    atoms = st.sampled_from(["a", "b", "é", "[ab]", "[aé]", "ab", "éa"])
    return st.recursive(
        atoms,
        lambda inner: st.one_of(
            st.lists(inner, min_size=1, max_size=2).map("".join),
            st.lists(inner, min_size=2, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
            inner.map(lambda part: f"(?:{part})?"),
        ),
        max_leaves=3,
    )


@settings(max_examples=60)
@given(finite_patterns(), st.randoms(use_true_random=False))
def test_masks_are_those_of_brute_force(source, random):
    """On a vocabulary with pieces of characters and pieces over characters."""
    grammar = compile_regex(source, PIECE_FACTS)
    oracle = Oracle(source, PIECES)
    for _ in range(6):
        state, prefix = grammar.start, b""
        while True:
            expected = oracle.allowed(prefix)
            assert np.flatnonzero(grammar.mask(state)).tolist() == expected, prefix
            assert grammar.is_final(state) == (prefix in oracle.texts)
            token = random.choice(expected)
            if token == len(PIECES):
                break
            state, prefix = grammar.advance(state, token), prefix + PIECES[token]


def test_the_oracle_can_fail():
    """The negative control: brute force of another pattern gives other masks."""
    grammar = compile_regex("a(b|é)", PIECE_FACTS)
    assert np.flatnonzero(grammar.mask(grammar.start)).tolist() != Oracle("b(b|a)", PIECES).allowed(b"")


def test_a_token_that_is_legal_only_at_first_is_not_allowed():
    """Prevents a token from being let in by its first character; a refused advance changes nothing (case H2)."""
    grammar = compile_regex("ac*", small_facts(b"a", b"ab", b"c"))
    assert allowed(grammar) == [0]
    with pytest.raises(GrammarError, match="not allowed here"):
        grammar.advance(grammar.start, 1)
    assert allowed(grammar) == [0]


@settings(max_examples=25)
@given(st.data())
def test_rolling_back_gives_the_same_state_and_mask(data):
    """Accept n, roll back n: equal state and mask, stop ids included, whatever was asked in between (case H2)."""
    grammar = compile_regex(r"(?:a|é|😀){1,4}(?:, \d+)*", FACTS)
    states = [grammar.start]
    masks = [grammar.mask(grammar.start)]
    for _ in range(12):
        ids = np.flatnonzero(masks[-1]).tolist()
        if not ids:
            break
        states.append(grammar.advance(states[-1], data.draw(st.sampled_from(ids))))
        masks.append(grammar.mask(states[-1]))
    for state, mask in zip(reversed(states), reversed(masks), strict=True):
        assert (grammar.mask(state) == mask).all()
    fresh = compile_regex(r"(?:a|é|😀){1,4}(?:, \d+)*", FACTS)
    assert all((fresh.mask(state) == mask).all() for state, mask in zip(states, masks, strict=True))


def test_both_stop_ids_and_continuations_in_a_final_state():
    """Prevents `*` from behaving like `?`, and a frozen state from letting more through (case H4)."""
    some = compile_regex("a*", FACTS)
    assert {*allowed(some)} > STOP_IDS
    assert ord("a") in allowed(some)
    three = compile_regex("1{1,3}", FACTS)
    one = ord("1")
    assert allowed(three) == [one]
    assert {*allowed(three, [one])} == {one, *STOP_IDS}
    assert {*allowed(three, [one] * 3)} == STOP_IDS
    stopped = after(three, [one, min(STOP_IDS)])
    assert stopped == STOPPED
    assert three.is_final(stopped)
    assert not three.mask(stopped).any()


def test_special_ids_match_no_text():
    """Prevents `.` from letting a special id or a padded one through (cases H1, H2)."""
    facts = TargetFacts(vocab_size=len(TOKENIZER) + 8, stop_ids=STOP_IDS, tokenizer=TOKENIZER)
    grammar = compile_regex(r"(?s:.+)", facts)
    mask = grammar.mask(grammar.start)
    assert mask.shape == (len(TOKENIZER) + 8,)
    assert not mask[len(TOKENIZER) - 3 :].any()
    assert mask[ord("<")]


def test_a_stop_id_that_is_text_is_no_text():
    """The request's stop ids end it, even where the tokenizer knows them as text."""
    facts = TargetFacts(vocab_size=len(TOKENIZER), stop_ids=frozenset({ord("b")}), tokenizer=TOKENIZER)
    grammar = compile_regex("[ab]+", facts)
    assert ord("b") not in allowed(grammar)
    assert ord("b") in allowed(grammar, [ord("a")])


def test_forced_text_is_spelled_and_its_end_is_held():
    """Case F3: what could merge with what follows is held; what the tokenizer cannot change is not."""
    pieces = (b'"', b'"n', b'"na', b"name", b'":', b'":"', b"x", b":", b"n", b"a", b"m", b"e", b"na", b"me")
    merges = [(b"n", b"a"), (b"m", b"e"), (b"na", b"me"), (b'"', b":"), (b'":', b'"')]
    facts = small_facts(*pieces, merges=merges)
    open_end = compile_regex('"name":["x]+', facts)
    forced = open_end.forced(open_end.start)
    assert [pieces[token] for token in forced.ids] == [b'"', b"name"]
    assert [pieces[token] for token in forced.held] == [b'":']
    certain = compile_regex('"name":x', facts)
    forced = certain.forced(certain.start)
    assert [pieces[token] for token in forced.ids] == [b'"', b"name", b'":', b"x"]
    assert not forced.held


def test_nothing_is_forced_where_the_text_may_end():
    grammar = compile_regex("ab(?:cd)?", FACTS)
    forced = grammar.forced(grammar.start)
    assert TOKENIZER.decode([*forced.ids, *forced.held]) == "ab"
    end = after(grammar, b"ab")
    assert grammar.forced(end) == ((), ())


def test_long_forced_text_comes_in_parts():
    grammar = compile_regex("x{2000}", FACTS)
    ids = [*grammar.forced(grammar.start).ids]
    assert 400 < len(ids) <= 512
    assert grammar.forced(after(grammar, ids)).ids


def test_the_first_space_of_a_text_is_the_tokenizers_own():
    """A sentencepiece model drops the first space of an output: `▁P` `izza` is "Pizza" there and " Pizza" later (case J1)."""
    tokenizer = sentencepiece_tokenizer()
    piece = tokenizer.convert_tokens_to_ids
    facts = TargetFacts(vocab_size=len(tokenizer), stop_ids=frozenset({tokenizer.eos_token_id}), tokenizer=tokenizer)
    grammar = compile_choice('["Pizza"]', facts)
    assert {piece("▁P"), piece("P")} <= {*allowed(grammar)}
    assert grammar.is_final(after(grammar, [piece("▁P"), piece("izza")]))
    inside = grammar.mask(grammar.start_inside)
    assert inside[piece("P")]
    assert not inside[piece("▁P")]
    spaced = compile_regex("[a-z]+ [a-z]+", facts)
    assert spaced.is_final(after(spaced, [piece("▁a"), piece("▁the")]))
    for ids in ([piece("▁P"), piece("izza")],):
        assert tokenizer.decode(ids) == "Pizza"


def test_dead_ends_are_told_when_the_tokenizer_is_small():
    """Prevents a generation from running into a text that no token completes, where that can be known before."""
    facts = small_facts(b"a", b"b", b"\xc3")
    with pytest.raises(InvalidGrammar, match="cannot be completed"):
        compile_regex("a(?:b|é)", facts)
    with pytest.raises(InvalidGrammar, match="cannot be completed"):
        compile_regex("c", facts)
    assert allowed(compile_regex("a(?:b|c)", facts), [0]) == [1]


def test_every_state_up_to_the_bound_is_looked_at(monkeypatch):
    """Prevents a state with many ways on from using the bound up before any of them is looked at."""
    monkeypatch.setattr(regex, "MOST_CHECKED", 11)
    facts = small_facts(b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"z\xc3")
    with pytest.raises(InvalidGrammar, match="cannot be completed"):
        compile_regex("aa|bb|cc|dd|ee|ff|gg|hh|ii|zé", facts)


def test_choices_are_their_texts():
    grammar = compile_choice('["yes", "no", "né.*", ""]', FACTS)
    for text, expected in (
        ("yes", True),
        ("no", True),
        ("né.*", True),
        ("", True),
        ("n", False),
        ("nés", False),
        ("yesno", False),
    ):
        assert takes(grammar, text) == expected, text
    with pytest.raises(InvalidGrammar, match="JSON list of texts"):
        compile_choice("[1]", FACTS)
    with pytest.raises(InvalidGrammar, match=r"^choice grammar: it unfolds .* give fewer or shorter texts"):
        compile_choice(json.dumps(["x" * 60_000]), FACTS)
    with pytest.raises(InvalidGrammar, match="no text matches it"):
        compile_choice(json.dumps(["\ud800"]), FACTS)


@pytest.mark.parametrize("constraint", [{"regex": ""}, {"choice": [""]}, {"regex": "(?:)*"}])
@pytest.mark.parametrize("stop_ids", [[], [min(STOP_IDS)]])
def test_the_empty_text_ends_at_once(constraint, stop_ids):
    """Prevents a grammar whose only text is empty from failing where the model has no stop id."""
    engine = Engine(ending_target(), strategy="none")
    result = engine.generate([1], **constraint, stop_ids=stop_ids)
    assert (result.text, result.token_ids, result.finish_reason) == ("", tuple(stop_ids), "stop")
    with engine.stream([1], **constraint, stop_ids=stop_ids) as stream:
        assert [piece.token_ids for piece in stream] == [tuple(stop_ids)] * len(stop_ids)


def test_masks_are_forgotten_beyond_a_bound():
    """Prevents a long-lived grammar from keeping a mask of every state that it ever met."""
    masks, made = Masks(16, most_bytes=4), []

    def make(state):
        made.append(state)
        return np.arange(16) % (state + 2) == 0

    for state in (0, 1, 0, 2, 0, 1):
        assert (masks.get(state, lambda state=state: make(state)) == (np.arange(16) % (state + 2) == 0)).all()
    assert len(masks) == 2
    assert made == [0, 1, 2, 1]


JUDGED = [
    r"\d{4}-\d{2}-\d{2}", r"[A-Z]{2,5}", r"(?:\+\d{1,3} )?\(?\d{3}\)? \d{3}-\d{4}", r"#[0-9a-fA-F]{6}",
    r"[\w.]+@[a-z]+\.(?:com|org)", r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt])*"', r"(?:true|false|null)",
    r"[^a]", "[😀-🙏]+", "é{2}", "[一-龥]+", "[一-龥]{2}é?", r"\w+", r"\W{1,3}", r"\S+ \S+", r"[\W\S]", "[]a]+",
    r"(?i:straße)", r"(?i)k{2}", "(?s:.)*", ".{3}", "a*", "1{1,3}", "(?:ab|a)(?:c|bcd)", "(a|b)*abb", "", "x?",
    "(?:, )?[a-c](?:, [a-c])*", r"\[\d+(?:, \d+){0,3}\]", r'\{"name": "[^"]{1,10}", "age": \d{1,3}\}', r"\t\n\r",
    r"[^\x00-\x7f]{2}", "ÿ|ﾟ", "\U0010ffff?", "(?:[a-f]{1,2}:){3}[a-f]{1,2}", "(?P<year>[12][0-9]{3})",
    "(?:yes|no)(?:!|\\?)*", r"\u00e9|\x41|\101", "[^ -~]?", r"^\$\d+\.\d\d$", "(?:(?:a?)*b)*", "(?i:[a-c])+",
    r"(?a:\w)+\s",
]  # fmt: skip


@pytest.mark.parametrize("source", JUDGED)
def test_every_output_matches(source):
    """At least 40 expressions, judged by Python's ``re``: sampled outputs, ended by a stop id, match in full."""
    assert len(JUDGED) >= 40
    engine = Engine(ending_target(boost=5.0), strategy="none")
    num_ended = 0
    for seed in range(5):
        result = engine.generate([1, 2], regex=source, temperature=1.0, seed=seed, max_new_tokens=120)
        if result.finish_reason == "stop":
            num_ended += 1
            assert re.fullmatch(source, result.text) is not None, result.text
            assert "\ufffd" not in result.text or "�" in result.text
    assert num_ended
