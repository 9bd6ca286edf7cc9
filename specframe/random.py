"""The counter-based RNG contract, version 1.

Every random number is a pure function of the seed and of what it is for; nothing is advanced, so no request, proposal
length or device shifts another's draws. The generator is Philox4x64-10 as ``numpy.random.Philox`` defines it:

    key = numpy.array([seed mod 2**64, VERSION], dtype=uint64)
    word(seed, purpose, sample, where, index) =
        numpy.random.Philox(key=key, counter=[0, where, sample, purpose]).random_raw(index + 1)[index]

Residual verification reads one word per draw: ``where`` is the round, ``index`` the node, and the purpose says which draw.
Coupled verification reads one word per token id: ``where`` is the absolute position, ``index`` the target id.
Integers are the contract (golden vectors in ``tests/``); the float maps below are fixed with them.
"""

from __future__ import annotations

import secrets
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

VERSION = 1
_WORD = (1 << 64) - 1
_WORDS_PER_BLOCK = 4
_WORDS_PER_JUMP = 1000  # a jump to another counter costs as much as so many words in a row


class Purpose(IntEnum):
    """What a draw is for; part of the counter, so that no two draws share a word."""

    DRAFT_SAMPLE = 1
    ACCEPT_UNIFORM = 2
    CORRECTION_SAMPLE = 3
    TARGET_EXTRA = 4
    TARGET_BASELINE = 5
    COUPLED_NOISE = 6


class Random(Protocol):
    """The draws that a generation may make."""

    def uniform(self, purpose: Purpose, round_id: int, node: int) -> float:
        """Return the uniform in [0, 1) of one residual draw."""

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return standard Gumbel noise, ``[len(ids)]`` float64, for target ids at an absolute position.

        ``ids`` ascend.
        """


class CounterRandom:
    """The contract's implementation: keyed by seed and sample, stateless between calls."""

    def __init__(self, seed: int, sample: int = 0) -> None:
        self.seed, self.sample = seed, sample
        # A list would pass through float64 from 2**63 on, and lose the seed's low bits.
        self._generator = np.random.Philox(key=np.array([seed & _WORD, VERSION], dtype=np.uint64))
        self._state = self._generator.state
        self._counter = self._state["state"]["counter"]

    def words(self, purpose: Purpose, where: int, start: int, stop: int) -> npt.NDArray[np.uint64]:
        """Return the contract's words ``start <= index < stop``, ``[stop - start]`` uint64."""
        block, skip = divmod(start, _WORDS_PER_BLOCK)
        self._counter[:] = (block, where, self.sample, purpose)
        self._state["buffer_pos"] = _WORDS_PER_BLOCK  # nothing buffered: the next word comes from the counter
        self._generator.state = self._state
        return self._generator.random_raw(skip + stop - start)[skip:]

    def _words_at(self, purpose: Purpose, where: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
        first, end = int(ids[0]), int(ids[-1]) + 1
        if len(ids) * _WORDS_PER_JUMP < end - first:
            blocks = ids // _WORDS_PER_BLOCK
            starts = np.unique(blocks)
            firsts = [_WORDS_PER_BLOCK * int(block) for block in starts]
            rows = [self.words(purpose, where, start, start + _WORDS_PER_BLOCK) for start in firsts]
            return np.stack(rows)[np.searchsorted(starts, blocks), ids % _WORDS_PER_BLOCK]
        words = self.words(purpose, where, first, end)
        return words if len(words) == len(ids) else words[ids - first]

    def uniform(self, purpose: Purpose, round_id: int, node: int) -> float:
        """Return the top 53 bits of the draw's word as a float in [0, 1)."""
        return int(self.words(purpose, round_id, node, node + 1)[0] >> np.uint64(11)) * 2.0**-53

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return ``-log(-log(u))`` with u the midpoint of the word's top 52 bits, so 0 < u < 1."""
        words = self._words_at(Purpose.COUPLED_NOISE, position, ids)
        uniforms = ((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
        noise: npt.NDArray[np.float64] = -np.log(-np.log(uniforms))
        return noise


def fresh_seed() -> int:
    """Return a new seed from the operating system, below 2**63; recorded in the result, so that it can be repeated."""
    return secrets.randbits(63)
