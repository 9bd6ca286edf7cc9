"""The texts of a vocabulary as a trie in arrays, and the walk that finds which of them a byte machine allows.

Nodes are numbered level by level, so that a level's states are made from those of the one before, all at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specframe_grammar.alphabet import ROOT
from specframe_grammar.machine import DEAD, ByteMachine

Array = npt.NDArray[np.intp]


class Trie:
    """``texts[i]`` is what id i adds to a text; ids with no text are left out. Several ids may have one text.

    ``ids[i]`` ends in node ``ends[i]``. ``letters`` and ``parents``: by node, what led to it and from where; ``levels``: the
    nodes of each depth, the root's left out.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        lengths = np.array([len(text) for text in texts], dtype=np.intp)
        flat = np.frombuffer(b"".join(texts), dtype=np.uint8)
        offsets = np.cumsum(lengths) - lengths
        node = np.zeros(len(texts), dtype=np.intp)  # where each text has come to, the root being 0
        parents: list[Array] = []
        letters: list[Array] = []
        num_nodes = 1
        ids = np.flatnonzero(lengths)
        self.num_ids, self.ids = len(texts), ids
        for depth in range(int(lengths.max(initial=0))):
            ids = ids[lengths[ids] > depth]
            keys, inverse = np.unique((node[ids] << 8) + flat[offsets[ids] + depth], return_inverse=True)
            parents.append(keys >> 8)
            letters.append(keys & 255)
            node[ids] = num_nodes + inverse
            num_nodes += len(keys)
        self.ends = node[self.ids]
        self.parents = np.concatenate([np.zeros(1, dtype=np.intp), *parents])
        self.letters = np.concatenate([np.zeros(1, dtype=np.intp), *letters])
        bounds = 1 + np.cumsum([0, *map(len, letters)], dtype=np.intp)
        self.levels = [slice(start, end) for start, end in itertools.pairwise(bounds.tolist())]


class Walk:
    """The ways of a byte machine through a trie.

    Which characters the bytes make up is the same from every state between characters, and found once; from these only the
    automaton moves.
    """

    def __init__(self, trie: Trie, machine: ByteMachine) -> None:
        self._trie, self._machine = trie, machine
        nodes = np.zeros(len(trie.letters), dtype=np.intp)
        self._symbols = np.zeros(len(trie.letters), dtype=np.int32)
        for level in trie.levels:
            nodes[level], self._symbols[level] = machine.read(nodes[trie.parents[level]], trie.letters[level])
        ends = nodes[trie.ends]
        self._inside = np.flatnonzero(ends != ROOT)  # of the trie's ids, those that end inside a character
        self._inside_nodes = ends[self._inside]

    def allowed(self, state: int) -> npt.NDArray[np.bool_]:
        """Return which ids lead from a state to a live one, ``[ids]``."""
        row, node = self._machine.parts(state)
        if node == ROOT:
            rows = self._walked(row, lambda rows, level: self._machine.move(rows, self._symbols[level]))
            is_live = rows != DEAD
            is_live[self._inside] = self._machine.joined(rows[self._inside], self._inside_nodes) != DEAD
        else:
            is_live = self._states(state) != DEAD
        mask = np.zeros(self._trie.num_ids, dtype=np.bool_)
        mask[self._trie.ids] = is_live
        return mask

    def reached(self, state: int) -> set[int]:
        """Return the live states that ids lead to."""
        return set(np.unique(self._states(state)).tolist()) - {DEAD}

    def _states(self, state: int) -> Array:
        """Return the state that each of the trie's ids leads to."""
        return self._walked(state, lambda states, level: self._machine.step(states, self._trie.letters[level]))

    def _walked(self, root: int, step: Callable[[Array, slice], Any]) -> Array:
        """Return what each of the trie's ids leads to, level by level from what stands for the parents."""
        states = np.zeros(len(self._trie.parents), dtype=np.intp)
        states[0] = root
        for level in self._trie.levels:
            states[level] = step(states[self._trie.parents[level]], level)
            if not states[level].any():
                break
        ends: Array = states[self._trie.ends]
        return ends
