"""The options of the grammar drafter: pure data, checked when made."""

from __future__ import annotations

from typing import Any

import attrs

from specframe import InvalidStrategy


def _is_bool(instance: Any, attribute: attrs.Attribute[bool], value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidStrategy(f"'{attribute.name}' must be true or false (got {value!r})")


@attrs.frozen
class GrammarOptions:
    """``likely``: also propose what is likely and not forced, as point masses that are verified like any.

    That is the last pieces of forced text, which could merge with what follows, and, where a state of the grammar comes
    again, the id that stood there last time. Raises ``InvalidStrategy``.
    """

    likely: bool = attrs.field(default=True, validator=_is_bool)
