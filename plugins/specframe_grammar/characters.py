"""Sets of characters. What a class, a dot or an escape matches is asked of Python's own ``re``, once for each.

So a pattern means exactly what ``re.fullmatch`` says, Unicode classes and case folding included, and no class is parsed
here. A set is its ranges of code points, ascending and apart; surrogates are in none, for they are no text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import cache, lru_cache

Ranges = tuple[tuple[int, int], ...]
"""First and last code points, both included."""

FIRST_SURROGATE, AFTER_SURROGATES, AFTER_UNICODE = 0xD800, 0xE000, 0x110000
_EDGES = frozenset((*range(129), FIRST_SURROGATE, AFTER_SURROGATES, AFTER_UNICODE))
_SPELLED_OUT = re.compile(r"\\[xuUN]|\\[1-7]")  # escapes of characters that the pattern does not hold
_CATEGORY = re.compile(r"\\[dDwWsS]")
_NUM_SURROGATES = AFTER_SURROGATES - FIRST_SURROGATE


@lru_cache(maxsize=512)
def matching(pattern: str, flags: int) -> Ranges:
    """Return what a pattern of one character, such as ``[^a-z]`` or ``\\d``, matches under flags of ``re``."""
    if flags & re.IGNORECASE or _SPELLED_OUT.search(pattern):
        return _scanned(pattern, flags)
    # Where no case is folded, a set can begin or end at a character of its pattern or of a category, and nowhere else.
    starts = {*_EDGES, *map(ord, pattern), *(ord(character) + 1 for character in pattern)}
    if _CATEGORY.search(pattern) and not flags & re.ASCII:
        starts |= _category_edges()
    judge = re.compile(pattern, flags)
    ranges: list[tuple[int, int]] = []
    for start, end in itertools.pairwise(sorted(starts)):
        if not FIRST_SURROGATE <= start < AFTER_SURROGATES and judge.match(chr(start)):
            _append(ranges, start, end - 1)
    return tuple(ranges)


@lru_cache(maxsize=4096)
def matching_literal(character: str, flags: int) -> Ranges:
    """Return what a literal character matches under flags of ``re``: itself, and with IGNORECASE its other cases.

    A lone surrogate is no text, and matches nothing.
    """
    if FIRST_SURROGATE <= ord(character) < AFTER_SURROGATES:
        return ()
    others = re.findall(re.escape(character), _cased_characters(), flags) if flags & re.IGNORECASE else []
    return _ranges_of({ord(character), *map(ord, others)})


def _ranges_of(code_points: Iterable[int]) -> Ranges:
    ranges: list[tuple[int, int]] = []
    for point in sorted(code_points):
        _append(ranges, point, point)
    return tuple(ranges)


def _append(ranges: list[tuple[int, int]], first: int, last: int) -> None:
    """Append a range, joined to the one before where they touch."""
    if ranges and ranges[-1][1] == first - 1:
        first = ranges.pop()[0]
    ranges.append((first, last))


def _scanned(pattern: str, flags: int) -> Ranges:
    """Return what a pattern matches by looking at every character."""
    ranges: list[tuple[int, int]] = []
    for run in re.finditer(f"(?:{pattern})+", _every_character(), flags):
        start, end = run.span()
        if start < FIRST_SURROGATE < end:
            ranges.append((start, FIRST_SURROGATE - 1))
            start = FIRST_SURROGATE
        ranges.append((_code_point(start), _code_point(end - 1)))
    return tuple(ranges)


@cache
def _category_edges() -> frozenset[int]:
    """Return where the characters of a Unicode category begin, and those of none."""
    ranges = (pair for category in (r"\d", r"\w", r"\s") for pair in _scanned(category, re.UNICODE))
    return frozenset(point for first, last in ranges for point in (first, last + 1))


def _code_point(index: int) -> int:
    return index if index < FIRST_SURROGATE else index + _NUM_SURROGATES


@cache
def _every_character() -> str:
    return "".join(map(chr, (*range(FIRST_SURROGATE), *range(AFTER_SURROGATES, AFTER_UNICODE))))


@cache
def _cased_characters() -> str:
    # Only these can match another character's case, and there are few of them.
    return "".join(c for c in _every_character() if c.lower() != c or c.upper() != c)
