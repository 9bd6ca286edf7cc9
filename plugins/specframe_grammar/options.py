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
    """``held``: also propose the last pieces of forced text, which could merge with what follows.

    They are likely and not certain, and verified like any. Raises ``InvalidStrategy``.
    """

    held: bool = attrs.field(default=True, validator=_is_bool)
