"""Rows of logits in their context: what verification and draft draws read.

Joins a row, the pipeline and the prefix that the row is conditioned on; knows nothing about rounds or drafters.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch

from specframe.distribution import Distribution
from specframe.policy import Pipeline, checked
from specframe.prefix import Prefix
from specframe.verify import Choice


class Row:
    """One row of logits in the context of the prefix's first ``position`` ids; see ``verify.Row``."""

    __slots__ = ("_logits", "_pipeline", "_prefix", "position")

    def __init__(self, logits: torch.Tensor, pipeline: Pipeline, prefix: Prefix, position: int) -> None:
        self._logits, self._pipeline, self._prefix, self.position = logits, pipeline, prefix, position

    def choose(self) -> Choice:
        return self._pipeline.choose(self._logits, self._prefix, self.position)

    def distribution(self) -> Distribution:
        return self._pipeline.distribution(self._logits, self._prefix, self.position)


class CertainRow(NamedTuple):
    """A row that needs no logits: its support is one id."""

    token: int
    position: int
    vocab_size: int

    def choose(self) -> Choice:
        return Choice(self.token, math.inf)

    def distribution(self) -> Distribution:
        return Distribution(np.array([self.token]), np.zeros(1), self.vocab_size)


class ChosenRow(NamedTuple):
    """A row whose argmax came with the block's, in one host synchronisation."""

    choice: Choice
    position: int

    def choose(self) -> Choice:
        return checked(self.choice)

    def distribution(self) -> Distribution:
        raise NotImplementedError("greedy verification reads choices only")
