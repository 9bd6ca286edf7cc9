"""One request of a comparison: run an arm on a prompt, watched, and make a record of what it gave and cost.

Everything beside the call itself is outside the measured time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from specframe.bench.arms import Outcome, WatchedArm
from specframe.bench.energy import EnergyMeter
from specframe.bench.lines import ACCEPTED, CORRECTION, EXTRA, PLAIN, Origin, RequestRecord, Rounds
from specframe.bench.memory import reset_peak_resident, tracked_peak_resident
from specframe.bench.plan import Turn
from specframe.bench.workload import WorkItem
from specframe.errors import described
from specframe.records import RoundRecord
from specframe.text import TextDecoder, TokenBytes

_DIGITS = 7  # after the point of seconds: finer than any clock means


@attrs.frozen
class Prepared:
    """An item that is ready to run, as token ids."""

    item: WorkItem
    prompt_ids: tuple[int, ...]


class Measurer:
    """Measures requests. ``table``: the target's bytes by token, None without a tokenizer; ``clock`` tells seconds."""

    def __init__(
        self,
        *,
        table: TokenBytes | None,
        meter: EnergyMeter,
        session: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._table, self._meter, self._session, self._clock = table, meter, session, clock

    def measure(
        self, turn: Turn, arm: WatchedArm, prepared: Prepared, *, max_new_tokens: int, seed: int | None
    ) -> RequestRecord:
        """Reset an arm, run it on a prompt, and return the record; an arm that raises gives one with an error and no times."""
        item = prepared.item
        record = RequestRecord(
            arm=turn.arm,
            index=turn.index,
            kind=item.kind,
            name=item.name,
            repeat=turn.repeat,
            session=self._session,
            order=turn.order,
            num_prompt=len(prepared.prompt_ids),
            seed=seed,
        )
        firsts: list[tuple[float, int]] = []

        def on_tokens(num_tokens: int) -> None:
            if not firsts:
                firsts.append((self._clock(), num_tokens))

        arm.reset()
        is_tracked = reset_peak_resident()
        joules = self._meter.read()
        start = self._clock()
        try:
            outcome = arm.run(prepared.prompt_ids, max_new_tokens, seed=seed, on_tokens=on_tokens)
        except Exception as error:  # an arm that fails is a result; the others go on
            return attrs.evolve(record, error=described(error))
        end = self._clock()
        joules_after = self._meter.read()
        peak = tracked_peak_resident() if is_tracked else None
        first_s, num_first = firsts[0] if firsts else (end, len(outcome.token_ids))
        record = attrs.evolve(
            record,
            token_ids=outcome.token_ids,
            end_to_end_s=round(end - start, _DIGITS),
            first_token_s=round(first_s - start, _DIGITS),
            decode_s=round(end - first_s, _DIGITS),
            num_first=num_first,
            peak_resident_bytes=peak,
            energy_j=joules_after - joules if joules is not None and joules_after is not None else None,
        )
        return self._with_text(_with_account(record, outcome), item)

    def _with_text(self, record: RequestRecord, item: WorkItem) -> RequestRecord:
        if self._table is None:
            return record
        pieces = text_pieces(self._table, record.token_ids)
        text = "".join(pieces)
        return attrs.evolve(
            record, pieces=pieces, text=text, judged=item.judge(text) if item.judge is not None else None
        )


def text_pieces(table: TokenBytes, token_ids: Sequence[int]) -> tuple[str, ...]:
    """Return the text that each id completes; what the end cuts off counts to the last one."""
    decoder = TextDecoder(table)
    pieces = [decoder.push(token) for token in token_ids]
    if pieces:
        pieces[-1] += decoder.flush()
    return tuple(pieces)


def _with_account(record: RequestRecord, outcome: Outcome) -> RequestRecord:
    """Return a record with what an engine tells of a request, if it was one."""
    result = outcome.result
    if result is None:
        return record
    assert record.end_to_end_s is not None
    stats, records = result.stats, result.records
    rounds = Rounds(**{name: _column(records, name) for name in attrs.fields_dict(Rounds)})
    phases = {name: round(seconds, _DIGITS) for name, seconds in rounds.phases.items()}
    return attrs.evolve(
        record,
        finish_reason=result.finish_reason,
        origins=tuple(str(origin) for origin in origins(records)),
        phases={**phases, "other": round(record.end_to_end_s - sum(phases.values()), _DIGITS)},
        num_target_calls=stats.num_target_calls,
        num_rounds=stats.num_rounds,
        positions=stats.positions,
        drafters=stats.drafters,
        rounds=rounds,
        exactness=result.exactness,
        kernel=result.kernel,
        length_policy=result.length_policy,
        events=tuple(
            f"{event.code}: round {event.round_id}, {event.drafter or 'target'}: {event.message}"
            for event in result.events
        ),
    )


def _column(records: Sequence[RoundRecord], name: str) -> tuple[Any, ...]:
    values = (getattr(record, name) for record in records)
    return tuple(round(value, _DIGITS) if isinstance(value, float) else value for value in values)


def origins(records: Sequence[RoundRecord]) -> list[Origin]:
    """Return where each emitted token of a generation comes from."""
    found: list[Origin] = []
    for record in records:
        shares = sorted(record.drafters, key=lambda share: share.start)
        proposers = [share.name for share in shares for _ in range(share.num_proposed)]
        found += [Origin(ACCEPTED, drafter) for drafter in proposers[: record.num_kept]]
        if record.num_emitted == record.num_kept:  # an accepted token ended the output
            continue
        if record.num_proposed == 0:
            found.append(Origin(PLAIN))
        elif record.num_evaluated > record.num_accepted:
            found.append(Origin(CORRECTION, proposers[record.num_accepted]))
        else:
            found.append(Origin(EXTRA))
    return found
