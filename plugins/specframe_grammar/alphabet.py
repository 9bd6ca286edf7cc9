"""The characters of a pattern as few symbols, and the machine that reads a symbol's characters as UTF-8.

Two characters that every set of a pattern treats alike are one symbol. The machine is shared by all states of the
pattern's automaton: equal tails are one node, overlong forms and surrogates lead nowhere.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from specframe import InvalidGrammar
from specframe_grammar.automaton import DEAD, MOST_CELLS
from specframe_grammar.characters import AFTER_UNICODE, Ranges

ROOT = 0
_DEAD_LEAF = ~DEAD
_LEADS = ((0xC2, 0xE0, 1, 0x80), (0xE0, 0xF0, 2, 0x800), (0xF0, 0xF5, 3, 0x10000))
"""First and last + 1 lead byte, number of bytes that follow, and the least code point of that length."""


@attrs.frozen(eq=False)
class Alphabet:
    """``symbols``: those that make up each set; ``table[node, byte]`` is a node, or ``~symbol`` of a whole character.

    Node ``ROOT`` is between characters.
    """

    symbols: Mapping[Ranges, Sequence[int]]
    num_symbols: int
    table: npt.NDArray[np.int32]

    def reach(self, letters: Collection[int] = range(256)) -> npt.NDArray[np.bool_]:
        """Return which symbols have a character that bytes of ``letters`` make up below a node, ``[nodes, symbols]``."""
        table = self.table[:, sorted(letters)]
        found = np.zeros((len(table), self.num_symbols), dtype=np.bool_)
        # A node is numbered after those below it, and the root before all.
        for node in (*range(1, len(table)), ROOT):
            row = table[node]
            found[node, ~row[row < 0]] = True
            found[node] |= found[np.unique(row[row > 0])].any(axis=0)
        found[:, DEAD] = False
        return found


def make_alphabet(sets: Iterable[Ranges]) -> Alphabet:
    """Return the alphabet of some character sets. Raises ``InvalidGrammar`` beyond a bound."""
    sets = sorted(sets)
    starts, owners = _intervals(sets)
    number: dict[frozenset[int], int] = {frozenset(): DEAD}
    labels = [number.setdefault(frozenset(owner), len(number)) for owner in owners]
    symbols: dict[Ranges, list[int]] = {ranges: [] for ranges in sets}
    for owner, symbol in number.items():
        for index in owner:
            symbols[sets[index]].append(symbol)
    table = _Utf8(starts, labels).table()
    if len(table) * len(number) > MOST_CELLS:
        raise InvalidGrammar(
            "regex",
            f"{len(number):,} kinds of characters with {len(table):,} UTF-8 nodes are too many",
            way_out="use fewer different characters, or classes of them",
        )
    return Alphabet(symbols, len(number), table)


def _intervals(sets: Sequence[Ranges]) -> tuple[list[int], list[set[int]]]:
    """Cut the code points where any set begins or ends; return where each piece starts and which sets hold it."""
    opened: dict[int, set[int]] = {0: set(), AFTER_UNICODE: set()}
    closed: dict[int, set[int]] = {}
    for index, ranges in enumerate(sets):
        for first, last in ranges:
            opened.setdefault(first, set()).add(index)
            closed.setdefault(last + 1, set()).add(index)
            opened.setdefault(last + 1, set())
    starts = sorted(opened)
    owners: list[set[int]] = []
    current: set[int] = set()
    for start in starts:
        current = (current - closed.get(start, set())) | opened[start]
        owners.append(current)
    return starts, owners


class _Utf8:
    """The machine in the making."""

    def __init__(self, starts: Sequence[int], labels: Sequence[int]) -> None:
        self._starts, self._labels = starts, labels
        self._rows: list[list[int]] = [[_DEAD_LEAF] * 256]
        self._known: dict[tuple[int, ...], int] = {}

    def table(self) -> npt.NDArray[np.int32]:
        """Return the whole machine."""
        root = self._rows[ROOT]
        root[:0x80] = [~self._label(point) for point in range(0x80)]
        for first, after, num_following, least in _LEADS:
            mask = (1 << (6 - num_following)) - 1
            for lead in range(first, after):
                root[lead] = self._below((lead & mask) << (6 * num_following), num_following, least)
        return np.array(self._rows, dtype=np.int32)

    def _below(self, point: int, num_following: int, least: int) -> int:
        """Return what the bytes so far lead to: a node, or ``~symbol``; ``point`` is the first character below."""
        width = 1 << (6 * num_following)
        if point + width <= least or point >= AFTER_UNICODE:
            return _DEAD_LEAF
        if num_following == 0:
            return ~self._label(point)
        row = [_DEAD_LEAF] * 256
        step = width >> 6
        first = self._piece(point)
        if self._piece(point + width - 1) == first and point >= least:
            row[0x80:0xC0] = [self._below(point, num_following - 1, least)] * 64  # one symbol throughout
        else:
            row[0x80:0xC0] = [self._below(point + i * step, num_following - 1, least) for i in range(64)]
        if all(entry == _DEAD_LEAF for entry in row):
            return _DEAD_LEAF
        key = tuple(row)
        if key not in self._known:
            self._known[key] = len(self._rows)
            self._rows.append(row)
        return self._known[key]

    def _piece(self, point: int) -> int:
        return bisect.bisect_right(self._starts, point) - 1

    def _label(self, point: int) -> int:
        return self._labels[self._piece(point)]
