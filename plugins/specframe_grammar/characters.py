"""Sets of characters. What a class, a dot or an escape matches is asked of Python's own ``re``, once for each.

So a pattern means exactly what ``re.fullmatch`` says, Unicode classes and case folding included, and no class is parsed
here. A set is its ranges of code points, ascending and apart; surrogates are in none, for they are no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache

Ranges = tuple[tuple[int, int], ...]
"""First and last code points, both included."""

FIRST_SURROGATE, AFTER_SURROGATES, AFTER_UNICODE = 0xD800, 0xE000, 0x110000
_NUM_SURROGATES = AFTER_SURROGATES - FIRST_SURROGATE


@lru_cache(maxsize=512)
def matching(pattern: str, flags: int) -> Ranges:
    """Return what a pattern of one character, such as ``[^a-z]`` or ``\\d``, matches under flags of ``re``."""
    runs = re.finditer(f"(?:{pattern})+", _every_character(), flags)
    ranges: list[tuple[int, int]] = []
    for run in runs:
        start, end = run.span()
        if start < FIRST_SURROGATE < end:
            ranges.append((start, FIRST_SURROGATE - 1))
            start = FIRST_SURROGATE
        ranges.append((_code_point(start), _code_point(end - 1)))
    return tuple(ranges)


@lru_cache(maxsize=4096)
def matching_literal(character: str, flags: int) -> Ranges:
    """Return what a literal character matches under flags of ``re``: itself, and with IGNORECASE its other cases."""
    others = re.findall(re.escape(character), _cased_characters(), flags) if flags & re.IGNORECASE else []
    return _ranges_of({ord(character), *map(ord, others)})


def _ranges_of(code_points: Iterable[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for point in sorted(code_points):
        if ranges and ranges[-1][1] == point - 1:
            ranges[-1] = (ranges[-1][0], point)
        else:
            ranges.append((point, point))
    return tuple(ranges)


def _code_point(index: int) -> int:
    return index if index < FIRST_SURROGATE else index + _NUM_SURROGATES


@cache
def _every_character() -> str:
    return "".join(map(chr, (*range(FIRST_SURROGATE), *range(AFTER_SURROGATES, AFTER_UNICODE))))


@cache
def _cased_characters() -> str:
    # Only these can match another character's case, and there are few of them.
    return "".join(c for c in _every_character() if c.lower() != c or c.upper() != c)
