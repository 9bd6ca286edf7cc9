"""An index of n-grams over one growing list of token ids.

Knows nothing about rounds, requests or text. The work per token and per lookup is a number of dict operations that
depends on the n-gram sizes alone, never on how long the list is.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_AGREEMENT = 32
"""A match is measured no further than this: longer ones are trusted alike, and a lookup stays cheap."""


_NEAR = 16  # positions around a source that is being copied; an edit of it is rarely longer


class Match(NamedTuple):
    """An earlier occurrence of the end: ``num_ids`` agree (at most 32), and what followed stands at ``next_pos``."""

    num_ids: int
    next_pos: int


def count_agreeing(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many ids at the ends of two sequences agree."""
    pairs = map(operator.eq, reversed(left), reversed(right))
    return sum(1 for _ in itertools.takewhile(bool, pairs))


class NgramIndex:
    """Find where the end of a token list occurred before.

    An n-gram is entered once the token after it is known, with that token's position, so the end of the list never
    finds itself. At most one entry per token and n-gram size.
    """

    def __init__(self, min_ngram: int, max_ngram: int) -> None:
        self._ids: list[int] = []
        # Longest first, the order of lookup. Tuples cannot collide, and zip makes them without a Python loop.
        self._tables: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in range(max_ngram, min_ngram - 1, -1)}
        self._num_tail_ids = max(max_ngram, MAX_AGREEMENT)

    def __len__(self) -> int:
        return len(self._ids)

    def tail(self, provisional: Sequence[int] = ()) -> list[int]:
        """Return the last ids, as many as a match is measured by, and the provisional ones."""
        return [*self._ids[-self._num_tail_ids :], *provisional]

    def extend(self, ids: Sequence[int]) -> None:
        """Append token ids and enter the n-grams that they follow."""
        num_before = len(self._ids)
        self._ids.extend(ids)
        for n, table in self._tables.items():
            first_pos = max(0, num_before - n)
            window = self._ids[first_pos:]
            ngrams = zip(*(window[i:] for i in range(n)), strict=False)
            table.update(zip(ngrams, range(first_pos + n, len(self._ids)), strict=False))

    def find(self, provisional: Sequence[int] = (), *, near: int | None = None) -> Match | None:
        """Return the longest n-gram match of the end; None when even the shortest has none.

        Of matches of one length the nearest to ``near`` wins, if one continues within 16 positions of it, else the most
        recent. ``provisional`` ids count as if appended, but are not entered: they may be rejected. Each of them costs one
        comparison per n-gram size.
        """
        tail = self.tail(provisional)
        num_known = len(tail) - len(provisional)
        for n, table in self._tables.items():
            suffix = tail[-n:]
            for end in range(len(tail) - 1, max(num_known, n) - 1, -1):
                if tail[end - n : end] == suffix:
                    num_agreeing = count_agreeing(tail[:end], tail[-MAX_AGREEMENT:])
                    return Match(max(n, num_agreeing), len(self._ids) - num_known + end)
            next_pos = table.get(tuple(suffix))
            if next_pos is not None:
                next_pos = self._nearest(suffix, near, next_pos)
                found = self._ids[max(0, next_pos - MAX_AGREEMENT) : next_pos]
                return Match(max(n, count_agreeing(found, tail)), next_pos)
        return None

    def _nearest(self, ngram: list[int], near: int | None, most_recent: int) -> int:
        """Return the position after the occurrence of an n-gram that is nearest to ``near``, or the most recent one's."""
        if near is None or near == most_recent:
            return most_recent
        for distance in range(_NEAR + 1):
            for end in (near - distance, near + distance):
                if len(ngram) <= end < len(self._ids) and self._ids[end - len(ngram) : end] == ngram:
                    return end
        return most_recent

    def copy(self, next_pos: int, provisional: Sequence[int] = ()) -> Iterator[int]:
        """Yield the ids from a position on, without end.

        Past the last one come those just yielded (the overlap copy of LZ77), so repetition goes on repeating.
        """
        tail = list(provisional)
        for pos in itertools.count(next_pos):
            token = self._ids[pos] if pos < len(self._ids) else tail[pos - len(self._ids)]
            tail.append(token)
            yield token
