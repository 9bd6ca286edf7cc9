"""Random draws from a script, with a log of what they were asked for.

Knows the ``Random`` protocol, and nothing about what the draws decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from specframe.errors import SpecframeError
from specframe.random import Purpose


class ScriptEnded(SpecframeError, LookupError):
    """More draws were asked for than the script holds."""


class UniformKey(NamedTuple):
    """What a uniform was asked for."""

    purpose: Purpose
    round_id: int
    node: int


class GumbelKey(NamedTuple):
    """What Gumbel noise was asked for."""

    position: int
    ids: tuple[int, ...]


class ScriptedRandom:
    """Return the given uniforms and rows of Gumbel noise in order, and log every key in ``keys``.

    A row of noise has one entry per id that is asked for, or covers the vocabulary and is indexed by id. Raises
    ``ScriptEnded`` when the script is over.
    """

    def __init__(self, uniforms: Iterable[float] = (), gumbels: Iterable[Sequence[float]] = ()) -> None:
        self._uniforms, self._gumbels = iter(uniforms), iter(gumbels)
        self.keys: list[UniformKey | GumbelKey] = []

    def uniform(self, purpose: Purpose, round_id: int, node: int) -> float:
        key = UniformKey(purpose, round_id, node)
        value = next(self._uniforms, None)
        if value is None:
            raise ScriptEnded(f"the script holds no uniform for {key}")
        self.keys.append(key)
        return value

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        key = GumbelKey(position, tuple(ids.tolist()))
        row = next(self._gumbels, None)
        if row is None:
            raise ScriptEnded(f"the script holds no Gumbel noise for {key}")
        self.keys.append(key)
        noise = np.asarray(row, dtype=np.float64)
        return noise if len(noise) == len(ids) else noise[ids]
