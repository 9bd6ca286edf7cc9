"""A grammar over ids, for targets and drafters that know no text."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from specframe.errors import GrammarError


class CycleGrammar:
    """Allow one set of ids after another, over and over; a set of one id forces it.

    ``allowed``: the sets, each with at least one id of ``[0, vocab_size)``. The text is complete where a stop id is allowed.
    """

    start = 0

    def __init__(
        self, allowed: Sequence[Collection[int]], *, vocab_size: int, stop_ids: Collection[int] = frozenset()
    ) -> None:
        self._masks = [np.isin(np.arange(vocab_size), list(ids)) for ids in allowed]
        self._is_final = [not set(ids).isdisjoint(stop_ids) for ids in allowed]

    def mask(self, state: int) -> npt.NDArray[np.bool_]:
        """Return which ids may come next, ``[vocab]``."""
        return self._masks[state]

    def advance(self, state: int, token: int) -> int:
        """Return the next state. Raises ``GrammarError`` for an id that is not allowed."""
        if not self._masks[state][token]:
            raise GrammarError(f"id {token} is not allowed in state {state}")
        return (state + 1) % len(self._masks)

    def is_final(self, state: int) -> bool:
        """Tell whether a stop id is allowed."""
        return self._is_final[state]
