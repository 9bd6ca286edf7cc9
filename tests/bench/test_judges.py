"""Judges: what keeps a rule passes, what breaks it does not, and a rule that is none is refused."""

from __future__ import annotations

import sys

import pytest

from specframe import MissingPackage
from specframe.bench.judges import Judge

PERSON = {"type": "object", "required": ["age"], "properties": {"age": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("rule", "passing", "failing"),
    [
        ({"equals": "B27"}, ["B27", " B27\n", "B27."], ["b27", "Gate B27", "B27 or B28", ""]),
        ({"contains": ["5 ml", "10 ml"]}, ["5 ml and 10 ml", "10 ml, 5 ml"], ["5 ml", "5ml and 10ml", ""]),
        ({"schema": True}, ["3", "[]", '```json\n{"a": 1}\n```', "null"], ["{", "Sure: {}", "```json\n{}", ""]),
        ({"schema": PERSON}, ['{"age": 3}', '```\n{"age": 3}\n```'], ['{"age": "3"}', "{}", "[3]", "[" * 100_000]),
    ],
)
def test_rules(rule, passing, failing):
    """Prevents an answer from passing that breaks the rule; the failing ones are the negative controls."""
    judge = Judge(**rule)
    assert [answer for answer in passing if not judge(answer)] == []
    assert [answer for answer in failing if judge(answer)] == []


@pytest.mark.parametrize("rule", [{}, {"equals": "a", "contains": ["a"]}, {"contains": []}, {"contains": "a"}])
def test_a_rule_that_is_none_is_refused(rule):
    """Prevents a judge that passes everything because it asks for nothing."""
    with pytest.raises(ValueError, match="judge"):
        Judge(**rule)


def test_a_schema_without_its_library_is_told(monkeypatch):
    """Prevents an answer from being called wrong because a package is missing."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    assert Judge(schema=True)("{}")
    with pytest.raises(MissingPackage, match="pip install jsonschema"):
        Judge(schema=PERSON)("{}")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "strin"}, "judge 'schema' is no JSON Schema: 'strin' is not valid"),
        ({"properties": {"a": {"minimum": "x"}}}, "judge 'schema' is no JSON Schema"),
        ({"properties": {"a": {"$ref": "https://example.org/s.json"}}}, "must hold what it refers to .*example.org"),
        ({"items": [{"$ref": "#/$defs/none"}]}, "judge 'schema' "),
        ({"anyOf": [{"$ref": "#/$defs/none"}]}, "must hold what it refers to"),
        ({"$ref": "#"}, "must not refer to itself without end"),
    ],
)
def test_a_schema_that_would_end_a_run_is_refused(schema, message, monkeypatch):
    """Prevents hours of measuring from ending at the first answer that is looked into, and a judge from asking a network."""
    monkeypatch.setattr("urllib.request.urlopen", None)
    with pytest.raises(ValueError, match=message):
        Judge(schema=schema)


def test_a_schema_may_refer_to_its_own_parts():
    """A tree: references within the schema are what schemas are for; an answer that is nested too deeply is not valid."""
    tree = {"$defs": {"node": {"type": "array", "items": {"$ref": "#/$defs/node"}}}, "$ref": "#/$defs/node"}
    judge = Judge(schema=tree)
    assert judge("[[], [[]]]")
    assert not judge("[[], [3]]")
    assert not judge("[" * 400 + "]" * 400)
