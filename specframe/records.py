"""What happened in a generation: a record per round, events, and the statistics that follow from them.

Plain data; knows nothing about how rounds are run. Counters keep apart what is often confused: proposed (offered or drawn),
evaluated (judged), accepted, kept (part of the output), and emitted (kept, and the target's own token).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

import attrs

from specframe.positions import PositionStats, by_position

EventCode = Literal[
    "cache-forgotten",
    "context-limit",
    "drafter-exhausted",
    "drafter-failed",
    "drafter-late",
    "kernel-lowered",
    "no-speculation",
    "other",
]
EVENT_CODES: tuple[str, ...] = get_args(EventCode)


class DrafterShare(NamedTuple):
    """One drafter's part in a round, in tokens and in seconds.

    ``limit``: how many tokens it was allowed; ``start``: the index of its first one in the round's proposal; ``propose_s``:
    what proposing took of ``seconds``; ``entropies``: of the laws of its evaluated tokens, in nats, None for an offered one;
    empty where none was drawn from a law, or where they are not kept (``Engine(keep_entropies=True)``).
    """

    name: str
    limit: int
    start: int
    num_proposed: int
    num_evaluated: int
    num_accepted: int
    num_kept: int
    propose_s: float
    seconds: float
    entropies: tuple[float | None, ...] = ()


class RoundRecord(NamedTuple):
    """One round. Round 0 is the prefill; its ``num_proposed`` is 0, and ``num_forwards`` counts its chunks.

    ``num_emitted`` counts kept tokens and the target's own that followed, if one did; ``min_margin`` is the smallest margin of
    a row that was judged (greedy and coupled), else None; ``num_rounding`` counts corrections drawn from q where p and q
    agree to rounding.

    Seconds, in this order: ``draft_s``, until the proposal was there, workers waited for; ``forward_s``, until the target's
    call was back; ``sync_s``, until a device had computed its rows and the host had what is read of them at once, next to
    nothing where the host computes; ``decide_s``, judging and drawing the target's own token, the correction if one was
    rejected; ``commit_s``, committing what stands and rolling back the rest, in the target's cache and with the drafters,
    which is one call of each; ``emit_s``, text and log-probabilities. What a reader of the stream does is in none of them.
    """

    round_id: int
    drafters: tuple[DrafterShare, ...]
    num_forwards: int
    num_proposed: int
    num_evaluated: int
    num_accepted: int
    num_kept: int
    num_emitted: int
    min_margin: float | None
    num_rounding: int
    draft_s: float
    forward_s: float
    sync_s: float
    decide_s: float
    commit_s: float
    emit_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the round, all phases together."""
        return self.draft_s + self.forward_s + self.sync_s + self.decide_s + self.commit_s + self.emit_s


class Event(NamedTuple):
    """Something that a user may want to know, such as a drafter that was switched off; never token text.

    ``code``: what kind of thing it is, for what may hold no message, such as a receipt.
    """

    round_id: int
    drafter: str
    message: str
    code: EventCode = "other"


@attrs.frozen
class DrafterStats:
    """A drafter's tokens and seconds over a generation.

    ``positions``: what became of its first, second, ... token of a round; ``entropies``: of each law that an evaluated
    token was drawn from, in nats, and whether the token was accepted.
    """

    num_proposed: int = 0
    num_evaluated: int = 0
    num_accepted: int = 0
    seconds: float = 0.0
    positions: tuple[PositionStats, ...] = ()
    entropies: tuple[tuple[float, bool], ...] = attrs.field(default=(), repr=False)

    @property
    def acceptance(self) -> float | None:
        """Accepted over evaluated tokens; None where none was evaluated."""
        return self.num_accepted / self.num_evaluated if self.num_evaluated else None


@attrs.frozen
class Stats:
    """Sums over the rounds of a generation; seconds by phase: prefill, draft, verify, sync, decide, commit, emit.

    The phases are those of ``RoundRecord``; prefill is the ``forward_s`` of round 0, verify that of the others.
    ``first_token_s``: seconds of round 0; ``draft_prefill_s``: of those of drafting, what the first proposal took longer than
    others (see there); ``positions``: what became of the first, second, ... token of a proposal, whoever made it.
    """

    num_rounds: int
    num_target_calls: int
    num_tokens: int
    min_margin: float | None
    num_rounding: int
    drafters: dict[str, DrafterStats]
    seconds: dict[str, float]
    first_token_s: float = 0.0
    draft_prefill_s: float = 0.0
    positions: tuple[PositionStats, ...] = ()

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


def check_counts(record: RoundRecord) -> None:
    """Assert the identities between a round's counters; a figure that breaks one describes something else."""
    num_rejected = record.num_evaluated - record.num_accepted
    num_own = record.num_emitted - record.num_kept
    assert 0 <= record.num_kept <= record.num_accepted <= record.num_evaluated <= record.num_proposed, record
    assert num_rejected <= num_own <= 1, record  # a rejected token is replaced; an accepted one may end the output
    for name in ("num_proposed", "num_evaluated", "num_accepted", "num_kept"):
        assert sum(getattr(share, name) for share in record.drafters) == getattr(record, name), (name, record)


def summarise(records: Iterable[RoundRecord]) -> Stats:
    """Return the statistics of a generation's rounds."""
    rounds = list(records)
    shares: dict[str, list[DrafterShare]] = {}
    for record in rounds:
        check_counts(record)
        for share in record.drafters:
            shares.setdefault(share.name, []).append(share)
    margins = [record.min_margin for record in rounds if record.min_margin is not None]
    return Stats(
        num_rounds=len(rounds),
        num_target_calls=sum(record.num_forwards for record in rounds),
        num_tokens=sum(record.num_emitted for record in rounds),
        min_margin=min(margins, default=None),
        num_rounding=sum(record.num_rounding for record in rounds),
        drafters={name: _drafter_stats(parts) for name, parts in shares.items()},
        seconds={
            "prefill": sum(record.forward_s for record in rounds[:1]),
            "draft": sum(record.draft_s for record in rounds),
            "verify": sum(record.forward_s for record in rounds[1:]),
            "sync": sum(record.sync_s for record in rounds),
            "decide": sum(record.decide_s for record in rounds),
            "commit": sum(record.commit_s for record in rounds),
            "emit": sum(record.emit_s for record in rounds),
        },
        first_token_s=sum(record.seconds for record in rounds[:1]),
        draft_prefill_s=draft_prefill_s((record.num_proposed, record.draft_s) for record in rounds),
        positions=by_position(rounds),
    )


def draft_prefill_s(rounds: Iterable[tuple[int, float]]) -> float:
    """Return what the first proposal took to draft beyond the median of those of its length, which is a draft's prefill.

    ``rounds``: how many tokens each proposed, and its seconds of drafting. A draft reads the prompt as it is first asked, in no
    call of its own.
    """
    drafted = [(num_proposed, seconds) for num_proposed, seconds in rounds if num_proposed]
    if not drafted:
        return 0.0
    length, first_s = drafted[0]
    return max(first_s - statistics.median(seconds for num_proposed, seconds in drafted if num_proposed == length), 0.0)


def _drafter_stats(shares: list[DrafterShare]) -> DrafterStats:
    return DrafterStats(
        num_proposed=sum(share.num_proposed for share in shares),
        num_evaluated=sum(share.num_evaluated for share in shares),
        num_accepted=sum(share.num_accepted for share in shares),
        seconds=sum(share.seconds for share in shares),
        positions=by_position(shares),
        entropies=tuple(
            (entropy, index < share.num_accepted)
            for share in shares
            for index, entropy in enumerate(share.entropies)
            if entropy is not None
        ),
    )
