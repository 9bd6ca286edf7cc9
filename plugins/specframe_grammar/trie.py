"""The texts of a vocabulary as a trie in arrays, and the walk that finds which of them a byte machine allows.

Nodes are numbered level by level, so that a level's states are made from those of the one before, all at once.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from specframe_grammar.machine import DEAD, ByteMachine, Indices


class Trie:
    """``texts[i]`` is what id i adds to a text; ids with no text are left out. Several ids may have one text."""

    def __init__(self, texts: Sequence[bytes]) -> None:
        self._num_ids = len(texts)
        lengths = np.array([len(text) for text in texts], dtype=np.intp)
        flat = np.frombuffer(b"".join(texts), dtype=np.uint8)
        offsets = np.cumsum(lengths) - lengths
        node = np.zeros(len(texts), dtype=np.intp)  # where each text has come to, the root being 0
        parents: list[Indices] = []
        letters: list[Indices] = []
        num_nodes = 1
        ids = np.flatnonzero(lengths)
        self.ids = ids
        for depth in range(int(lengths.max(initial=0))):
            ids = ids[lengths[ids] > depth]
            keys, inverse = np.unique((node[ids] << 8) + flat[offsets[ids] + depth], return_inverse=True)
            parents.append(keys >> 8)
            letters.append(keys & 255)
            node[ids] = num_nodes + inverse
            num_nodes += len(keys)
        self._nodes = node[self.ids]
        self._parent = np.concatenate([np.zeros(1, dtype=np.intp), *parents])
        self._letter = np.concatenate([np.zeros(1, dtype=np.intp), *letters])
        ends = 1 + np.cumsum([len(level) for level in letters], dtype=np.intp)
        self._levels = list(itertools.pairwise([1, *ends.tolist()]))

    def allowed(self, machine: ByteMachine, state: int) -> npt.NDArray[np.bool_]:
        """Return which ids lead from a state to a live one, ``[ids]``."""
        mask = np.zeros(self._num_ids, dtype=np.bool_)
        mask[self.ids] = self._states(machine, state)[self._nodes] != DEAD
        return mask

    def reached(self, machine: ByteMachine, state: int) -> set[int]:
        """Return the live states that ids lead to."""
        return set(np.unique(self._states(machine, state)[self._nodes]).tolist()) - {DEAD}

    def _states(self, machine: ByteMachine, state: int) -> Indices:
        """Return the state at every node, level by level."""
        states = np.zeros(len(self._parent), dtype=np.intp)
        states[0] = state
        for start, end in self._levels:
            states[start:end] = machine.step(states[self._parent[start:end]], self._letter[start:end])
            if not states[start:end].any():
                break
        return states
