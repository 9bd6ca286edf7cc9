"""The grammar as a drafter, and every drafter under a grammar: the tokens of masked plain decoding, and its law."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from grammars import STOP_IDS, TOKENIZER, ending_target, small_tokenizer
from models import tiny_model

from specframe import DrafterUse, Engine, InvalidStrategy, Length, Strategy, TransformersTarget
from specframe.generation import Generation
from specframe.strategy import structure
from specframe.testing import LogitsDrafter, RandomOffers, RecordedSession, TableTarget, integrate
from specframe_grammar import GrammarOptions
from specframe_grammar.drafter import GrammarDrafter
from specframe_grammar.regex import compile_regex

PROMPT = list(b'name: ann, age: 31; name: bob, age: 7. {"name": "')
RECORD = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "record": {"regex": r'\{"name": "[a-z]{1,6}", "age": \d{1,3}\}'},
    "list": {"regex": r"[a-z]{2}(?:, [a-z]{2}){1,3}"},
    "unicode": {"regex": "(?:é|世|🙂){2,5}!"},
    "choice": {"choice": ["the first choice", "the second", "neither"]},
    "schema": {"json_schema": RECORD},
    "lark": {"lark": 'start: "<" item ("," item)* ">"\nitem: /[a-z]{1,3}/ | "<" item ">"'},
}
DRAFTERS = [
    ("grammar",),
    ("grammar", "prompt_lookup"),
    ("prompt_lookup", "grammar"),
    ("grammar", "draws"),
    ("draws", "grammar"),
    ("offers", "grammar"),
]


def other_rows(ids):
    return torch.tensor(np.random.default_rng([7, *ids[-2:]]).normal(0, 2, len(TOKENIZER)))


def engine_with(target, names, **strategy):
    """Return an engine whose drafters are the plugins' and two that know nothing of any grammar."""
    made = {"draws": LogitsDrafter(other_rows, 3), "offers": RandomOffers(3)}
    given = {name: made[name] for name in names if name in made}
    uses = tuple(DrafterUse(name) for name in names)
    return Engine(target, given, strategy=Strategy(length=Length(max_tokens=7), drafters=uses, **strategy), debug=True)


@pytest.mark.parametrize("tokenization", ["any", "canonical"])
@pytest.mark.parametrize("constraint", CONSTRAINTS.values(), ids=CONSTRAINTS)
@pytest.mark.parametrize("names", DRAFTERS, ids="+".join)
def test_drafters_give_the_tokens_of_masked_plain_decoding(names, constraint, tokenization):
    """Greedy and coupled, whoever proposes: identical ids, ends and texts."""
    plain, engine = Engine(ending_target(), strategy="none"), engine_with(ending_target(), names)
    for sampling in ({}, {"temperature": 1.2, "seed": 5}, {"temperature": 0.8, "seed": 6, "top_k": 20}):
        arguments = {**constraint, **sampling, "max_new_tokens": 60, "grammar_tokenization": tokenization}
        expected, found = plain.generate(PROMPT, **arguments), engine.generate(PROMPT, **arguments)
        assert found.token_ids == expected.token_ids
        assert (found.text, found.finish_reason, found.stop_match) == (
            expected.text,
            expected.finish_reason,
            expected.stop_match,
        )


def test_forced_text_saves_target_calls():
    """Half of a record is decided before the model speaks."""
    plain, engine = Engine(ending_target(), strategy="none"), engine_with(ending_target(), ["grammar"])
    arguments = {**CONSTRAINTS["schema"], "max_new_tokens": 60, "grammar_tokenization": "canonical"}
    expected, found = plain.generate(PROMPT, **arguments), engine.generate(PROMPT, **arguments)
    assert found.token_ids == expected.token_ids
    assert found.stats.num_target_calls < 0.6 * expected.stats.num_target_calls
    assert found.stats.drafters["grammar"].num_accepted > 5


