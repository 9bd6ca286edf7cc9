"""Judges of answers: rules that a text keeps or breaks, without a model and without anybody's opinion.

Knows texts only. Whether an answer is good beyond these rules is not for a benchmark of decoding to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from specframe.errors import MissingPackage

_FENCE = re.compile(r"\A```[a-z]*\n(.*?)\n?```\Z", re.DOTALL)


def _texts(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, tuple | list) or not value or not all(isinstance(text, str) for text in value):
        raise ValueError(f"judge '{attribute.name}' must be a list of texts (got {value!r})")


@attrs.frozen(kw_only=True)
class Judge:
    """One rule for an answer; exactly one is given. Raises ``ValueError`` otherwise, and ``TypeError`` for an unknown one.

    ``equals``: the whole answer, but for white space around it and a full stop at its end; ``contains``: texts that all
    stand in it, letter by letter; ``schema``: it is JSON (a Markdown fence around it is allowed) that keeps the JSON Schema,
    true standing for any JSON, and whose references stay within it.
    """

    equals: str | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of(str))
    )
    contains: Sequence[str] | None = attrs.field(default=None, validator=attrs.validators.optional(_texts))
    schema: Mapping[str, Any] | bool | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.instance_of((dict, bool)))
    )

    def __attrs_post_init__(self) -> None:
        given = [rule for rule in (self.equals, self.contains, self.schema) if rule is not None]
        if len(given) != 1:
            raise ValueError("a judge must have exactly one of equals, contains, schema")
        if isinstance(self.schema, dict):
            _check_schema(self.schema)

    def __call__(self, answer: str) -> bool:
        """Tell whether an answer keeps the rule. Raises ``MissingPackage`` where a schema needs ``jsonschema``."""
        if self.equals is not None:
            return answer.strip().removesuffix(".") == self.equals
        if self.contains is not None:
            return all(text in answer for text in self.contains)
        return _is_json(answer.strip(), self.schema)


def _is_json(answer: str, schema: Any) -> bool:
    fenced = _FENCE.match(answer)
    try:
        value = json.loads(fenced[1] if fenced else answer)
    except (ValueError, RecursionError):
        return False
    if schema is True:
        return True
    try:
        import jsonschema
    except ImportError as error:
        raise MissingPackage(
            "a judge with a schema needs jsonschema; install it with: pip install jsonschema"
        ) from error
    try:
        return bool(_validator(jsonschema, schema).is_valid(value))
    except RecursionError:  # of an answer that is nested too deeply to be looked through
        return False


def _check_schema(schema: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for what would end a run when an answer is judged; nothing is checked without jsonschema."""
    try:
        import jsonschema
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012
    except ImportError:
        return
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        resource = DRAFT202012.create_resource(schema)
        resolver = Registry().with_resource("", resource).crawl().resolver()
        for reference in _references(schema):
            resolver.lookup(reference)
        _validator(jsonschema, schema).is_valid({})
    except jsonschema.SchemaError as error:
        raise ValueError(f"judge 'schema' is no JSON Schema: {error.message}") from error
    except Unresolvable as error:
        raise ValueError(f"judge 'schema' must hold what it refers to (got '$ref': {error.ref!r})") from error
    except RecursionError as error:
        raise ValueError("judge 'schema' must not refer to itself without end") from error


def _validator(jsonschema: Any, schema: Any) -> Any:
    """Return what judges by a schema; it asks no network for another."""
    from referencing import Registry

    return jsonschema.Draft202012Validator(schema, registry=Registry())


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from _references(part)
