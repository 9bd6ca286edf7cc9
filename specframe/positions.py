"""What became of proposed tokens, position by position: survival, acceptance and where proposals break.

Counts only; knows nothing about rounds, drafters or tokens. Position i is the i-th token, from 1, of what is counted: of a
round's whole proposal, or of one drafter's part in it. Source: the report's "Cost model, scheduling, grammar, and draft
selection" for S_i and a_i.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import attrs


class Counted(Protocol):
    """Consecutive tokens of a proposal; each number counts the first ones."""

    @property
    def num_proposed(self) -> int:
        """How many there are."""

    @property
    def num_evaluated(self) -> int:
        """How many were judged: the accepted ones, and the rejected one if there is one."""

    @property
    def num_accepted(self) -> int:
        """How many stood."""

    @property
    def num_kept(self) -> int:
        """How many became part of the output."""


@attrs.frozen
class PositionStats:
    """What became of the tokens at one position.

    ``num_decided``: of the proposed ones, those whose fate the tokens up to here decided, by all standing or by one failing;
    the others came after another drafter's rejected token, or after the end of the output.
    """

    num_proposed: int
    num_decided: int
    num_evaluated: int
    num_accepted: int
    num_kept: int

    @property
    def num_rejected(self) -> int:
        """How many proposals broke exactly here."""
        return self.num_evaluated - self.num_accepted

    @property
    def acceptance(self) -> float | None:
        """a_i, the share that stands among those whose predecessors stand; None where none was judged."""
        return self.num_accepted / self.num_evaluated if self.num_evaluated else None

    @property
    def survival(self) -> float | None:
        """S_i, the share of which all tokens up to here stand, among the proposals that reached this position.

        Where all proposals are equally long it is the product of a_1 to a_i. None where nothing was decided.
        """
        return self.num_accepted / self.num_decided if self.num_decided else None


def by_position(parts: Iterable[Counted]) -> tuple[PositionStats, ...]:
    """Return the sums over parts of proposals, one entry for each position that was proposed."""
    rows: list[list[int]] = []
    for part in parts:
        rows += [[0] * 5 for _ in range(part.num_proposed - len(rows))]
        is_broken = part.num_evaluated > part.num_accepted
        num_decided = part.num_proposed if is_broken else part.num_accepted
        counts = (part.num_proposed, num_decided, part.num_evaluated, part.num_accepted, part.num_kept)
        for index in range(part.num_proposed):
            for column, count in enumerate(counts):
                rows[index][column] += index < count
    return tuple(PositionStats(*row) for row in rows)
