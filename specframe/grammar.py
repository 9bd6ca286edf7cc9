"""The grammar protocol: a pure state machine whose mask is part of the target's declared distribution.

Knows nothing about any grammar language. Its place in the pipeline is after the caller's processors and before
temperature (``policy.py``); row i of a block sees the state after ``proposal[:i]``.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

State = Hashable


class Grammar(Protocol):
    """What a grammar engine gives the core. All methods are pure: the same arguments give the same answer."""

    @property
    def start(self) -> State:
        """The state before the first generated token."""

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        """Return which ids may come next, ``[logits width]`` bool; stop ids are allowed exactly in final states.

        The caller does not write into it, so that it may be cached per state.
        """

    def advance(self, state: State, token: int) -> State:
        """Return the state after an allowed token."""

    def is_final(self, state: State) -> bool:
        """Tell whether the text so far is complete."""
