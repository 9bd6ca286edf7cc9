"""Repeating a run from its receipt: what the receipt decides, and where the two runs part.

Knows receipts and length policies; nothing about engines. Lengths saw wall time, and a drafter may have failed for reasons of
its day: a replay takes both from the receipt, so that its draws are asked for as they were.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from specframe.errors import InvalidReceipt, InvalidRequest
from specframe.receipt import Receipt, Round
from specframe.records import RoundRecord

if TYPE_CHECKING:
    from specframe.stream import Result

_COUNTS = ("num_proposed", "num_evaluated", "num_accepted", "num_kept")


class Difference(NamedTuple):
    """Where two runs part. ``round_id`` is None for what holds for a run as a whole; ``field`` is a dotted path."""

    round_id: int | None
    field: str
    then: Any
    now: Any


@attrs.frozen
class Replay:
    """What came of a replay.

    ``receipt``: the new run's; ``inputs``: in what it was asked something else, or of another model; ``rounds``: the first
    difference between rounds, if any; ``outcome``: in what it ended otherwise; ``circumstances``: machine, versions
    and products, which may differ without harm. ``result`` is None where the run failed as the first one did.
    """

    receipt: Receipt
    inputs: tuple[Difference, ...]
    rounds: Difference | None
    outcome: tuple[Difference, ...]
    circumstances: tuple[Difference, ...]
    result: Result | None = attrs.field(default=None, repr=False)

    @property
    def first(self) -> Difference | None:
        """The first difference that counts, None where the run repeated itself."""
        found = [*self.inputs, *([self.rounds] if self.rounds is not None else []), *self.outcome]
        return found[0] if found else None

    @property
    def is_same(self) -> bool:
        """Whether it is the same run, round by round."""
        return self.first is None


class ReplayedLengths:
    """A length policy that allows what a receipt says was allowed, and no more than was given where a drafter failed.

    ``labels``: what the receipt calls each drafter.
    """

    def __init__(self, receipt: Receipt, labels: Mapping[str, str]) -> None:
        self.name = receipt.length_policy
        self._labels, self._round_id = labels, 0
        fallen = {(event.round_id, event.drafter) for event in receipt.events}
        self._limits = {
            (round.round_id, share.drafter): share.num_proposed
            if (round.round_id, share.drafter) in fallen
            else share.limit
            for round in receipt.rounds
            for share in round.shares
        }

    def limit(self, drafter: str, proposers: Sequence[str], room: int) -> int:
        """Return what the drafter was allowed in this round; 0 where it was not asked."""
        return min(self._limits.get((self._round_id, self._labels[drafter]), 0), room)

    def learn(self, record: RoundRecord) -> None:
        """Go on to the next round."""
        self._round_id = record.round_id + 1


def replayed_seed(receipt: Receipt, given: Any = None) -> int | None:
    """Return the seed to repeat a run by; ``given``: what the caller gives, which a greedy run does not look at.

    Raises ``InvalidReceipt`` for a coarse receipt, and ``InvalidRequest`` for another seed.
    """
    if receipt.is_coarse:
        raise InvalidReceipt(
            "a coarse receipt has no rounds and no seed to repeat a run by; replay the one that it was made from"
        )
    if receipt.seed.value is not None and given not in (None, receipt.seed.value):
        raise InvalidRequest("seed", f"must be the receipt's, {receipt.seed.value}", given, "leave it out")
    return receipt.seed.value


def compare(then: Receipt, now: Receipt, result: Result | None = None) -> Replay:
    """Compare a run with the one that its receipt tells of; both receipts have one nonce."""
    inputs = [
        *_differing(
            "hashes", _without(attrs.asdict(then.hashes), "output"), _without(attrs.asdict(now.hashes), "output")
        ),
        *_differing("drafters", then.drafters, now.drafters),
        *_differing("", _fields(then, _ASKED), _fields(now, _ASKED)),
    ]
    ends = () if then.ended_early and now.ended_early else _ENDED  # a replay is always cancelled by hand
    outcome = [
        *_differing("", _fields(then, ends), _fields(now, ends)),
        *_differing("hashes", {"output": then.hashes.output}, {"output": now.hashes.output}),
    ]
    circumstances = [
        *_differing("hardware", then.hardware, now.hardware),
        *_differing("runtime", then.runtime, now.runtime),
    ]
    return Replay(now, tuple(inputs), _parting(then.rounds, now.rounds), tuple(outcome), tuple(circumstances), result)


_ASKED = ("num_prompt", "max_new_tokens", "kernel", "exactness", "seed")
_ENDED = ("finish_reason", "failure")


def _parting(then: Sequence[Round], now: Sequence[Round]) -> Difference | None:
    """Return the first difference of the first round that differs."""
    for first, second in zip(then, now, strict=False):
        for field, before, after in _in_order(first, second):
            if before != after:
                return Difference(first.round_id, field, before, after)
    if len(then) != len(now):
        return Difference(min(len(then), len(now)), "num_rounds", len(then), len(now))
    return None


def _in_order(then: Round, now: Round) -> Iterator[tuple[str, Any, Any]]:
    """Give what two rounds must agree in, in the order in which it comes about; seconds and margins may differ.

    What the prefill's forwards were depends on what was cached.
    """
    before, after = ({share.drafter: share for share in round.shares} for round in (then, now))
    for count in _COUNTS:
        for name in {**before, **after}:
            first, second = (getattr(shares[name], count) if name in shares else 0 for shares in (before, after))
            yield f"drafters.{name}.{count}", first, second
    for field in ("num_forwards", "num_emitted", "num_rounding", "check"):
        if field != "num_forwards" or then.round_id:
            yield field, getattr(then, field), getattr(now, field)


def _differing(path: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Difference]:
    for name in {**then, **now}:
        before, after = then.get(name), now.get(name)
        if before != after:
            yield Difference(None, f"{path}.{name}" if path else name, before, after)


def _fields(receipt: Receipt, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(receipt, name) for name in names}


def _without(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != name}
