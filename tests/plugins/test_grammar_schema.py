"""Schemas: keywords that are not enforced are refused by name, at any depth (case I5)."""

import pytest
from grammars import FACTS

from specframe import InvalidGrammar, InvalidRequest
from specframe.constraint import read_constraint
from specframe_grammar import schema


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"not": {}}, "keyword 'not' is not enforced"),
        ({"minLenght": 3}, "keyword 'minLenght' is not enforced .*; leave it out; enforced: "),
        ({"properties": {"a": {"uniqueItems": True}}}, "keyword 'uniqueItems' .*at '/properties/a'"),
        ({"items": {"anyOf": [{}, {"if": {}}]}}, "keyword 'if' .*at '/items/anyOf/1'"),
        ({"$defs": {"x": {"contains": {}}}}, "keyword 'contains' .*at '/\\$defs/x'"),
        ({"enum": []}, "'enum' must hold at least one value"),
        ({"properties": {"x": {"enum": []}}}, "'enum' must hold .*at '/properties/x'"),
        ({"minProperties": 2}, "'minProperties' of 2 is not enforced.* may repeat"),
        ({"minProperties": 3, "required": ["a", "a"]}, "'minProperties' of 3 is not enforced"),
        ({"items": 5}, "must be an object or a boolean"),
        ({"anyOf": {}}, "'anyOf' must be a list of schemas"),
        ({"properties": []}, "'properties' must be an object of schemas"),
        ({"x-guidance": {"lenient": True}}, "'x-guidance' may hold item_separator"),
        ({"items": {"x-guidance": {}}}, "keyword 'x-guidance' is not enforced"),
        ([], "must be an object or a boolean"),
    ],
)
def test_what_is_not_enforced_is_refused_by_name(wrong, message):
    """Prevents a constraint from vanishing: any JSON would pass."""
    with pytest.raises(InvalidGrammar, match=message):
        schema.check(wrong)


def test_properties_may_be_named_like_keywords():
    """Prevents names of properties and values from being read as keywords."""
    schema.check(
        {"properties": {"not": {"enum": ["if"]}, "uniqueItems": True}, "required": ["not"], "const": {"not": 1}}
    )
    schema.check(True)
    schema.check({"items": {"x-note": 1}, "minProperties": 3, "required": ["a", "b"]})
    schema.check({"$schema": "x", "title": "t", "description": "d", "default": {"not": 1}, "examples": [{"if": 1}]})


@pytest.mark.parametrize("reference", ["#/x-parts/a", "#/properties/a/const", "#/$defs/a", "#/default"])
def test_what_is_no_schema_by_its_place_is_not_referred_to(reference):
    """Prevents a reference from leading to keywords that nobody has looked at."""
    unchecked = {"uniqueItems": True}
    schema_of = {
        "x-parts": {"a": unchecked}, "properties": {"a": {"const": unchecked}, "b": {"$ref": reference}}, "default": unchecked,
    }  # fmt: skip
    with pytest.raises(
        InvalidGrammar, match=r"'\$ref' must name a schema .*'/properties/b'\); put the schema under '\$defs'"
    ):
        schema.check(schema_of)


def test_references_to_schemas_are_taken():
    """By their place in the document, whatever their names hold; to the whole of it, and to themselves."""
    schema.check({"$defs": {"a/b~ c": {"items": {"$ref": "#"}}}, "items": {"$ref": "#/$defs/a~1b~0%20c"}})
    schema.check({"$defs": {"a": {"$ref": "#/$defs/a/items", "items": True}}, "$ref": "#/$defs/a"})


def test_names_with_slashes_are_one_level():
    """Prevents a property's name from being taken for nesting, and names the place as a JSON pointer."""
    schema.check({"properties": {"a/" * 300: {}}})
    with pytest.raises(InvalidGrammar, match="at '/properties/a~1b~0'"):
        schema.check({"properties": {"a/b~": {"not": {}}}})


def test_deep_schemas_are_refused():
    deep: dict[str, object] = {}
    for _ in range(300):
        deep = {"items": deep}
    with pytest.raises(InvalidGrammar, match="nested deeper"):
        schema.check(deep)


def test_recursive_python_objects_are_refused():
    loop: dict[str, object] = {}
    loop["items"] = loop
    with pytest.raises(InvalidRequest, match="must be a JSON Schema"):
        read_constraint({"json_schema": loop}, FACTS)
