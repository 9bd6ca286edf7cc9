"""JSON Schema and Lark through llguidance: masks as wide as the grammar, pure states, judged outputs, refusals."""

from __future__ import annotations

import gc
import json
import re
import sys
import weakref
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from grammars import FACTS, STOP_IDS, TOKENIZER, after, allowed, ending_target, takes
from hypothesis import given
from hypothesis import strategies as st

from specframe import Engine, GrammarError, InvalidGrammar, MissingPackage, TargetFacts
from specframe.testing import sentencepiece_tokenizer
from specframe_grammar.parser import compile_json_schema, compile_lark
from specframe_grammar.regex import compile_regex

DATA = Path(__file__).parents[1] / "data"
SUITE = json.loads((DATA / "json_schema_test_suite.json").read_text(encoding="utf-8"))
BENCH = [json.loads(line) for line in (DATA / "jsonschemabench.jsonl").read_text(encoding="utf-8").splitlines()]


def compiled(schema):
    return compile_json_schema(json.dumps(schema), FACTS)


def lark(source):
    return compile_lark(source, FACTS)


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ('"name"', ['"name"']),
        ("abc", ["abc"]),
        ("(?:a|é|😀){1,3}", ["aé😀", "😀"]),
        ('\\{"n": [0-9]{1,2}\\}', ['{"n": 12}']),
        ("(?s:.)*ab", ["xé\nab"]),
    ],
)
def test_masks_are_as_wide_as_the_grammar(pattern, texts):
    """Prevents forced text from being narrowed to its canonical token by default; our own engine gives the same masks."""
    ours, theirs = compile_regex(pattern, FACTS), lark(f"start: /{pattern}/")
    for text in texts:
        state, other = ours.start, theirs.start
        for byte in text.encode():
            assert (ours.mask(state) == theirs.mask(other)).all()
            assert ours.is_final(state) == theirs.is_final(other)
            state, other = ours.advance(state, byte), theirs.advance(other, byte)
        assert ours.is_final(state)
        assert (ours.mask(state) == theirs.mask(other)).all()


def test_forced_text_is_that_of_our_own_engine():
    """Nothing is forced where the text may end."""
    for pattern in ('"name": [0-9]+', "ab(?:cd)?", "x{3}"):
        ours, theirs = compile_regex(pattern, FACTS), lark(f"start: /{pattern}/")
        state, other = ours.start, theirs.start
        for byte in b'"name": 1' if pattern.startswith('"') else b"ab" if pattern.startswith("a") else b"xxx":
            mine, its = ours.forced(state), theirs.forced(other)
            assert its.ids + its.held == mine.ids + mine.held
            assert its.ids == mine.ids[: len(its.ids)]
            state, other = ours.advance(state, byte), theirs.advance(other, byte)
        assert theirs.forced(other) == ours.forced(state)


def test_both_stop_ids_in_a_final_state():
    grammar = lark("start: /a+/")
    assert {*allowed(grammar, b"a")} >= {ord("a"), *STOP_IDS}
    stopped = after(grammar, [ord("a"), max(STOP_IDS)])
    assert grammar.is_final(stopped)
    assert not grammar.mask(stopped).any()
    assert grammar.forced(stopped) == ((), ())


def test_special_and_padded_ids_match_no_text():
    facts = TargetFacts(vocab_size=len(TOKENIZER) + 8, stop_ids=STOP_IDS, tokenizer=TOKENIZER)
    grammar = compile_lark("start: /(?s:.)+/", facts)
    mask = grammar.mask(grammar.start)
    assert mask.shape == (len(TOKENIZER) + 8,)
    assert not mask[len(TOKENIZER) - 3 :].any()
    assert mask[ord("<")]


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(0, 2**32 - 1)), max_size=40))
def test_states_are_pure(steps):
    """Any state may be asked for at any time: the same mask, however the matcher was moved in between (case H2)."""
    grammar = GRAMMARS[0]
    states, masks = [grammar.start], [grammar.mask(grammar.start)]
    for back, choice in steps:
        index = max(0, len(states) - 1 - back)
        ids = np.flatnonzero(masks[index])
        if len(ids):
            states.append(grammar.advance(states[index], int(ids[choice % len(ids)])))
            masks.append(grammar.mask(states[-1]))
    for state, mask in zip(reversed(states), reversed(masks), strict=True):
        state.packed = None
        assert (grammar.mask(state) == mask).all()