@pytest.mark.parametrize("names", [("grammar",), ("grammar", "draws")], ids="+".join)
@pytest.mark.parametrize("tokenization", ["any", "canonical"])
def test_tiny_models_too(names, tokenization):
    """Through a transformers model and its cache, in float64, with rows of certain tokens left out."""
    model = tiny_model(vocab_size=len(TOKENIZER), max_position_embeddings=256)
    model.generation_config.eos_token_id = sorted(STOP_IDS)
    plain = Engine(TransformersTarget(model, TOKENIZER), strategy="none", debug=True)
    engine = engine_with(TransformersTarget(model, TOKENIZER), names)
    for constraint in CONSTRAINTS.values():
        for sampling in ({}, {"temperature": 1.0, "seed": 2}):
            arguments = {**constraint, **sampling, "max_new_tokens": 40, "grammar_tokenization": tokenization}
            expected = plain.generate(PROMPT, **arguments)
            assert engine.generate(PROMPT, **arguments).token_ids == expected.token_ids


SMALL = small_tokenizer(b"a", b"b", b"ab", merges=[(b"a", b"b")])
ROWS = {0: (4, 3, 2, 1), 1: (1, 2, 3, 4), 2: (2, 2, 1, 5), 3: (1, 1, 1, 1)}


def small_target() -> TableTarget:
    return TableTarget.from_probs(
        lambda ids: [weight / 10 for weight in ROWS[ids[-1]]], vocab_size=4, stop_ids=[3], tokenizer=SMALL
    )


def masked_law(language: list[bytes], num_tokens: int) -> dict[tuple[int, ...], Fraction]:
    """Return the law of masked plain decoding, by brute force over a finite language."""
    pieces = (b"a", b"b", b"ab")
    prefixes = {text[:end] for text in language for end in range(len(text) + 1)}
    law: dict[tuple[int, ...], Fraction] = {}
    stack = [((), b"", Fraction(1))]
    while stack:
        ids, text, weight = stack.pop()
        if len(ids) == num_tokens or (ids and ids[-1] == 3):
            law[ids] = weight
            continue
        row = ROWS[ids[-1] if ids else 0]
        choices = [(t, text + piece) for t, piece in enumerate(pieces) if text + piece in prefixes]
        choices += [(3, text)] if text in language else []
        total = sum(row[token] for token, _ in choices)
        stack += [((*ids, token), longer, weight * Fraction(row[token], total)) for token, longer in choices]
    return law


@pytest.mark.parametrize(
    "names", [(), ("grammar",), ("grammar", "rows"), ("rows", "grammar")], ids=["plain", "g", "gr", "rg"]
)
def test_the_law_of_whole_outputs_is_the_masked_law(names):
    """By exact integration of the real engine, residual verification: every output of up to three tokens, to 1e-12."""
    language = [b"ab", b"aba", b"b", b"abab", b"bb"]
    expected = masked_law(language, 3)
    drawing: list[Any] = []

    class Drawer:
        """Draw up to two tokens, and tell the integrator which, as nothing that follows need show it."""

        def open(self, request: Any) -> RecordedSession:
            return RecordedSession(request, self.propose)

        def propose(self, round: Any) -> None:
            while (token := round.draw(torch.tensor([0.3, 0.1, 0.2, 0.0]))) is not None:
                drawing[-1].note(token)

        def reset(self) -> None: ...
        def close(self) -> None: ...

    drafters = {"grammar": GrammarDrafter(GrammarOptions(), small_target().facts), "rows": Drawer()}
    strategy = Strategy(verifier="residual", length=Length(max_tokens=2))
    grammar = compile_regex("ab(?:ab?)?|b{1,2}", small_target().facts)
    request = Engine(small_target(), strategy=strategy)._request(
        [0], {"grammar": grammar, "temperature": 1.0, "seed": 0, "max_new_tokens": 3}
    )

    class Draws:
        """Let the integrator's pause pass where a drafter's failures are caught."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def uniform(self, *key: Any) -> float:
            try:
                return self.inner.uniform(*key)
            except BaseException as pause:
                raise KeyboardInterrupt from pause

    def run(draws: Any) -> tuple[int, ...]:
        drawing.append(draws)
        chosen: Mapping[str, Any] = {name: drafters[name] for name in names}
        generation = Generation(
            small_target(), chosen, strategy, request, request_id=1, table=None, random=Draws(draws)
        )
        while not generation.is_done:
            try:
                draws.note(generation.step().token_ids)
            except KeyboardInterrupt as interrupt:
                raise interrupt.__cause__ or interrupt from None
        assert not generation.events
        generation.close()
        return tuple(generation.token_ids)

    law = integrate(run)
    assert law.keys() == expected.keys()
    assert all(abs(float(law[ids] - weight)) <= 1e-12 for ids, weight in expected.items())
    assert sum(expected.values()) == 1


def test_the_judge_of_the_law_can_fail():
    """The negative control: the law of another language is not taken for this one."""
    assert masked_law([b"ab", b"b"], 3) != masked_law([b"ab", b"bb"], 3)


def test_a_free_text_then_a_constraint():
    """The text behind the marker is the grammar's, token-identical with and without drafters (case H5)."""
    plain, engine = Engine(ending_target(), strategy="none"), engine_with(ending_target(), ["grammar", "prompt_lookup"])
    for seed in range(6):
        arguments = {
            "regex": r"[a-z]{2,4};",
            "grammar_after": ord("="),
            "temperature": 1.5,
            "seed": seed,
            "max_new_tokens": 200,
        }
        arguments["logit_bias"] = {ord("="): 8.0}
        expected, found = plain.generate(PROMPT, **arguments), engine.generate(PROMPT, **arguments)
        assert found.token_ids == expected.token_ids
        _free, _, constrained = found.text.partition("=")
        assert found.finish_reason == "stop"
        assert len(constrained) in (3, 4, 5)
        assert constrained[-1] == ";"


