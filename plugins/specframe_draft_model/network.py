"""The draft's network: a causal language model with a cache of its own, fed with what it lacks of a context.

Knows ids and rows of logits, and nothing about rounds, laws or the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from specframe import TransformersTarget


class Network:
    """A causal language model and the part of a context that its cache stands for, from ``start`` to ``end``.

    ``target_ids``: the target id of every output column, ``[columns]``, -1 for none; None where column i is id i;
    ``num_embeddings``: the ids below it are those that the model reads. One owner at a time, between ``take`` and
    ``give_back``; what is cached then stays for the next.
    """

    def __init__(self, runner: TransformersTarget, target_ids: torch.Tensor | None = None) -> None:
        self.runner, self.target_ids = runner, target_ids
        self.start = 0
        embeddings: Any = runner.model.get_input_embeddings()
        self.num_embeddings = int(embeddings.weight.shape[0])
        self._cache = runner.cache

    @property
    def end(self) -> int:
        """The position behind the last cached id."""
        return self.start + len(self._cache.ids)

    @property
    def context_limit(self) -> int | None:
        """How many ids the model takes, or None."""
        return self.runner.facts.context_limit

    @property
    def ids(self) -> tuple[int, ...]:
        """The ids that the cache stands for."""
        return tuple(self._cache.ids)

    def take(self) -> None:
        """Become the owner; one that was interrupted before it could give back is none any more."""
        self._cache.abandon()
        self._transaction = self._cache.begin()

    def give_back(self) -> None:
        """Keep what is cached for the next owner."""
        self._transaction.commit_prefix(self._cache.num_provisional)
        self._transaction.finalize()

    def begin(self, prompt_ids: Sequence[int]) -> None:
        """Keep of an earlier context what a prompt begins with; the prompt's last id is always fed again."""
        num_shared = self._shared(0, prompt_ids) if self.start == 0 else 0
        self._transaction.cut_to(num_shared)
        self.start = 0

    def extend(self, ids: Sequence[int], position: int) -> None:
        """Take note that the context from a position behind ``start`` on is ``ids``; what was fed and differs is rolled back.

        The last id stays unfed: the next row is the one after it.
        """
        length = position - self.start
        if length < len(self._cache.ids):
            self._transaction.rollback_to(length + self._shared(length, ids))

    def restart(self, position: int) -> None:
        """Forget everything and begin again at a position of the context."""
        self.give_back()
        self._cache.truncate(0)
        self.take()
        self.start = position

    def release(self) -> None:
        """Forget everything and free the cache, between owners."""
        self.runner.reset()
        self.start = 0

    @torch.inference_mode()
    def feed(self, ids: Sequence[int]) -> torch.Tensor:
        """Feed one or more ids behind the cached ones and return the logits after the last, ``[columns]``, on the host."""
        length, size = len(self._cache.ids), self.runner.prefill_chunk
        try:
            for first in range(0, len(ids), size):
                chunk = ids[first : first + size]
                self._transaction.append_provisional(chunk)
                row = self.runner.forward(chunk, num_rows=1)[0]
        except BaseException:
            self._transaction.rollback_to(length)
            raise
        return row.cpu()

    def _shared(self, length: int, ids: Sequence[int]) -> int:
        """Return how many of ``ids``, less the last, the cache holds behind its first ``length``."""
        cached = self._cache.ids[length : length + max(len(ids) - 1, 0)]
        return next((index for index, token in enumerate(cached) if token != ids[index]), len(cached))