GRAMMARS = [compiled({"type": "object", "properties": {"aé": {"type": "string"}, "b": {"type": "array"}}})]


def test_an_id_that_is_not_allowed_changes_nothing():
    grammar = lark("start: /ab*/")
    mask = grammar.mask(grammar.start).copy()
    with pytest.raises(GrammarError, match="not allowed"):
        grammar.advance(grammar.start, ord("b"))
    assert (grammar.mask(grammar.start) == mask).all()
    state = grammar.advance(grammar.start, ord("a"))
    with pytest.raises(GrammarError, match="not allowed"):
        grammar.advance(state, ord("a"))
    stopped = grammar.advance(state, min(STOP_IDS))
    with pytest.raises(GrammarError, match="not allowed"):
        grammar.advance(stopped, ord("a"))


def test_a_requests_states_go_with_it():
    """Prevents a cached grammar from growing with every request (case M2)."""
    grammar = lark("start: /[ab]*/")
    state = after(grammar, b"abab")
    gone = weakref.ref(state.parent)
    after(grammar, b"b")
    del state
    gc.collect()
    assert gone() is None


def test_the_first_space_of_a_text_is_the_tokenizers_own():
    """As for regular expressions (case J1)."""
    tokenizer = sentencepiece_tokenizer()
    piece = tokenizer.convert_tokens_to_ids
    facts = TargetFacts(vocab_size=len(tokenizer), stop_ids=frozenset({tokenizer.eos_token_id}), tokenizer=tokenizer)
    ours, theirs = compile_regex("Pizza a?", facts), compile_lark("start: /Pizza a?/", facts)
    assert (ours.mask(ours.start) == theirs.mask(theirs.start)).all()
    for ids in ([piece("▁P"), piece("izza"), piece("▁a")], [piece("P"), piece("izza"), piece("▁")]):
        state, other = ours.start, theirs.start
        for token in ids:
            state, other = ours.advance(state, token), theirs.advance(other, token)
            assert (ours.mask(state) == theirs.mask(other)).all()
    assert (ours.mask(ours.start_inside) == theirs.mask(theirs.start_inside)).all()


def test_a_text_that_is_too_much_for_the_parser_does_not_spoil_the_grammar():
    """Prevents a kept grammar from failing for every request after the one that met a bound of the parser's."""
    rules = [f'r{n}: "a" | r{n} r{(n + 1) % 60}' for n in range(60)]
    grammar = lark("\n".join([f"start: ({' | '.join(f'r{n}' for n in range(60))})*", *rules]))
    mask = grammar.mask(grammar.start)
    state = grammar.start
    with pytest.raises(GrammarError, match=r"^the parser failed: Parser Error: Current row has \d+ items[^\n]*$"):
        for _ in range(100):
            grammar.mask(state)
            state = grammar.advance(state, ord("a"))
    grammar.start.packed = None
    assert (grammar.mask(grammar.start) == mask).all()
    assert (grammar.mask(after(grammar, b"aa"))).any()


def test_what_no_text_satisfies_is_told_of_every_tokenizer():
    """Prevents an error of another type where the first id of an output adds another text than a later one."""
    tokenizer = sentencepiece_tokenizer()
    facts = TargetFacts(vocab_size=len(tokenizer), stop_ids=frozenset({tokenizer.eos_token_id}), tokenizer=tokenizer)
    with pytest.raises(InvalidGrammar, match="no text of this tokenizer's tokens satisfies it"):
        compile_lark('start: start "a"', facts)


def test_every_first_id_that_is_allowed_is_taken():
    """Prevents a first id from being let in by its own text and refused when that is fed to the parser."""
    tokenizer = sentencepiece_tokenizer()
    facts = TargetFacts(vocab_size=len(tokenizer), stop_ids=frozenset({tokenizer.eos_token_id}), tokenizer=tokenizer)
    ours, theirs = compile_regex("(?s:.)*", facts), compile_lark("start: /(?s:.)*/", facts)
    for token in np.flatnonzero(theirs.mask(theirs.start)).tolist():
        mine, its = ours.advance(ours.start, token), theirs.advance(theirs.start, token)
        assert (ours.mask(mine) == theirs.mask(its)).all()


