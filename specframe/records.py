"""What happened in a generation: a record per round, events, and the statistics that follow from them.

Plain data; knows nothing about how rounds are run. Counters keep apart what is often confused: proposed (offered or drawn),
evaluated (judged), accepted, and emitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import attrs


class DrafterShare(NamedTuple):
    """One drafter's part in a round, in tokens and in seconds."""

    name: str
    num_proposed: int
    num_evaluated: int
    num_accepted: int
    seconds: float


class RoundRecord(NamedTuple):
    """One round. Round 0 is the prefill; its ``num_proposed`` is 0, and ``num_forwards`` counts its chunks.

    ``num_emitted`` counts accepted tokens and the one that followed; ``min_margin`` is the smallest margin of a row that was
    judged (greedy and coupled), else None; ``num_rounding`` counts corrections drawn from q where p and q agree to rounding.
    """

    round_id: int
    drafters: tuple[DrafterShare, ...]
    num_forwards: int
    num_proposed: int
    num_evaluated: int
    num_accepted: int
    num_emitted: int
    min_margin: float | None
    num_rounding: int
    draft_s: float
    forward_s: float
    decide_s: float
    commit_s: float


class Event(NamedTuple):
    """Something that a user may want to know, such as a drafter that was switched off; never token text."""

    round_id: int
    drafter: str
    message: str


@attrs.frozen
class DrafterStats:
    """A drafter's tokens and seconds over a generation."""

    num_proposed: int = 0
    num_evaluated: int = 0
    num_accepted: int = 0
    seconds: float = 0.0

    @property
    def acceptance(self) -> float | None:
        """Accepted over evaluated tokens; None where none was evaluated."""
        return self.num_accepted / self.num_evaluated if self.num_evaluated else None


@attrs.frozen
class Stats:
    """Sums over the rounds of a generation; seconds by phase: prefill, draft, verify, decide, commit, emit."""

    num_rounds: int
    num_target_calls: int
    num_tokens: int
    min_margin: float | None
    num_rounding: int
    drafters: dict[str, DrafterStats]
    seconds: dict[str, float]

    @property
    def total_s(self) -> float:
        """Seconds of all phases; what a reader of the stream does between pieces does not count."""
        return sum(self.seconds.values())

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens per target call."""
        return self.num_tokens / self.num_target_calls if self.num_target_calls else 0.0

    @property
    def num_proposed(self) -> int:
        """Proposed tokens of all drafters."""
        return sum(drafter.num_proposed for drafter in self.drafters.values())

    @property
    def num_accepted(self) -> int:
        """Accepted tokens of all drafters."""
        return sum(drafter.num_accepted for drafter in self.drafters.values())


def summarise(records: Iterable[RoundRecord], *, emit_s: float) -> Stats:
    """Return the statistics of a generation's rounds."""
    rounds = list(records)
    drafters: dict[str, DrafterStats] = {}
    for share in (share for record in rounds for share in record.drafters):
        old = drafters.get(share.name, DrafterStats())
        drafters[share.name] = DrafterStats(
            old.num_proposed + share.num_proposed,
            old.num_evaluated + share.num_evaluated,
            old.num_accepted + share.num_accepted,
            old.seconds + share.seconds,
        )
    margins = [record.min_margin for record in rounds if record.min_margin is not None]
    return Stats(
        num_rounds=len(rounds),
        num_target_calls=sum(record.num_forwards for record in rounds),
        num_tokens=sum(record.num_emitted for record in rounds),
        min_margin=min(margins, default=None),
        num_rounding=sum(record.num_rounding for record in rounds),
        drafters=drafters,
        seconds={
            "prefill": sum(record.forward_s for record in rounds[:1]),
            "draft": sum(record.draft_s for record in rounds),
            "verify": sum(record.forward_s for record in rounds[1:]),
            "decide": sum(record.decide_s for record in rounds),
            "commit": sum(record.commit_s for record in rounds),
            "emit": emit_s,
        },
    )
