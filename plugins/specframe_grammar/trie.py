"""The texts of a vocabulary as a trie in arrays, and the walk that finds which of them a byte machine allows.

Nodes are numbered level by level, and within a level by parent and byte, so that the children of a node are a range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from specframe_grammar.machine import ByteMachine, Indices, States


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
            keys, inverse = np.unique(node[ids] * 256 + flat[offsets[ids] + depth], return_inverse=True)
            parents.append(keys >> 8)
            letters.append(keys & 255)
            node[ids] = num_nodes + inverse
            num_nodes += len(keys)
        self._nodes = node[self.ids]
        self._byte: Indices = np.concatenate([np.zeros(1, dtype=np.intp), *letters])
        num_children = np.bincount(np.concatenate([np.zeros(0, dtype=np.intp), *parents]), minlength=num_nodes)
        self._first_child: Indices = 1 + np.concatenate([[0], np.cumsum(num_children)])

    def allowed(self, machine: ByteMachine, state: int) -> npt.NDArray[np.bool_]:
        """Return which ids lead from a state to a live one, ``[ids]``."""
        is_reached = np.zeros(len(self._byte), dtype=np.bool_)
        for nodes, _ in self._walk(machine, state):
            is_reached[nodes] = True
        mask = np.zeros(self._num_ids, dtype=np.bool_)
        mask[self.ids] = is_reached[self._nodes]
        return mask

    def reached(self, machine: ByteMachine, state: int) -> set[int]:
        """Return the live states that ids lead to."""
        is_end = np.zeros(len(self._byte), dtype=np.bool_)
        is_end[self._nodes] = True
        return {
            reached
            for nodes, states in self._walk(machine, state)
            for reached in machine.numbers(states.at(is_end[nodes]))
        }

    def _walk(self, machine: ByteMachine, state: int) -> Iterator[tuple[Indices, States]]:
        """Yield the live nodes of each level and the states there."""
        states, nodes = machine.states(state), np.zeros(1, dtype=np.intp)
        while len(nodes):
            first, after = self._first_child[nodes], self._first_child[nodes + 1]
            counts = after - first
            skipped = np.cumsum(counts) - counts
            parent = np.repeat(np.arange(len(nodes)), counts)
            nodes = np.arange(len(parent)) + (first - skipped)[parent]
            states, is_live = machine.step(states.at(parent), self._byte[nodes])
            states, nodes = states.at(is_live), nodes[is_live]
            yield nodes, states
