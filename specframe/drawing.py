"""The core's side of a round: drawing from a drafter's logits, under the target's own pipeline and rule.

Knows rows and rules; nothing about who the drafter is, and nothing about the target's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from specframe.distribution import NotADistribution
from specframe.errors import ProposalError
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Drawn
from specframe.rows import Row
from specframe.verify import Greedy, Rule


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
        if not isinstance(logits, torch.Tensor) or logits.ndim != 1 or not logits.is_floating_point():
            got = f"{logits.dtype} {list(logits.shape)}" if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise ProposalError(f"draw takes one row of logits, a floating-point tensor [columns] (got {got})")
        rule = self._rule()
        if isinstance(rule, Greedy) and self._pipeline.is_plain(self._prefix):
            token = self._likeliest(logits, ids)
            if token is not None:
                return Drawn(token, None)
        row = Row(self._on_target_ids(logits, ids), self._pipeline, self._prefix, len(self._prefix))
        try:
            return rule.draw(row, node)
        except NotADistribution as error:
            raise ProposalError(f"cannot draw from these logits: {error}") from error

    def _likeliest(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None) -> int | None:
        """Return the likeliest id of a row on the host that nothing changes, lowest of equals, and copy nothing.

        None where that cannot be told by the columns alone, or the row is none.
        """
        if logits.device.type != "cpu":
            return None
        columns = logits.detach()
        if ids is None:
            columns, targets = columns[: self._pipeline.vocab_size], None
        else:
            known = self._checked_map(ids, len(logits))
            if not known.is_ascending:
                return None
            targets = known.targets
        if not len(columns):
            return None
        scores = (columns if columns.dtype in (torch.float32, torch.float64) else columns.float()).numpy()
        place = int(scores.argmax())  # the first NaN, where there is one
        if not math.isfinite(scores[place]):
            return None
        return place if targets is None else int(targets[place])

    def _on_target_ids(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None) -> torch.Tensor:
        """Return the row over target ids, ``[vocab]``; a copy, so that nobody else writes it."""
        vocab_size = self._pipeline.vocab_size
        logits = logits.detach()
        if ids is None and len(logits) == vocab_size:
            return logits.to(self._device, copy=True)
        row = torch.full((vocab_size,), -torch.inf, dtype=logits.dtype, device=self._device)
        if ids is None:
            width = min(vocab_size, len(logits))
            row[:width] = logits[:width]
            return row
        known, logits = self._checked_map(ids, len(logits)), logits.to(self._device)
        return row.scatter_(0, known.targets, logits if len(known.columns) == len(logits) else logits[known.columns])

    def _checked_map(self, ids: Sequence[int] | torch.Tensor, num_columns: int) -> _Map:
        """Return what is known of a map of columns to target ids; checked once for one that is passed again."""
        version = _version(ids)
        if version is not None and self._map is not None and self._map.made_from(ids, version, num_columns):
            return self._map
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
        is_ascending = len(targets) == num_columns and bool((targets.diff() > 0).all())
        self._map = _Map(ids, version, num_columns, columns, targets, is_ascending)
        return self._map


class _Map(NamedTuple):
    """The columns that have a target id, and these ids, and what that was made from.

    ``is_ascending``: every column has an id, larger ones later.
    """

    ids: Any
    version: int | None
    num_columns: int
    columns: torch.Tensor
    targets: torch.Tensor
    is_ascending: bool

    def made_from(self, ids: Any, version: int, num_columns: int) -> bool:
        return self.ids is ids and (self.version, self.num_columns) == (version, num_columns)


def _version(ids: Sequence[int] | torch.Tensor) -> int | None:
    """Return what tells whether a map was written since it was passed last; None for one that does not tell."""
    if isinstance(ids, torch.Tensor):
        return None if ids.is_inference() else ids._version
    return 0 if isinstance(ids, tuple) else None
