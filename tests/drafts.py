"""A draft network whose rows come from a table: what the draft model does, without the cost of a forward."""

from __future__ import annotations

from types import SimpleNamespace

from specframe.cache import TransactionalCache
from specframe.testing import random_table


class TableRunner:
    """What a network runs, with rows from a table instead of a forward."""

    def __init__(self, width):
        self.cache = TransactionalCache(0)
        self.facts = SimpleNamespace(context_limit=None)
        self._table = random_table(vocab_size=width, seed=2)

    def forward(self, ids, *, num_rows):
        return self._table.row(self.cache.ids)[None]

    def reset(self):
        self.cache.release()