def test_masks_are_forgotten_beyond_a_bound():
    """Prevents a long output from keeping a mask for each of its tokens; a forgotten one is made again."""
    grammar = lark("start: /[ab]*c/")
    grammar._most_masked = 3
    states = [grammar.start]
    masks = [grammar.mask(grammar.start)]
    for _ in range(8):
        states.append(grammar.advance(states[-1], ord("a")))
        masks.append(grammar.mask(states[-1]))
    assert sum(state.packed is not None for state in states) == 3
    assert all((grammar.mask(state) == mask).all() for state, mask in zip(states, masks, strict=True))


OWN_SCHEMAS = [
    {"type": "object", "properties": {"r": {"type": "integer"}, "o": {"type": "integer"}}, "required": ["r"],
     "additionalProperties": False},
    {"type": "string", "pattern": "^[a-c]{2,4}$", "maxLength": 3},
    {"type": "string", "pattern": "b+"},
    {"enum": ["a", 1, None, True, {"x": [1]}]},
    {"const": {"a": [1, 2.5, "x"]}},
    {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 2}, "minItems": 1, "maxItems": 3},
    {"type": "integer", "exclusiveMinimum": 3, "maximum": 17},
    {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}], "items": False, "minItems": 2},
    {"anyOf": [{"type": "string", "maxLength": 2}, {"type": "integer", "minimum": 5, "maximum": 6}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 9}]},
    {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "boolean"}]},
    {"type": ["string", "null"], "minLength": 1, "maxLength": 5},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer", "maximum": 9,
     "minimum": 0}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}}, "required": ["v", "next"],
     "additionalProperties": False}}},
    {"type": "string", "format": "date"}, {"type": "string", "format": "time"}, {"type": "string", "format": "uuid"},
    {"type": "string", "format": "email"}, {"type": "string", "format": "ipv4"}, {"type": "string", "format": "date-time"},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 5}, "properties": {"a": True}},
    {"type": "object", "patternProperties": {"^x": {"type": "boolean"}}, "additionalProperties": False},
    {"type": "number", "multipleOf": 5, "minimum": 0, "maximum": 40},
    {"anyOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object", "properties": {"a": {"type": "null"},
     "b": {"type": "null"}}, "additionalProperties": False},
    True, {},
]  # fmt: skip


SCHEMAS = [*OWN_SCHEMAS, *(entry["schema"] for entry in BENCH)]


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_every_output_is_valid(number):
    """At least 40 schemas, judged by the jsonschema package: sampled outputs that ended are valid JSON of the schema."""
    assert len(SCHEMAS) >= 40
    schema = SCHEMAS[number]
    engine = Engine(ending_target(boost=9.0), strategy="none")
    judge = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    num_ended = 0
    for seed in range(3):
        result = engine.generate([1, 2], json_schema=schema, temperature=1.0, seed=seed, max_new_tokens=400)
        if result.finish_reason == "stop":
            num_ended += 1
            judge.validate(json.loads(result.text))
    assert num_ended, "no output ended"


def test_the_judge_can_fail():
    """The negative control: another schema's outputs are not valid here."""
    engine = Engine(ending_target(boost=9.0), strategy="none")
    result = engine.generate([1, 2], json_schema={"type": "integer"}, temperature=1.0, seed=0)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(json.loads(result.text), {"type": "string"})


def test_no_invalid_instance_of_the_public_suite_can_be_generated():
    """JSON-Schema-Test-Suite: of a schema that compiles, nothing marked invalid is taken, in our style of white space.

    Valid instances may be refused for the order of their keys; most must be taken.
    """
    num_groups = num_valid = num_taken = num_invalid = 0
    for group in SUITE:
        try:
            grammar = compiled(group["schema"])
        except InvalidGrammar:
            continue
        num_groups += 1
        for test in group["tests"]:
            try:
                taken = takes(grammar, json.dumps(test["data"], ensure_ascii=False))
            except UnicodeEncodeError:
                continue
            if test["valid"]:
                num_valid, num_taken = num_valid + 1, num_taken + taken
            else:
                num_invalid += 1
                assert not taken, (group["description"], group["schema"], test)
    assert num_groups >= 40, num_groups
    assert num_invalid >= 60, num_invalid
    assert num_taken >= 0.9 * num_valid, (num_taken, num_valid)


