"""Masks by state: made once, kept packed, the least recently used forgotten beyond a bound of bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable

import numpy as np
import numpy.typing as npt

Mask = npt.NDArray[np.bool_]

MOST_BYTES = 64 * 1024 * 1024
"""Of one grammar's packed masks: 10,000 states at 49,000 ids, 2,000 at 262,000."""


def most_masks(num_ids: int, most_bytes: int = MOST_BYTES) -> int:
    """Return how many packed masks a grammar keeps."""
    return max(1, most_bytes // max(1, num_ids // 8))


class Masks:
    """The masks of a grammar's states, ``[ids]`` bool each."""

    def __init__(self, num_ids: int, most_bytes: int = MOST_BYTES) -> None:
        self._num_ids = num_ids
        self._most = most_masks(num_ids, most_bytes)
        self._packed: OrderedDict[Hashable, npt.NDArray[np.uint8]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, state: Hashable, make: Callable[[], Mask]) -> Mask:
        """Return the mask of a state, made by ``make`` if it is not known."""
        packed = self._packed.get(state)
        if packed is not None:
            self._packed.move_to_end(state)
            return np.unpackbits(packed, count=self._num_ids).view(np.bool_)
        mask = make()
        self._packed[state] = np.packbits(mask)
        if len(self._packed) > self._most:
            self._packed.popitem(last=False)
        return mask
