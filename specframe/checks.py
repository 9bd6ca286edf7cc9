"""Validators of attrs fields, with specframe's own errors: field, rule and value."""

from __future__ import annotations

import numbers
from typing import Any

import attrs

from specframe.errors import InvalidRequest

MOST_NUMBER = 1e300


def number(low: float, high: float | None = None, *, open_low: bool = False) -> Any:
    """Validate an optional number in an interval."""
    rule = f"must be {'>' if open_low else '>='} {low:g}" + (f" and <= {high:g}" if high is not None else "")

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is None:
            return
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if (
            not is_number
            or value != value
            or value < low
            or (open_low and value == low)
            or (high is not None and value > high)
        ):
            raise InvalidRequest(attribute.name, rule, value)
        if abs(value) > MOST_NUMBER:
            raise InvalidRequest(attribute.name, "must be finite", value)

    return check


def count(low: int) -> Any:
    """Validate an optional integer."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low):
            raise InvalidRequest(attribute.name, f"must be an integer >= {low}", value)

    return check


def one_of(*allowed: str) -> Any:
    """Validate a name."""

    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if value not in allowed:
            raise InvalidRequest(attribute.name, f"must be one of {', '.join(allowed)}", value)

    return check
