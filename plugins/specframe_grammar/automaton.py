"""From a pattern's tree to a deterministic automaton over character symbols, within bounds.

Thompson's construction, then subsets. Bounds on positions, states and work refuse a pattern before it takes minutes or
gigabytes; they count steps, not seconds, so that a pattern compiles everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np
import numpy.typing as npt

from specframe import InvalidGrammar
from specframe_grammar import pattern
from specframe_grammar.characters import Ranges

MOST_POSITIONS = 50_000
MOST_STATES = 20_000
MOST_CELLS = 20_000_000  # of a table of states by symbols or by characters under way
MOST_WORK = 2_000_000  # positions looked at while subsets are made; some seconds

DEAD = 0
"""The state that nothing leaves, and the symbol that no character has."""


@attrs.frozen(eq=False)
class Automaton:
    """``table[state, symbol]`` is the next state, int32; ``finals[state]`` whether a text may end there.

    Every state but ``DEAD`` reaches a final one. ``start`` is ``DEAD`` where no text matches.
    """

    table: npt.NDArray[np.int32]
    finals: npt.NDArray[np.bool_]
    start: int


def build(tree: pattern.Node, symbols: Mapping[Ranges, Sequence[int]], num_symbols: int) -> Automaton:
    """Return the automaton of a tree, whose character sets are ``symbols``. Raises ``InvalidGrammar`` beyond a bound."""
    network = _Network()
    start = network.add(tree, network.end)
    moves, finals = _subsets(network, start, symbols, num_symbols)
    return _live(moves, finals, num_symbols)


def character_sets(tree: pattern.Node) -> set[Ranges]:
    """Return the distinct character sets of a tree."""
    match tree:
        case pattern.Characters(ranges):
            return {ranges}
        case pattern.Sequence(parts) | pattern.Alternatives(parts):
            return set().union(*map(character_sets, parts))
        case pattern.Repeat(part):
            return character_sets(part)


class _Network:
    """A nondeterministic automaton: a position leads on for a character of its set, or freely."""

    def __init__(self) -> None:
        self.free: list[list[int]] = []
        self.sets: list[Ranges | None] = []
        self.targets: list[int] = []
        self._work = 0
        self.end = self._position()

    def add(self, node: pattern.Node, target: int) -> int:
        """Add a tree that leads to ``target`` and return the position where it begins."""
        match node:
            case pattern.Characters(ranges):
                return self._position(ranges, target)
            case pattern.Sequence(()):  # a position too, so that repeats of nothing are bounded
                return self._position(free=[target])
            case pattern.Sequence(parts):
                for part in reversed(parts):
                    target = self.add(part, target)
                return target
            case pattern.Alternatives(branches):
                return self._position(free=[self.add(branch, target) for branch in branches])
            case pattern.Repeat(part, low, high):
                return self._add_repeat(part, low, high, target)

    def closure(self, positions: Iterable[int]) -> frozenset[int]:
        """Return the positions that wait for a character, and the end, that are reached freely."""
        seen, stack = set(positions), list(positions)
        while stack:
            for position in self.free[stack.pop()]:
                if position not in seen:
                    seen.add(position)
                    stack.append(position)
        self._work += len(seen)
        if self._work > MOST_WORK:
            raise _too_many(f"{MOST_WORK:,} steps of work")
        return frozenset(p for p in seen if self.sets[p] is not None or p == self.end)

    def _add_repeat(self, part: pattern.Node, low: int, high: int | None, target: int) -> int:
        start = target
        if high is None:
            start = self._position(free=[target])
            self.free[start].append(self.add(part, start))
        else:
            for _ in range(high - low):
                start = self._position(free=[self.add(part, start), target])
        for _ in range(low):
            start = self.add(part, start)
        return start

    def _position(self, ranges: Ranges | None = None, target: int = -1, free: Sequence[int] = ()) -> int:
        if len(self.sets) == MOST_POSITIONS:
            raise InvalidGrammar(
                "regex", f"it unfolds to more than {MOST_POSITIONS:,} positions", way_out="use * or smaller bounds"
            )
        self.free.append(list(free))
        self.sets.append(ranges)
        self.targets.append(target)
        return len(self.sets) - 1


def _subsets(
    network: _Network, start: int, symbols: Mapping[Ranges, Sequence[int]], num_symbols: int
) -> tuple[list[dict[int, int]], list[bool]]:
    """Return the moves of every subset of positions by symbol, and which are final."""
    first = network.closure([start])
    known = {first: 1}
    moves: list[dict[int, int]] = [{}, {}]
    finals = [False, network.end in first]
    queue = [first]
    while queue:
        subset = queue.pop()
        targets: dict[int, set[int]] = {}
        for position in subset:
            ranges = network.sets[position]
            for symbol in symbols[ranges] if ranges is not None else ():
                targets.setdefault(symbol, set()).add(network.targets[position])
        for symbol, reached in targets.items():
            closed = network.closure(reached)
            number = known.get(closed)
            if number is None:
                number = known[closed] = len(moves)
                moves.append({})
                finals.append(network.end in closed)
                queue.append(closed)
            moves[known[subset]][symbol] = number
        if len(moves) > MOST_STATES:
            raise _too_many(f"{MOST_STATES:,} states")
        if len(moves) * num_symbols > MOST_CELLS:
            raise _too_many(f"{MOST_CELLS:,} moves")
    return moves, finals


def _too_many(what: str) -> InvalidGrammar:
    return InvalidGrammar(
        "regex",
        f"the automaton takes more than {what}",
        way_out="use smaller bounds, or alternatives that differ in their first characters",
    )


def _live(moves: list[dict[int, int]], finals: list[bool], num_symbols: int) -> Automaton:
    """Return the automaton of the states from which a final one is reached."""
    table = np.zeros((len(moves), num_symbols), dtype=np.int32)
    for state, row in enumerate(moves):
        table[state, list(row)] = list(row.values())
    is_kept = reaching(table, np.array(finals))
    number = np.where(is_kept, np.cumsum(is_kept, dtype=np.int32), DEAD)
    is_kept[DEAD] = True
    return Automaton(number[table[is_kept]], np.array(finals)[is_kept], int(number[1]))


def reaching(table: npt.NDArray[np.int32], finals: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return from which states of a table a final one is reached, ``[states]``."""
    sources: list[list[int]] = [[] for _ in finals]
    states, symbols = np.nonzero(table)
    for state, target in zip(states.tolist(), table[states, symbols].tolist(), strict=True):
        sources[target].append(state)
    found = finals.copy()
    stack = np.flatnonzero(finals).tolist()
    while stack:
        for source in sources[stack.pop()]:
            if not found[source]:
                found[source] = True
                stack.append(source)
    return found
