"""The core's side of a round: drawing from a drafter's logits, under the target's own pipeline and rule.

Knows rows and rules; nothing about who the drafter is, and nothing about the target's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from specframe.distribution import NotADistribution
from specframe.errors import ProposalError
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Drawn
from specframe.rows import Row
from specframe.verify import Rule


class DraftContext:
    """The core's side of a generation's rounds; see ``proposal.RoundContext``. ``rule`` gives the round's rule."""

    def __init__(self, prefix: Prefix, pipeline: Pipeline, rule: Callable[[], Rule], device: str) -> None:
        self._prefix, self._pipeline, self._rule = prefix, pipeline, rule
        # Rows meet torch processors on the target's device; with none they go to the host at once, and only there.
        self._device = device if pipeline.processors else "cpu"
        self._map: _Map | None = None

    @property
    def ids(self) -> Sequence[int]:
        return self._prefix.ids

    def is_allowed(self, token: int) -> bool:
        return self._prefix.grammar is None or bool(self._prefix.mask(len(self._prefix))[token])

    def is_exhausted(self) -> bool:
        return self._prefix.is_exhausted(len(self._prefix))

    def push(self, token: int) -> None:
        self._prefix.push(token)

    def draw(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None, node: int) -> Drawn:
        row = Row(self._on_target_ids(logits, ids), self._pipeline, self._prefix, len(self._prefix))
        try:
            return self._rule().draw(row, node)
        except NotADistribution as error:
            raise ProposalError(f"cannot draw from these logits: {error}") from error

    def _on_target_ids(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None) -> torch.Tensor:
        """Return the row over target ids, ``[vocab]``; a copy, so that nobody else writes it."""
        if not isinstance(logits, torch.Tensor) or logits.ndim != 1 or not logits.is_floating_point():
            got = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ProposalError(f"draw takes one row of logits, a floating-point tensor [columns] (got {got})")
        vocab_size = self._pipeline.vocab_size
        logits = logits.detach()
        if ids is None and len(logits) == vocab_size:
            return logits.to(self._device, copy=True)
        row = torch.full((vocab_size,), -torch.inf, dtype=logits.dtype, device=self._device)
        if ids is None:
            width = min(vocab_size, len(logits))
            row[:width] = logits[:width]
            return row
        columns, targets = self._checked_map(ids, len(logits))
        logits = logits.to(self._device)
        return row.scatter_(0, targets, logits if len(columns) == len(logits) else logits[columns])

    def _checked_map(self, ids: Sequence[int] | torch.Tensor, num_columns: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the columns that have a target id, and these ids; checked once for a map that is passed again."""
        version = _version(ids)
        if version is not None and self._map is not None and self._map.made_from(ids, version, num_columns):
            return self._map.columns, self._map.targets
        targets = torch.as_tensor(ids, device=self._device)
        if targets.shape != (num_columns,):
            raise ProposalError(
                f"'ids' must name a target id for each of the {num_columns} columns (got {list(targets.shape)})"
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise ProposalError(f"'ids' must hold integer ids (got {targets.dtype})")
        targets = targets.long()
        columns = ((targets >= 0) & (targets < self._pipeline.vocab_size)).nonzero()[:, 0]
        targets = targets[columns]
        if len(targets.unique()) != len(targets):
            raise ProposalError("'ids' must be injective: two columns name the same target id")
        self._map = _Map(ids, version, num_columns, columns, targets)
        return columns, targets


class _Map(NamedTuple):
    """A map that was checked, and what it was made from."""

    ids: Any
    version: int | None
    num_columns: int
    columns: torch.Tensor
    targets: torch.Tensor

    def made_from(self, ids: Any, version: int, num_columns: int) -> bool:
        return self.ids is ids and (self.version, self.num_columns) == (version, num_columns)


def _version(ids: Sequence[int] | torch.Tensor) -> int | None:
    """Return what tells whether a map was written since it was passed last; None for one that does not tell."""
    if isinstance(ids, torch.Tensor):
        return None if ids.is_inference() else ids._version
    return 0 if isinstance(ids, tuple) else None
