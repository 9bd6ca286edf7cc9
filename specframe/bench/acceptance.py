"""What became of the proposals of requests, added up. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from specframe.bench.lines import RequestRecord
from specframe.positions import PositionStats


@attrs.frozen
class Acceptance:
    """What became of proposals, in total; ``positions``: by position; ``drafters``: accepted and evaluated tokens of each."""

    num_proposed: int
    num_evaluated: int
    num_accepted: int
    tokens_per_call: float
    positions: tuple[PositionStats, ...]
    drafters: Mapping[str, tuple[int, int]]

    @property
    def share(self) -> float | None:
        """Accepted over evaluated tokens."""
        return self.num_accepted / self.num_evaluated if self.num_evaluated else None


def acceptance(own: Sequence[RequestRecord]) -> Acceptance | None:
    """Add up what became of the proposals of finished requests; None where none was made, or nothing is told of them."""
    num_calls = sum(record.num_target_calls or 0 for record in own)
    drafters: dict[str, tuple[int, int]] = {}
    for record in own:
        for name, stats in record.drafters.items():
            num_accepted, num_evaluated = drafters.get(name, (0, 0))
            drafters[name] = num_accepted + stats.num_accepted, num_evaluated + stats.num_evaluated
    positions = add_positions(record.positions for record in own)
    if not positions or not num_calls:
        return None
    return Acceptance(
        num_proposed=sum(position.num_proposed for position in positions),
        num_evaluated=sum(position.num_evaluated for position in positions),
        num_accepted=sum(position.num_accepted for position in positions),
        tokens_per_call=sum(len(record.token_ids) for record in own) / num_calls,
        positions=positions,
        drafters=drafters,
    )


def add_positions(parts: Iterable[Sequence[PositionStats]]) -> tuple[PositionStats, ...]:
    """Add up counts position by position."""
    rows: list[list[int]] = []
    for part in parts:
        rows += [[0] * len(attrs.fields(PositionStats)) for _ in range(len(part) - len(rows))]
        for row, position in zip(rows, part, strict=False):
            row[:] = [total + count for total, count in zip(row, attrs.astuple(position), strict=True)]
    return tuple(PositionStats(*row) for row in rows)
