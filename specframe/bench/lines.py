"""What the lines of a file of results hold: its header, what an arm costs once, and what each request gave and cost.

Plain data; knows no files, engines or statistics. Seconds are wall time, bytes are bytes, energy is in joules. None stands for
what was not measured or cannot be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import attrs

from specframe.positions import PositionStats
from specframe.records import DrafterStats

FORMAT = 2
PLAIN, ACCEPTED, CORRECTION, EXTRA = "plain", "accepted", "correction", "extra"
PHASES = ("prefill", "draft", "verify", "sync", "decide", "commit", "emit", "other")


@attrs.frozen
class Header:
    """What a file of results belongs to.

    ``plan``: the plan as data (``Plan.as_data()``), ``plan_digest`` its digest; ``machine``: the class of machine of the run
    (``machine_class()``); ``versions`` by library; ``energy``: where joules are read from, or "not available".
    """

    plan_digest: str
    plan: Mapping[str, Any]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    energy: str
    format: int = FORMAT


@attrs.frozen
class ByteCounts:
    """What an arm holds, each number counted by its own rule (see ``memory.py``).

    ``artifact``: weight files on disk; ``logical``: of every part as if it stood alone, by name; ``deduplicated``: storages
    counted once; ``incremental``: of those, what is added to plain decoding; ``peak_resident``: of a process that loads
    the arm and generates once; ``unknown``: drafters that do not tell what they hold.
    """

    artifact: int
    logical: Mapping[str, int]
    deduplicated: int
    incremental: int
    peak_resident: int
    unknown: tuple[str, ...] = ()


@attrs.frozen
class ArmRecord:
    """What an arm costs once, measured in a process of its own.

    ``target_load_s``: L_t, until the target can be asked; ``drafters_load_s``: L_d, what making the drafters took after it.
    All are None where the plan asks for no such measurement.
    """

    arm: str
    target_load_s: float | None = None
    drafters_load_s: float | None = None
    bytes: ByteCounts | None = None


@attrs.frozen
class Rounds:
    """The rounds of a request, in columns: entry i of each is round i's, and round 0 is the prefill.

    Each column is the field of ``RoundRecord`` of its name. Empty where an arm does not tell of rounds.
    """

    num_proposed: tuple[int, ...] = ()
    num_accepted: tuple[int, ...] = ()
    num_emitted: tuple[int, ...] = ()
    draft_s: tuple[float, ...] = ()
    forward_s: tuple[float, ...] = ()
    sync_s: tuple[float, ...] = ()
    decide_s: tuple[float, ...] = ()
    commit_s: tuple[float, ...] = ()
    emit_s: tuple[float, ...] = ()

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by phase, the sums of the columns: ``PHASES`` but for ``other``."""
        return {
            "prefill": sum(self.forward_s[:1]),
            "draft": sum(self.draft_s),
            "verify": sum(self.forward_s[1:]),
            "sync": sum(self.sync_s),
            "decide": sum(self.decide_s),
            "commit": sum(self.commit_s),
            "emit": sum(self.emit_s),
        }


class Origin(NamedTuple):
    """Where a token of the output comes from.

    ``how``: ``plain``, the target's own where nothing was proposed; ``accepted``, proposed by ``drafter``; ``correction``,
    the target's own in place of ``drafter``'s rejected one; ``extra``, the target's own after a fully accepted proposal.
    """

    how: str
    drafter: str | None = None

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read one as it is stored: ``how``, or ``how:drafter``."""
        how, _, drafter = text.partition(":")
        return cls(how, drafter or None)

    def __str__(self) -> str:
        return f"{self.how}:{self.drafter}" if self.drafter else self.how


@attrs.frozen
class RequestRecord:
    """One finished request.

    - Which: ``arm``; ``index``, ``kind`` (its stratum) and ``name`` of the plan's item; ``repeat``, from 0; ``seed``, None when
      greedy; ``session``: which start of the run measured it, from 0, and ``order``: when among its pair's arms.
    - Output: ``token_ids``, a stop id included; ``pieces``: the text that each of them adds, which make up ``text``;
      ``finish_reason``: ``stop``, ``length`` or None where an arm does not tell; ``origins``: of each token (``Origin``, as
      text), empty where an arm does not tell; ``judged``: whether the item's judge accepts ``text``, None without one;
      ``error``: what ended the request early, None for nothing. A failed request counts as no time.
    - Time: ``end_to_end_s``: from the call to its return; ``first_token_s``: until the first tokens were there, of which there
      were ``num_first``; ``decode_s``: the rest; ``phases``: seconds by ``PHASES``, of which ``other`` is all else of
      ``end_to_end_s``.
    - Counts: ``num_prompt``, ``num_target_calls``, ``num_rounds``; ``positions``: what became of the first, second, ...
      token of a proposal, whoever made it; ``drafters``: each one's own counts, seconds and (entropy in nats, whether
      accepted) pairs; ``rounds``.
    - What it ran under: ``exactness``, ``kernel``, ``length_policy`` as in ``Result``, None for a reference arm; ``events``: a
      text each, which begins with its code (``records.EVENT_CODES``).
    - ``peak_resident_bytes``: of the process during the request, all arms' models included; ``energy_j``.
    """

    arm: str
    index: int
    kind: str
    name: str
    repeat: int
    session: int
    order: int
    num_prompt: int
    seed: int | None = None
    token_ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    origins: tuple[str, ...] = ()
    judged: bool | None = None
    error: str | None = None
    end_to_end_s: float | None = None
    first_token_s: float | None = None
    num_first: int = 0
    decode_s: float | None = None
    phases: Mapping[str, float] = attrs.field(factory=dict)
    num_target_calls: int | None = None
    num_rounds: int | None = None
    positions: tuple[PositionStats, ...] = ()
    drafters: Mapping[str, DrafterStats] = attrs.field(factory=dict)
    rounds: Rounds = Rounds()
    exactness: str | None = None
    kernel: str | None = None
    length_policy: str | None = None
    events: tuple[str, ...] = ()
    peak_resident_bytes: int | None = None
    energy_j: float | None = None

    @property
    def event_codes(self) -> set[str]:
        """What kinds of events there were."""
        return {event.partition(":")[0] for event in self.events}

    @property
    def request(self) -> tuple[int, int | None]:
        """What its repeats are measurements of: an item with a seed."""
        return self.index, self.seed

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from every other of the file: arm, index and repeat."""
        return self.arm, self.index, self.repeat


def finished(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the records without an error."""
    return [record for record in records if record.error is None]
