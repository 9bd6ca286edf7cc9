"""JSON Schemas: which keywords are enforced, and what is refused by name before a schema is compiled.

The parser behind this refuses most of what it does not enforce; what it would drop is refused here. Unknown keywords are
refused too: a misspelt one would be a constraint that is silently not there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import specframe

_TYPES = ("type", "enum", "const")
_OBJECTS = ("properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties")
_ARRAYS = ("items", "prefixItems", "minItems", "maxItems")
_STRINGS = ("minLength", "maxLength", "pattern", "format")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_JOINED = ("anyOf", "allOf", "oneOf", "$ref")
ENFORCED = frozenset((*_TYPES, *_OBJECTS, *_ARRAYS, *_STRINGS, *_NUMBERS, *_JOINED))
ANNOTATIONS = frozenset(
    ("$schema", "$id", "$comment", "$anchor", "title", "description", "default", "examples", "deprecated")
) | frozenset(("readOnly", "writeOnly", "contentMediaType", "contentEncoding"))
DEFINITIONS = frozenset(("$defs", "definitions"))
STYLE = frozenset(("whitespace_flexible", "item_separator", "key_separator"))
"""What ``x-guidance``, at the top of a schema, may say of white space."""

ONE_SCHEMA = frozenset(("additionalProperties", "items"))
LISTS_OF_SCHEMAS = frozenset(("anyOf", "allOf", "oneOf", "prefixItems"))
NAMED_SCHEMAS = frozenset(("properties", "patternProperties")) | DEFINITIONS
MOST_NESTED = 200
MOST_REFERENCES = 1_000
"""The parser follows a chain of them on the thread's stack, which 2,500 overflow."""


class Place(NamedTuple):
    """A schema within a schema, and the JSON pointer to it."""

    schema: Any
    pointer: str


def check(schema: Any) -> None:
    """Raise ``InvalidGrammar`` for a keyword that is not enforced, naming it and where it stands."""
    places: dict[str, Place] = {}
    stack = [Place(schema, "")]
    while stack:
        place = stack.pop()
        places[place.pointer] = place
        _check_keywords(place)
        stack += _inner(place)
    for place in places.values():
        _check_reference(place, places)
    if (
        len({str(place.schema.get("$ref")) for place in places.values() if isinstance(place.schema, Mapping)})
        > MOST_REFERENCES
    ):
        raise _invalid(f"more than {MOST_REFERENCES:,} different references are not supported", "")


def _check_keywords(place: Place) -> None:
    if place.pointer.count("/") > MOST_NESTED:
        raise _invalid(f"schemas are nested deeper than {MOST_NESTED // 2}", place.pointer)
    if isinstance(place.schema, bool):
        return
    if not isinstance(place.schema, Mapping):
        raise _invalid(f"a schema must be an object or a boolean (got {place.schema!r})", place.pointer)
    for keyword, value in place.schema.items():
        if keyword == "x-guidance" and not place.pointer:
            _check_style(value)
        elif not _is_known(keyword):
            raise _invalid(
                f"keyword '{keyword}' is not enforced",
                place.pointer,
                f"leave it out; enforced: {', '.join(sorted(ENFORCED))}",
            )
    if place.schema.get("enum") == []:
        raise _invalid("'enum' must hold at least one value", place.pointer)
    least, required = place.schema.get("minProperties"), place.schema.get("required", [])
    if isinstance(least, int) and isinstance(required, list) and least > len(set(map(str, required))) + 1:
        raise _invalid(
            f"'minProperties' of {least} is not enforced, for names that are not required may repeat",
            place.pointer,
            "require the properties by name",
        )


def _check_reference(place: Place, places: Mapping[str, Place]) -> None:
    """Refuse a reference to what is no schema by its place, such as a note or a value: nobody has looked at its keywords."""
    reference = place.schema.get("$ref") if isinstance(place.schema, Mapping) else None
    if isinstance(reference, str) and reference.startswith("#/") and unquote(reference[1:]) not in places:
        raise _invalid(
            f"'$ref' must name a schema of this one by its place (got '{reference}')",
            place.pointer,
            "put the schema under '$defs'",
        )


def _is_known(keyword: str) -> bool:
    # By convention what begins with x- is a note; but the parser would act on this one.
    is_note = keyword.startswith("x-") and keyword != "x-guidance"
    return is_note or keyword in ENFORCED or keyword in ANNOTATIONS or keyword in DEFINITIONS


def _check_style(style: Any) -> None:
    unknown = sorted(style.keys() - STYLE) if isinstance(style, Mapping) else [repr(style)]
    if unknown:
        raise _invalid(f"'x-guidance' may hold {', '.join(sorted(STYLE))} (got {', '.join(unknown)})", "")


def _inner(place: Place) -> Iterator[Place]:
    if isinstance(place.schema, bool):
        return
    for keyword, value in place.schema.items():
        pointer = f"{place.pointer}/{keyword}"
        if keyword in ONE_SCHEMA:
            yield Place(value, pointer)
        elif keyword in LISTS_OF_SCHEMAS:
            if not isinstance(value, list):
                raise _invalid(f"'{keyword}' must be a list of schemas (got {value!r})", place.pointer)
            yield from (Place(inner, f"{pointer}/{index}") for index, inner in enumerate(value))
        elif keyword in NAMED_SCHEMAS:
            if not isinstance(value, Mapping):
                raise _invalid(f"'{keyword}' must be an object of schemas (got {value!r})", place.pointer)
            yield from (Place(inner, f"{pointer}/{_escaped(name)}") for name, inner in value.items())


def _escaped(name: str) -> str:
    """Return a name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _invalid(problem: str, pointer: str, way_out: str = "") -> specframe.InvalidGrammar:
    return specframe.InvalidGrammar("json_schema", f"{problem} (in the schema at '{pointer or '/'}')", way_out=way_out)
