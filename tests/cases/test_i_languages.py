"""Cases I1, I2 and I5: characters of several bytes, constructs that are misread, keywords that are dropped."""

from __future__ import annotations

import itertools
import json
import re

import pytest
from grammars import FACTS, TOKENIZER, ending_target, takes

from specframe import Engine, InvalidGrammar
from specframe_grammar.parser import compile_json_schema
from specframe_grammar.regex import compile_regex


@pytest.mark.parametrize(
    ("source", "inside", "outside"),
    [
        ("[😀-🙏]+", ["😀", "🙂🙏", "🙄"], ["", "🙑", "é", "😀a"]),
        ("é{2}", ["éé"], ["é", "ééé", "e"]),
        ("[^a]", ["b", "é", "道", "😀", "\n"], ["a", "", "bb"]),
        ("[一-龥]", ["道", "一", "龥"], ["龦", "ー", "a"]),
    ],
)
def test_i1_characters_of_several_bytes(source, inside, outside):
    grammar = compile_regex(source, FACTS)
    for text in (*inside, *outside):
        assert takes(grammar, text) == (text in inside) == (re.fullmatch(source, text) is not None)


@pytest.mark.parametrize("source", ["[^a]", "(?s:.)", r"[\W\S]", "[^a]+"])
def test_i1_what_is_no_utf8_is_not_accepted(source):
    """Not inside a character, no overlong forms, no surrogates, nothing beyond Unicode: all strings of up to 3 bytes of
    chosen ones, and the ends of the 4-byte range.
    """
    grammar = compile_regex(source, FACTS)
    some = [
        0x00,
        0x61,
        0x62,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xED,
        0xEF,
        0xF0,
        0xF4,
        0xF5,
        0xFF,
    ]
    strings = [bytes(string) for n in (1, 2, 3) for string in itertools.product(some, repeat=n)]
    strings += [bytes([0xF0, b, 0x80, 0x80]) for b in (0x80, 0x8F, 0x90)] + [
        bytes([0xF4, b, 0xBF, 0xBF]) for b in (0x8F, 0x90)
    ]
    judge = re.compile(source)
    for string in strings:
        try:
            expected = judge.fullmatch(string.decode()) is not None
        except UnicodeDecodeError:
            expected = False
        assert takes(grammar, string) == expected, string


def test_i1_a_split_emoji_can_be_produced():
    """The tokenizer has halves of 🙂: both spellings reach it."""
    halves = [TOKENIZER.convert_tokens_to_ids(piece) for piece in ("ðŁ", "ĻĤ")]
    grammar = compile_regex("[🙂🙃]", FACTS)
    state = grammar.start
    for token in halves:
        assert grammar.mask(state)[token]
        assert not grammar.is_final(state)
        state = grammar.advance(state, token)
    assert grammar.is_final(state)


@pytest.mark.parametrize(
    ("source", "offset"),
    [
        (r"x\bx", 1), ("x^x", 1), ("x$x", 1), (r"x\Ax", 1), (r"\p{L}", 0), (r"(x)\1", 3), ("(?<=x)y", 0), ("x(?=y)", 1),
        ("(?!x)y", 0), ("x++", 2), ("(?>x)", 0), ("x{3,1}", 2), ("(?x)y", 0),
    ],
)  # fmt: skip
def test_i2_what_is_not_exact_is_refused_with_its_offset(source, offset):
    with pytest.raises(InvalidGrammar) as caught:
        compile_regex(source, FACTS)
    assert caught.value.offset == offset


@pytest.mark.parametrize(
    "source", ["[]a]", r"[\W\S]", r"\d", r"\w", r"\s", "(?i:ß)", "(?i:k)", "(?i:s)", r"\u00e9", "a(?#x)b"]
)
def test_i2_what_is_read_is_exact(source):
    """Classes and folding are those of ``re``: the capital sharp s, the Kelvin sign and the long s among them."""
    grammar = compile_regex(source, FACTS)
    for text in ["ab", "]", "a", " ", "1", "٣", "é", "ß", "ẞ", "\u212a", "k", "\u017f", "s", "S", "\u2003", "_", "-"]:
        assert takes(grammar, text) == (re.fullmatch(source, text) is not None), text


def test_i2_a_schemas_pattern_is_searched():
    """JSON Schema's ``pattern`` is not anchored."""
    grammar = compile_json_schema('{"type": "string", "pattern": "b+"}', FACTS)
    assert takes(grammar, '"abba"')
    assert takes(grammar, '"b"')
    assert not takes(grammar, '"aca"')
    anchored = compile_json_schema('{"type": "string", "pattern": "^b+$"}', FACTS)
    assert takes(anchored, '"bb"')
    assert not takes(anchored, '"abba"')


def test_i5_keywords_are_a_conjunction():
    """AnyOf beside properties and additionalProperties: false; pattern with maxLength; both bounds count."""
    both = {
        "type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "additionalProperties": False,
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }  # fmt: skip
    grammar = compile_json_schema(json.dumps(both), FACTS)
    for text, expected in (
        ('{"a": null}', True),
        ('{"b": null}', True),
        ("{}", False),
        ('{"c": 1}', False),
        ("5", False),
    ):
        assert takes(grammar, text) == expected, text
    short = compile_json_schema('{"type": "string", "pattern": "^[a-c]+$", "maxLength": 2}', FACTS)
    assert takes(short, '"ab"')
    assert not takes(short, '"abc"')
    assert not takes(short, '"d"')


def test_i5_required_and_optional_properties():
    schema = {
        "type": "object", "properties": {"r": {"type": "integer"}, "o": {"type": "integer"}}, "required": ["r"],
        "additionalProperties": False,
    }  # fmt: skip
    grammar = compile_json_schema(json.dumps(schema), FACTS)
    for text, expected in (('{"r": 1}', True), ('{"r": 1, "o": 2}', True), ('{"o": 2}', False), ("{}", False)):
        assert takes(grammar, text) == expected, text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"properties": {"x": {"enum": []}}, "required": ["x"]}, "'enum' must hold"),
        ({"not": {"type": "string"}}, "keyword 'not'"),
        ({"if": {}, "then": {}}, "keyword 'if'"),
        ({"type": "array", "uniqueItems": True}, "keyword 'uniqueItems'"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "Unsatisfiable"),
    ],
)
def test_i5_what_is_not_enforced_or_satisfied_is_refused(schema, message):
    engine = Engine(ending_target(), strategy="none")
    with pytest.raises(InvalidGrammar, match=message):
        engine.generate([1], json_schema=schema)
    assert engine.target.num_forwards == 0


def test_i5_a_reference_to_itself_is_a_pushdown():
    """Recursion is not cut off at some depth."""
    schema = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    grammar = compile_json_schema(json.dumps(schema), FACTS)
    assert takes(grammar, "[" * 60 + "]" * 60)
    assert not takes(grammar, "[" * 60 + "]" * 59)
