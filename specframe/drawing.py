"""The core's side of a round: drawing from a drafter's logits, under the target's own pipeline and rule.

Knows rows and rules; nothing about who the drafter is, and nothing about the target's cache.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from specframe.distribution import NotADistribution
from specframe.errors import ProposalError
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Drawn
from specframe.rows import Row
from specframe.verify import Rule


class DraftContext:
    """The core's side of a round; see ``proposal.RoundContext``."""

    def __init__(self, prefix: Prefix, pipeline: Pipeline, rule: Rule, device: str) -> None:
        self._prefix, self._pipeline, self._rule, self._device = prefix, pipeline, rule, device
        self._map: Sequence[int] | torch.Tensor | None = None
        self.ids: Sequence[int] = self._prefix.ids

    def is_allowed(self, token: int) -> bool:
        grammar = self._prefix.grammar
        return grammar is None or bool(grammar.mask(self._prefix.state(len(self._prefix)))[token])

    def push(self, token: int) -> None:
        self._prefix.push(token)

    def draw(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None, node: int) -> Drawn:
        row = Row(self._on_target_ids(logits, ids), self._pipeline, self._prefix, len(self._prefix))
        try:
            return self._rule.draw(row, node)
        except NotADistribution as error:
            raise ProposalError(f"cannot draw from these logits: {error}") from error

    def _on_target_ids(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None) -> torch.Tensor:
        """Return the row over target ids, ``[vocab]``, on the target's device; a copy, so that nobody else writes it."""
        if logits.ndim != 1:
            raise ProposalError(f"draw takes one row of logits, [columns] (got {list(logits.shape)})")
        vocab_size, device = self._pipeline.vocab_size, self._device
        logits = logits.detach()
        if ids is None and len(logits) == vocab_size:
            return logits.to(device, copy=True)
        row = torch.full((vocab_size,), -torch.inf, dtype=logits.dtype, device=device)
        if ids is None:
            width = min(vocab_size, len(logits))
            row[:width] = logits[:width]
            return row
        columns = torch.as_tensor(ids, dtype=torch.int64, device=logits.device)
        if columns.shape != logits.shape:
            raise ProposalError(
                f"'ids' must name a target id for each of the {len(logits)} columns (got {len(columns)})"
            )
        known = (columns >= 0) & (columns < vocab_size)
        if ids is not self._map and len(columns[known].unique()) != int(known.sum()):
            raise ProposalError("'ids' must be injective: two columns name the same target id")
        self._map = ids
        row[columns[known].to(device)] = logits[known].to(device)
        return row