def test_a_request_without_a_grammar_gets_no_proposals():
    engine = engine_with(ending_target(), ["grammar"])
    expected = Engine(ending_target(), strategy="none").generate(PROMPT, max_new_tokens=20, stop_ids=[])
    found = engine.generate(PROMPT, max_new_tokens=20, stop_ids=[])
    assert found.token_ids == expected.token_ids
    assert found.stats.drafters["grammar"].num_proposed == 0


def test_held_pieces_are_an_option():
    """Without them the drafter proposes nothing that could merge with what follows."""
    num_proposed = {}
    for held in (True, False):
        uses = (DrafterUse("grammar", {"held": held}),)
        engine = Engine(ending_target(), strategy=Strategy(drafters=uses))
        result = engine.generate(PROMPT, regex="x[0-9]ab[c-z]{3}", max_new_tokens=20)
        num_proposed[held] = result.stats.drafters["grammar"].num_proposed
    assert num_proposed[True] > num_proposed[False]
    with pytest.raises(InvalidStrategy, match="'held' must be true or false"):
        GrammarOptions(held=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidStrategy, match="held"):
        structure({"held": "yes"}, GrammarOptions, "options")


def test_the_shipped_strategy_composes():
    engine = Engine(ending_target(), strategy="grammar")
    assert list(engine.drafters) == ["grammar", "prompt_lookup"]
    result = engine.generate(PROMPT, **CONSTRAINTS["record"], max_new_tokens=60)
    assert result.stats.drafters["grammar"].num_accepted > 0


def test_certain_tokens_need_no_rows(monkeypatch):
    """Rows whose mask has one id are left out of the LM head; with log-probabilities asked for they are not."""
    skipped = []
    target = ending_target()
    engine = engine_with(target, ["grammar"])
    opened = target.open

    def spy(*arguments, **options):
        session = opened(*arguments, **options)
        verify = session.verify_linear
        session.verify_linear = lambda *a, **o: (skipped.append(o["num_skipped"]), verify(*a, **o))[1]
        return session

    monkeypatch.setattr(target, "open", spy)
    arguments = {"regex": "[ab]hello, world[ab]", "grammar_tokenization": "canonical", "max_new_tokens": 40}
    expected = engine.generate(PROMPT, **arguments)
    assert sum(skipped) > 5
    skipped.clear()
    found = engine.generate(PROMPT, log_probs=True, **arguments)
    assert not any(skipped)
    assert found.token_ids == expected.token_ids
    assert len(found.log_probs) == len(found.token_ids)
