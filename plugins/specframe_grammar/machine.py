"""The byte machine of a pattern: an automaton over characters, read as UTF-8 one byte at a time.

A state is an integer: the automaton's state, and in its low bits the UTF-8 node inside a character. The two tables are not
multiplied out, so that a Unicode class costs its nodes once and not once for each state.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specframe import InvalidGrammar
from specframe_grammar import alphabet, automaton, pattern

Indices = npt.NDArray[np.integer[Any]] | np.integer[Any]
"""States, symbols, nodes or bytes: many at once, or one."""


DEAD = 0
"""The state that no text completes."""


class ByteMachine:
    """Moves over bytes. ``start`` is ``DEAD`` where no text matches."""

    def __init__(self, made: automaton.Automaton, letters: alphabet.Alphabet) -> None:
        num_states, num_nodes = len(made.table), len(letters.table)
        self._num_bits = (num_nodes - 1).bit_length()
        if num_states << self._num_bits > automaton.MOST_CELLS:
            raise InvalidGrammar(
                "regex",
                f"{num_states:,} states with character classes of {num_nodes:,} UTF-8 nodes are too many",
                way_out="use simpler classes, such as [^,] or the flag (?a), or smaller bounds",
            )
        self._made, self._letters = made, letters
        # One more symbol stands for a byte inside a character, which leaves the automaton where it is.
        self._num_symbols = letters.num_symbols + 1
        moves = np.concatenate((made.table, np.arange(num_states)[:, None]), axis=1)
        self._moves = (moves.astype(np.intp) * self._num_symbols).ravel()
        is_whole = letters.table < 0
        self._symbol_of = np.where(is_whole, ~letters.table, letters.num_symbols).astype(np.intp).ravel()
        self._node_of = np.where(is_whole, alphabet.ROOT, letters.table).astype(np.intp).ravel()
        self._is_live = self._leading_to(made.table != automaton.DEAD, letters.reach())
        self.start = made.start << self._num_bits

    def is_final(self, state: int) -> bool:
        """Tell whether a text may end in a state; never inside a character."""
        return state & self._node_mask == alphabet.ROOT and bool(self._made.finals[state >> self._num_bits])

    def is_completed_by(self, letters: frozenset[int]) -> bool:
        """Tell whether from every live state a text of these bytes alone leads to a final one."""
        made, reach = self._made, self._letters.reach(letters)
        completed = automaton.reaching(made.table * reach[alphabet.ROOT], made.finals)
        return not (self._is_live & ~self._leading_to(completed[made.table], reach)).any()

    def read(self, nodes: Indices, letters: Indices) -> tuple[Indices, Indices]:
        """Return the UTF-8 nodes and the symbols that bytes lead to from nodes, ``[n]`` each."""
        cells = (nodes << 8) | letters
        return self._node_of[cells], self._symbol_of[cells]

    def parts(self, state: int) -> tuple[int, int]:
        """Return the row of a state's moves, which stands for the automaton's state in ``move``, and its UTF-8 node."""
        return (state >> self._num_bits) * self._num_symbols, state & self._node_mask

    def move(self, rows: Indices, symbols: Indices) -> Indices:
        """Return the rows that symbols lead to from rows, ``[n]`` each; 0 where no text goes on so."""
        moved: Indices = self._moves[rows + symbols]
        return moved

    def joined(self, rows: Indices, nodes: Indices) -> Indices:
        """Return the states of rows and UTF-8 nodes, ``[n]`` each; ``DEAD`` where no text goes on so."""
        states = (rows // self._num_symbols << self._num_bits) | nodes
        live: Indices = states * self._is_live[states]
        return live

    def step(self, states: Indices, letters: Indices) -> Indices:
        """Return where bytes lead from states, ``[n]`` each; ``DEAD`` where no text goes on so."""
        nodes, symbols = self.read(states & self._node_mask, letters)
        return self.joined(self.move((states >> self._num_bits) * self._num_symbols, symbols), nodes)

    def advance(self, state: int, text: bytes) -> int:
        """Return the state after bytes, ``DEAD`` where no text goes on so."""
        for byte in text:
            state = int(self.step(np.intp(state), np.intp(byte)))
        return state

    def next_bytes(self, state: int) -> list[int]:
        """Return the bytes that some text goes on with, ascending."""
        return np.flatnonzero(self.step(np.intp(state), np.arange(256))).tolist()

    @property
    def _node_mask(self) -> int:
        return (1 << self._num_bits) - 1

    def _leading_to(self, is_good: npt.NDArray[np.bool_], reach: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return, by state, whether it is final or some symbol below its UTF-8 node has a good move.

        ``is_good``: ``[automaton's state, symbol]``; ``reach``: ``[node, symbol]``, the symbols that count.
        """
        leads = np.zeros((len(is_good), 1 << self._num_bits), dtype=np.bool_)
        leads[:, : len(reach)] = is_good.astype(np.float32) @ reach.astype(np.float32).T > 0
        leads[:, alphabet.ROOT] |= self._made.finals
        leads[automaton.DEAD] = False
        return leads.ravel()


def make_machine(tree: pattern.Node) -> ByteMachine:
    """Return the byte machine of a pattern's tree. Raises ``InvalidGrammar`` beyond a bound."""
    letters = alphabet.make_alphabet(automaton.character_sets(tree))
    return ByteMachine(automaton.build(tree, letters.symbols, letters.num_symbols), letters)
