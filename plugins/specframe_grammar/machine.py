"""The byte machine of a pattern: an automaton over characters, read as UTF-8 one byte at a time.

A state is an integer that stands for (automaton state, UTF-8 node). Where they are many, the two tables are not multiplied
out, so that a Unicode class costs its nodes once and not once for each state.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from specframe import InvalidGrammar
from specframe_grammar import alphabet, automaton, pattern

Indices = npt.NDArray[np.intp]


DEAD = 0
"""The state that no text completes."""

MOST_ROWS = 4_096
"""States up to which all moves are written out; 8 MiB."""


class ByteMachine:
    """Moves over bytes. ``start`` is ``DEAD`` where no text matches."""

    def __init__(self, made: automaton.Automaton, letters: alphabet.Alphabet) -> None:
        self._num_nodes = len(letters.table)
        num_states = len(made.table) * self._num_nodes
        if num_states > automaton.MOST_CELLS:
            raise InvalidGrammar(
                "regex",
                f"{len(made.table):,} states with character classes of {self._num_nodes:,} UTF-8 nodes are too many",
                way_out="use simpler classes, such as [^,] or the flag (?a), or smaller bounds",
            )
        self._num_symbols = letters.num_symbols
        self._moves = made.table.astype(np.intp).ravel()
        self._utf8 = letters.table.astype(np.intp).ravel()
        leads_on = (made.table != automaton.DEAD).astype(np.float32)
        is_live = leads_on @ letters.reach.astype(np.float32).T > 0
        is_live[automaton.DEAD] = False
        is_live[:, alphabet.ROOT] |= made.finals  # between characters a state also lives if it is final
        self._is_live = is_live.ravel()
        self._finals = made.finals
        self.alphabet = frozenset(np.flatnonzero((letters.table != ~automaton.DEAD).any(axis=0)).tolist())
        """The bytes that any text may hold."""
        self.start = made.start * self._num_nodes
        self._rows: Indices | None = None
        if num_states <= MOST_ROWS:
            self._rows = self._moved(np.repeat(np.arange(num_states), 256), np.tile(np.arange(256), num_states))

    def is_final(self, state: int) -> bool:
        """Tell whether a text may end in a state; never inside a character."""
        return state % self._num_nodes == alphabet.ROOT and bool(self._finals[state // self._num_nodes])

    def step(self, states: Indices, letters: Indices) -> Indices:
        """Return where bytes lead from states, ``[n]`` each; ``DEAD`` where no text goes on so."""
        if self._rows is None:
            return self._moved(states, letters)
        reached: Indices = self._rows[states * 256 + letters]
        return reached

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after bytes, ``DEAD`` where no text goes on so."""
        for byte in text:
            if self._rows is not None:
                state = int(self._rows[state * 256 + byte])
            else:
                state = int(self._moved(np.array([state]), np.array([byte]))[0])
        return state

    def next_bytes(self, state: int) -> list[int]:
        """Return the bytes that some text goes on with, ascending."""
        return np.flatnonzero(self.step(np.full(256, state), np.arange(256))).tolist()

    def _moved(self, states: Indices, letters: Indices) -> Indices:
        current, node = np.divmod(states, self._num_nodes)
        found = self._utf8[node * 256 + letters]
        is_whole = found < 0
        node = np.where(is_whole, alphabet.ROOT, found)
        moved = self._moves[current * self._num_symbols + np.where(is_whole, ~found, automaton.DEAD)]
        reached = np.where(is_whole, moved, current) * self._num_nodes + node
        return np.where(self._is_live[reached], reached, DEAD)


def make_machine(tree: pattern.Node) -> ByteMachine:
    """Return the byte machine of a pattern's tree. Raises ``InvalidGrammar`` beyond a bound."""
    letters = alphabet.make_alphabet(automaton.character_sets(tree))
    return ByteMachine(automaton.build(tree, letters.symbols, letters.num_symbols), letters)
