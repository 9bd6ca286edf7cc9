"""The byte machine of a pattern: an automaton over characters, read as UTF-8 one byte at a time.

A state is (automaton state, UTF-8 node); it is one integer outside this module. The two tables are never multiplied out, so
that a Unicode class costs its nodes once and not once for each state.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specframe import InvalidGrammar
from specframe_grammar import alphabet, automaton, pattern

Indices = npt.NDArray[np.intp]


class States(NamedTuple):
    """Several states at once: ``automaton`` and ``node``, ``[n]``."""

    automaton: Indices
    node: Indices

    def at(self, index: Indices | npt.NDArray[np.bool_]) -> States:
        """Return the states at an index or under a mask."""
        return States(self.automaton[index], self.node[index])


class ByteMachine:
    """Moves over bytes. A state is live if some text completes it; ``start`` is None where no text matches."""

    def __init__(self, made: automaton.Automaton, letters: alphabet.Alphabet) -> None:
        self._num_nodes = len(letters.table)
        if len(made.table) * self._num_nodes > automaton.MOST_CELLS:
            raise InvalidGrammar(
                "regex",
                f"{len(made.table):,} states with character classes of {self._num_nodes:,} UTF-8 nodes are too many",
                way_out="use simpler classes, such as [^,] or the flag (?a), or smaller bounds",
            )
        self._num_symbols = letters.num_symbols
        self._moves = made.table.astype(np.intp).ravel()
        self._utf8 = letters.table.astype(np.intp).ravel()
        leads_on = (made.table != automaton.DEAD).astype(np.float32)
        self._is_live = (leads_on @ letters.reach.astype(np.float32).T > 0).ravel()
        self._is_live[: self._num_nodes] = False
        # Between characters a state also lives if it is final.
        self._is_live[:: self._num_nodes] |= made.finals
        self._finals = made.finals
        self.alphabet = frozenset(np.flatnonzero((letters.table != ~automaton.DEAD).any(axis=0)).tolist())
        """The bytes that any text may hold."""
        self.start = made.start * self._num_nodes if made.start != automaton.DEAD else None

    def is_final(self, state: int) -> bool:
        """Tell whether a text may end in a state; never inside a character."""
        node = state % self._num_nodes
        return node == alphabet.ROOT and bool(self._finals[state // self._num_nodes])

    def is_between(self, state: int) -> bool:
        """Tell whether a state is between characters."""
        return state % self._num_nodes == alphabet.ROOT

    def states(self, state: int) -> States:
        """Return one state as an array of one."""
        return States(*(np.array([part], dtype=np.intp) for part in divmod(state, self._num_nodes)))

    def numbers(self, states: States) -> set[int]:
        """Return states as integers, each once."""
        return set(np.unique(states.automaton * self._num_nodes + states.node).tolist())

    def step(self, states: States, byte: Indices) -> tuple[States, npt.NDArray[np.bool_]]:
        """Return where bytes lead from states, ``[n]``, and which of them are live."""
        found = self._utf8[states.node * 256 + byte]
        is_whole = found < 0
        node = np.where(is_whole, alphabet.ROOT, found)
        moved = self._moves[states.automaton * self._num_symbols + np.where(is_whole, ~found, automaton.DEAD)]
        reached = States(np.where(is_whole, moved, states.automaton), node)
        return reached, self._is_live[reached.automaton * self._num_nodes + node]

    def advance(self, state: int, text: bytes) -> int | None:
        """Return the state after bytes, or None where they lead to no live one."""
        current, node = divmod(state, self._num_nodes)
        for byte in text:
            found = int(self._utf8[node * 256 + byte])
            if found < 0:
                current, node = int(self._moves[current * self._num_symbols + ~found]), alphabet.ROOT
            else:
                node = found
            if not self._is_live[current * self._num_nodes + node]:
                return None
        return current * self._num_nodes + node

    def next_bytes(self, state: int) -> Indices:
        """Return the bytes that lead to a live state, ascending."""
        current, node = divmod(state, self._num_nodes)
        every = States(np.full(256, current), np.full(256, node))
        return np.flatnonzero(self.step(every, np.arange(256))[1])


def make_machine(tree: pattern.Node) -> ByteMachine:
    """Return the byte machine of a pattern's tree. Raises ``InvalidGrammar`` beyond a bound."""
    letters = alphabet.make_alphabet(automaton.character_sets(tree))
    return ByteMachine(automaton.build(tree, letters.symbols, letters.num_symbols), letters)