@pytest.mark.parametrize(
    ("language", "source", "message"),
    [
        ("json_schema", "{", "must be JSON"),
        ("json_schema", "false", "no JSON satisfies it"),
        (
            "json_schema",
            '{"type": "string", "minLength": 5, "maxLength": 2}',
            "minLength .5. is greater than maxLength",
        ),
        ("json_schema", '{"allOf": [{"type": "string"}, {"type": "integer"}]}', "Unsatisfiable schema: incompatible"),
        ("json_schema", '{"type": "strin"}', "Invalid type: strin"),
        (
            "json_schema",
            r'{"enum": ["a\u0000b"]}',
            r"control characters other than .* cannot be written; leave them out",
        ),
        ("json_schema", '{"properties": {"a\x7f": {}}}', "control characters"),
        ("json_schema", '{"type": "string", "format": "byte"}', "Unknown format: byte"),
        ("json_schema", '{"oneOf": [{"type": "string"}, {"type": "string"}]}', "oneOf constraints are not supported"),
        ("json_schema", '{"$ref": "http://example.com/x"}', "http://example.com/x"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "look"),
        ("lark", "start: /a(/", "unclosed group at offset 7"),
        ("lark", 'start: "a" b\nb: "x" c', 'unknown name: "c" at offset 16'),
        ("lark", '%llguidance {"no_forcing": false}\nstart: /a/', "at offset 0"),
        ("lark", "start: /[/]/", "lexer error at offset"),
        (
            "lark",
            "start: a\na[max_tokens=3]: /a/",
            "'max_tokens' of a rule is not supported.* at offset 11; leave it out",
        ),
        ("lark", 'start: a\n!a [lazy, stop="]"]: /a/', "'stop' of a rule is not supported"),
        ("lark", "start[temperature=0.5]: /a/", "'temperature' of a rule is not supported"),
        ("lark", "start: /a\ud800/", "'.ud800' is no text at offset 9"),
        ("lark", "start: <eot>", "panic: [^<]*<[^<]*$"),
        ("lark", "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(9_999)), "more than 1,000 rules"),
        ("lark", '// é\x0b\u2028\r\nstart: ("é" | ("a" b))', "unknown name: .b. at offset 23"),
        ("lark", "begin: /a/", "no start rule found"),
        ("lark", 'start: start "a"', "no text of this tokenizer's tokens satisfies it"),
    ],
)
def test_what_cannot_be_compiled_is_told(language, source, message):
    """A typed error at compile time."""
    compile = compile_json_schema if language == "json_schema" else compile_lark
    with pytest.raises(InvalidGrammar, match=message) as caught:
        compile(source, FACTS)
    assert str(caught.value).startswith(f"{language} grammar: ")
    assert "\n" not in str(caught.value)


def test_white_space_is_that_of_json_dumps_unless_the_schema_says_otherwise():
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    text = json.dumps({"a": [1, 2]})
    assert takes(compiled(schema), text)
    assert not takes(compiled(schema), text.replace(" ", ""))
    flexible = compiled({**schema, "x-guidance": {"whitespace_flexible": True}})
    assert takes(flexible, text)
    assert takes(flexible, json.dumps({"a": [1, 2]}, indent=2))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"patternProperties": {"^a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
        {"properties": {"a": False}},
    ],
)
@pytest.mark.parametrize("style", [{}, {"x-guidance": {"whitespace_flexible": True}}])
def test_a_name_has_one_spelling(schema, style):
    """Prevents a property that the schema names from being spelled with an escape, and so taken for another one."""
    grammar = compiled({"type": "object", **schema, **style})
    assert takes(grammar, '{"b": "x", "é\\n\\"": "x"}')
    assert not takes(grammar, '{"a": "x"}')
    assert not takes(grammar, '{"\\u0061": "x"}')


def test_lark_grammars_recurse():
    grammar = lark('start: "(" start ")" | /[a-z]+/')
    assert takes(grammar, "((ab))")
    assert not takes(grammar, "((ab)")


@pytest.mark.parametrize("text", ["\\u0000", "\\\\u0000", '\n\t\r\b\f"\\', "é😀", "/"])
def test_constants_are_written_as_json_dumps_does(text):
    """Backslashes that only look like escapes of control characters among them."""
    assert takes(compiled({"const": text}), json.dumps(text, ensure_ascii=False))


def test_a_missing_package_is_told_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "llguidance", None)
    facts = TargetFacts(vocab_size=len(TOKENIZER), stop_ids=frozenset({1}), tokenizer=TOKENIZER)
    with pytest.raises(MissingPackage, match=re.escape("pip install 'specframe[grammar]'")):
        compile_lark("start: /a/", facts)
