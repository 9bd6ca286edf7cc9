"""The tokens that rows are conditioned on: authoritative ids, then the round's proposals.

One growing list for a generation; a length names a prefix of it. The device copy of the ids and the grammar's states are
made on demand and only ever extended, so that a row costs nothing for the context before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch

from specframe.errors import GrammarError, described
from specframe.grammar import Grammar, State


class Prefix:
    """Ids ``[0, len)`` of one generation, of which the first ``num_prompt`` are the prompt."""

    def __init__(self, prompt_ids: Sequence[int], grammar: Grammar | None, device: torch.device | str) -> None:
        self.ids = list(prompt_ids)
        self.num_prompt = len(self.ids)
        self.grammar = grammar
        self._device = device
        self._states: list[State] = []
        if grammar is not None:
            with _blamed_on_grammar():
                self._states.append(grammar.start)
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}  # of the positions of this round
        self._buffer: torch.Tensor | None = None
        self._num_buffered = 0

    def __len__(self) -> int:
        return len(self.ids)

    def push(self, token: int) -> None:
        """Append one id."""
        self.ids.append(token)

    def truncate(self, length: int) -> None:
        """Drop every id at ``length`` and beyond."""
        del self.ids[length:]
        del self._states[max(1, length - self.num_prompt + 1) :]
        self._masks = {position: mask for position, mask in self._masks.items() if position == length}
        self._num_buffered = min(self._num_buffered, length)

    def tensor(self, length: int) -> torch.Tensor:
        """Return the first ``length`` ids, ``[1, length]`` int64 on the target's device; a view, not to be written."""
        if self._buffer is None or length > self._buffer.shape[1]:
            grown = torch.empty(1, max(2 * length, 256), dtype=torch.int64, device=self._device)
            if self._buffer is not None:
                grown[:, : self._num_buffered] = self._buffer[:, : self._num_buffered]
            self._buffer = grown
        if length > self._num_buffered:
            new = torch.tensor(self.ids[self._num_buffered : length], dtype=torch.int64)
            self._buffer[0, self._num_buffered : length] = new
            self._num_buffered = length
        return self._buffer[:, :length]

    def state(self, length: int) -> State:
        """Return the grammar's state after the generated ids before ``length``."""
        assert self.grammar is not None
        num_generated = length - self.num_prompt
        while len(self._states) <= num_generated:
            token = self.ids[self.num_prompt + len(self._states) - 1]
            with _blamed_on_grammar():
                self._states.append(self.grammar.advance(self._states[-1], token))
        return self._states[num_generated]

    def mask(self, length: int) -> npt.NDArray[np.bool_]:
        """Return which ids the grammar allows at position ``length``, ``[vocab]``. Raises ``GrammarError``."""
        assert self.grammar is not None
        found = self._masks.get(length)
        if found is None:
            state = self.state(length)
            with _blamed_on_grammar():
                found = np.asarray(self.grammar.mask(state))
            if found.dtype != np.bool_:
                raise GrammarError(f"the grammar's mask must be of bool (got {found.dtype})")
            self._masks[length] = found
        return found

    def certain(self, length: int, vocab_size: int) -> int | None:
        """Return the one id that the grammar allows at position ``length``, or None where it allows another number of them.

        None too for a mask that is not ``[vocab_size]``: its row is processed, which tells.
        """
        if self.grammar is None:
            return None
        mask = self.mask(length)
        return int(mask.argmax()) if mask.shape == (vocab_size,) and np.count_nonzero(mask) == 1 else None

    def is_exhausted(self, length: int) -> bool:
        """Whether the grammar allows no id at position ``length``: its text is complete, or has run into a dead end."""
        return self.grammar is not None and not self.mask(length).any()

    def is_complete(self, length: int) -> bool:
        """Whether the grammar's text is complete at ``length`` and nothing may follow, not even a stop id."""
        if self.grammar is None:
            return False
        state = self.state(length)
        with _blamed_on_grammar():
            is_final = bool(self.grammar.is_final(state))
        return is_final and self.is_exhausted(length)


@contextmanager
def _blamed_on_grammar() -> Iterator[None]:
    try:
        yield
    except (GrammarError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in an extension module too
        raise GrammarError(f"the grammar failed ({described(error)})") from error
