"""What the raw results of a comparison mean: speed, exactness, quality, acceptance, costs and verdicts. Pure functions.

Every figure is of one arm over one *scope*, a stratum or all of them, and follows from the lines of a file of results alone.
A *request* is an item of the plan with a seed; its repeats are measurements of one thing. A speed-up is how many times faster
an arm is than a reference: of a request, the median over repeats of the reference's time over the arm's in the same repeat.
A request whose outputs differ in length has none and is counted apart.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import attrs

from specframe.bench.gates import NOISE, Verdict, decide, is_quiet_by
from specframe.bench.plan import Plan, is_judged, plan_of
from specframe.bench.results import ArmRecord, RequestRecord, Results
from specframe.bench.workload import ALL, CONVERSATIONAL
from specframe.errors import InvalidPlan
from specframe.positions import PositionStats
from specframe.schedule import RoundCosts, SessionCosts, cost_per_token, expected_round_cost, expected_tokens
from specframe.testing.certificate import plain as as_plain

CONFIDENCE = 0.95


@attrs.frozen
class Ratios:
    """Speed-ups of requests.

    ``low``, ``high``: a confidence interval of the median over prompts, each with the median over its seeds, for outputs of
    one prompt are no independent evidence; None for fewer than six. ``p10``: what nine requests in ten reach; ``total``: the
    reference's seconds over the arm's, both in total. All are None where there is no request.
    """

    values: tuple[float, ...]
    median: float | None = None
    low: float | None = None
    high: float | None = None
    p10: float | None = None
    total: float | None = None


@attrs.frozen
class Speed:
    """An arm against a reference, over the requests that both finished.

    ``num_requests``: of those, ``num_matched`` have the same token ids in every repeat, and ``num_other_length`` another
    number of them, which leaves them out of the ratios. ``end_to_end``: from the call to its return; ``decode``: per token
    after the first ones were there; ``first_token``: until they were.
    """

    num_requests: int
    num_matched: int
    num_other_length: int
    end_to_end: Ratios
    decode: Ratios
    first_token: Ratios

    @property
    def matched(self) -> str:
        """``matched n/n``."""
        return f"matched {self.num_matched}/{self.num_requests}"


@attrs.frozen
class Quality:
    """How good outputs are, whatever they cost.

    ``num_right`` of the ``num_judged`` requests with a judge were found right; of the ``num_unjudged`` others ``num_same`` are
    plain decoding's output, which is all that can be told of them.
    """

    num_judged: int
    num_right: int
    num_unjudged: int
    num_same: int

    @property
    def share(self) -> float | None:
        """The share of requests that are right or, without a judge, plain decoding's."""
        num_all = self.num_judged + self.num_unjudged
        return (self.num_right + self.num_same) / num_all if num_all else None


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


@attrs.frozen
class Prediction:
    """What the cost model makes of the measured costs d_i and V(k), the lengths that were chosen, and the survival S_i.

    ``plain_s``, ``speculative_s``: seconds per token while decoding; ``decode_speed``: their ratio; ``speed``: end to end at
    the outputs' own lengths; ``min_tokens``: N_min with loading and prefilling the draft, infinite where it never pays;
    ``break_even``: N_min over the median length of the outputs; ``session``: what falls due once,
    loading included.
    """

    plain_s: float
    speculative_s: float
    decode_speed: float
    speed: float
    min_tokens: float
    break_even: float
    session: SessionCosts


@attrs.frozen
class Cell:
    """All figures of one arm in one scope; ``kind`` is the stratum, None for all of them.

    ``num_measured``: repeats of the ``num_requests`` requests that were run, of which ``num_failed`` ended with an error, the
    first of which is ``first_error``;
    ``speeds``: against each reference by its name; ``events``: how many measurements had an event, by its code; ``phases``:
    mean seconds of a request by phase; ``metrics``: what gates ask for (``gates.METRICS``); ``verdict``: of strategies that
    draft, else None.
    """

    arm: str
    kind: str | None
    num_requests: int
    num_measured: int
    num_failed: int
    first_error: str | None
    speeds: Mapping[str, Speed]
    quality: Quality
    acceptance: Acceptance | None
    events: Mapping[str, int]
    phases: Mapping[str, float]
    prediction: Prediction | None
    joules_per_token: float | None
    metrics: Mapping[str, float | None]
    verdict: Verdict | None


@attrs.frozen
class Summary:
    """What a file of results says.

    ``baseline``: the arm that metrics and quality refer to; ``references``: the arms that speeds are given against, the
    baseline first; ``controls``: arms that are the baseline once more, so that their distance from 1 is the noise of the run;
    ``num_split``: requests whose repeats were interrupted, and so measured in different processes; ``complaints``: what
    makes the results no answer to the question of their plan, a sentence each; ``disturbances``: the same of controls that
    are farther from 1 than the plan's gates allow, so that times decide nothing.
    """

    plan: Plan
    machine: Mapping[str, str]
    energy: str
    arms: Mapping[str, ArmRecord]
    baseline: str
    references: tuple[str, ...]
    controls: tuple[str, ...]
    kinds: tuple[str, ...]
    num_done: int
    num_all: int
    num_split: int
    complaints: tuple[str, ...]
    disturbances: tuple[str, ...]
    cells: tuple[Cell, ...]

    @cached_property
    def _by_scope(self) -> Mapping[tuple[str, str | None], Cell]:
        return {(cell.arm, cell.kind): cell for cell in self.cells}

    def cell(self, arm: str, kind: str | None = None) -> Cell:
        """Return an arm's figures in a scope."""
        return self._by_scope[arm, kind]

    def as_data(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; a number that is not finite is spelled as text."""
        data: dict[str, Any] = as_plain({**attrs.asdict(self), "plan": self.plan.as_data(), "digest": self.plan.digest})
        return data


Scoped = Mapping[tuple[str, str | None], Sequence[RequestRecord]]
"""The requests of an arm in a scope."""


def summarise(results: Results) -> Summary:
    """Return what results say, whether they are complete or not. Raises ``InvalidPlan`` for a header without a good plan.

    Requests that are not of the plan are complained of, and left out of every figure.
    """
    plan = plan_of(results.header.plan, "the plan in the results")
    if plan.baseline is None:
        raise InvalidPlan("the plan in the results has no arm that is plain decoding by specframe")
    kinds = tuple(dict.fromkeys(item.kind for item in plan.items))
    library = next((name for name, arm in plan.arms.items() if _is_plain_library(arm)), None)
    references = (plan.baseline, library) if library is not None else (plan.baseline,)
    requests = planned_requests(results, plan)
    num_all = len(plan.turns())
    scoped: dict[tuple[str, str | None], list[RequestRecord]] = {
        (name, kind): [] for name in plan.arms for kind in (None, *kinds)
    }
    sessions: dict[tuple[int, int], set[int]] = {}
    for record in requests:
        scoped[record.arm, None].append(record)
        scoped[record.arm, record.kind].append(record)
        sessions.setdefault((record.index, record.repeat), set()).add(record.session)
    controls = _controls(plan)
    cells = tuple(
        _cell(plan, results.arms, scoped, references, controls, name, kind)
        for name in plan.arms
        for kind in (None, *kinds)
    )
    return Summary(
        plan=plan,
        machine=results.header.machine,
        energy=results.header.energy,
        arms=results.arms,
        baseline=plan.baseline,
        references=references,
        controls=controls,
        kinds=kinds,
        num_done=len(requests),
        num_all=num_all,
        num_split=sum(len(found) > 1 for found in sessions.values()),
        complaints=tuple(_complaints(results, plan, num_done=len(requests), num_all=num_all)),
        disturbances=tuple(_disturbances(plan, plan.baseline, [cell for cell in cells if cell.arm in controls])),
        cells=cells,
    )


def _failed(records: Iterable[RequestRecord]) -> set[tuple[int, int]]:
    return {(record.index, record.repeat) for record in records if record.error is not None}


def event_sentences(summary: Summary) -> list[str]:
    """Tell what happened to arms beside generating: errors, and events such as a drafter that failed, a sentence each."""
    told = []
    for cell in map(summary.cell, summary.plan.arms):
        if cell.first_error is not None:
            told.append(
                f"{cell.arm}: {cell.num_failed} of {cell.num_measured} measurements ended with an error, the first with "
                f"{cell.first_error}"
            )
        for code, count in sorted(cell.events.items()):
            told.append(f"{cell.arm}: {code} in {count} of {cell.num_measured} measurements")
    return told


def planned_requests(results: Results, plan: Plan) -> list[RequestRecord]:
    """Return the requests that are of the plan: its turns, items and seeds."""
    turns = {turn.key for turn in plan.turns()}
    return [record for record in results.requests if record.key in turns and _is_as_planned(record, plan)]


def _is_as_planned(record: RequestRecord, plan: Plan) -> bool:
    item = plan.items[record.index]
    return (record.kind, record.name, record.seed) == (item.kind, item.name, plan.seed(record.repeat))


def _complaints(results: Results, plan: Plan, *, num_done: int, num_all: int) -> Iterator[str]:
    header = results.header
    if plan.digest != header.plan_digest:
        yield f"the plan in the results was changed: its digest is {plan.digest}, not {header.plan_digest}"
    for name in sorted(plan.machine.keys() | header.machine.keys()):
        planned, found = plan.machine.get(name), header.machine.get(name)
        if planned != found:
            yield f"another machine than planned: {name} is {found}, not {planned}"
    if num_foreign := len(results.requests) - num_done:
        yield f"{num_foreign} requests in the results are not of the plan, and are left out"
    if num_done < num_all:
        yield f"the run is not finished: {num_done} of {num_all} requests are measured"


def _disturbances(plan: Plan, baseline: str, controls: Sequence[Cell]) -> Iterator[str]:
    for name, cells in groupby(controls, key=lambda cell: cell.arm):
        medians = [(cell.kind, cell.speeds[baseline].end_to_end.median) for cell in cells]
        off = [
            f"{median:.3f} {f'in {kind}' if kind is not None else f'over {ALL}'}"
            for kind, median in medians
            if median is not None and not is_quiet_by(plan.gates, abs(median - 1))
        ]
        if off:
            yield f"{name} is {baseline} once more, but was {', '.join(off)} times as fast; no time decides anything there"


def _cell(
    plan: Plan,
    arms: Mapping[str, ArmRecord],
    scoped: Scoped,
    references: Sequence[str],
    controls: Sequence[str],
    name: str,
    kind: str | None,
) -> Cell:
    baseline = references[0]
    own, plain = scoped[name, kind], scoped[baseline, kind]
    finished, finished_plain = _finished(own), _finished(plain)
    speeds = {reference: speed(own, scoped[reference, kind]) for reference in references}
    prediction = None
    if is_judged(plan.arms[name]) and finished and finished_plain:
        prediction = predict(finished, finished_plain, arms.get(name))
    talking = [[record for record in scoped[arm, None] if record.kind in CONVERSATIONAL] for arm in (name, baseline)]
    metrics = {
        "matched": _matched_share(own, speeds[baseline]),
        "distribution": _certified(plan.arms[name]),
        "failures": float(len(_failed(own) - _failed(plain))),
        "speed": speeds[baseline].end_to_end.median,
        "speed_low": speeds[baseline].end_to_end.low,
        "speed_p10": speeds[baseline].end_to_end.p10,
        "conversation_speed": speed(*talking).end_to_end.median,
        "peak_bytes": _peak_over(arms.get(name), arms.get(baseline)),
        "energy": _energy_over(finished, finished_plain),
        "break_even": prediction.break_even if prediction and prediction.decode_speed >= 1 + NOISE else None,
        "control": _farthest_from_1(speed(scoped[control, kind], plain).end_to_end.median for control in controls),
    }
    return Cell(
        arm=name,
        kind=kind,
        num_requests=len({_request(record) for record in own}),
        num_measured=len(own),
        num_failed=len(own) - len(finished),
        first_error=next((record.error for record in own if record.error is not None), None),
        speeds=speeds,
        quality=quality(finished, finished_plain),
        acceptance=acceptance(finished),
        events=Counter(code for record in own for code in record.event_codes),
        phases=_mean_phases(finished),
        prediction=prediction,
        joules_per_token=_joules_per_token(finished),
        metrics=metrics,
        verdict=decide(metrics, plan.gates) if is_judged(plan.arms[name]) and own else None,
    )


def speed(own: Iterable[RequestRecord], reference: Iterable[RequestRecord]) -> Speed:
    """Compare an arm's requests with a reference's."""
    theirs = {(*_request(record), record.repeat): record for record in _finished(reference)}
    pairs: dict[tuple[int, int | None], list[tuple[RequestRecord, RequestRecord]]] = {}
    for record in _finished(own):
        other = theirs.get((*_request(record), record.repeat))
        if other is not None:
            pairs.setdefault(_request(record), []).append((record, other))
    same_length = {
        request: repeats
        for request, repeats in pairs.items()
        if all(len(first.token_ids) == len(second.token_ids) for first, second in repeats)
    }
    return Speed(
        num_requests=len(pairs),
        num_matched=sum(
            all(first.token_ids == second.token_ids for first, second in repeats) for repeats in pairs.values()
        ),
        num_other_length=len(pairs) - len(same_length),
        end_to_end=_ratios(same_length, lambda record: record.end_to_end_s),
        decode=_ratios(same_length, _decode_s_per_token),
        first_token=_ratios(same_length, lambda record: record.first_token_s),
    )


def _ratios(
    requests: Mapping[tuple[int, int | None], Sequence[tuple[RequestRecord, RequestRecord]]],
    seconds: Callable[[RequestRecord], float | None],
) -> Ratios:
    values: list[float] = []
    of_prompt: dict[int, list[float]] = {}
    own_s = their_s = 0.0
    for (index, _), repeats in requests.items():
        timed = [(seconds(first), seconds(second)) for first, second in repeats]
        pairs = [(first, second) for first, second in timed if first and second]
        if not pairs:
            continue
        values.append(statistics.median(second / first for first, second in pairs))
        of_prompt.setdefault(index, []).append(values[-1])
        own_s += statistics.median(first for first, _ in pairs)
        their_s += statistics.median(second for _, second in pairs)
    if not values:
        return Ratios(())
    low, high = median_interval(list(map(statistics.median, of_prompt.values()))) or (None, None)
    ordered = sorted(values)
    return Ratios(
        tuple(values), statistics.median(values), low, high, ordered[math.floor(0.1 * len(ordered))], their_s / own_s
    )


def _decode_s_per_token(record: RequestRecord) -> float | None:
    num_tokens = len(record.token_ids) - record.num_first
    return record.decode_s / num_tokens if record.decode_s is not None and num_tokens > 0 else None


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return a confidence interval of a median by counting signs, or None where there are too few values.

    Exact for any distribution of independent values: from the r-th smallest to the r-th largest, with the greatest r for which
    a fair coin gives fewer than r heads, or fewer than r tails, with probability 1 - confidence at most.
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += 2 * math.exp(_log_choose(count, rank) - count * math.log(2))
        if tail > 1 - confidence:
            break
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)


def quality(own: Sequence[RequestRecord], plain: Sequence[RequestRecord]) -> Quality:
    """Judge finished requests, each in its first repeat."""
    first = {_request(record): record for record in reversed(plain)}
    judged: list[bool] = []
    unjudged: list[bool] = []
    for request, record in {_request(record): record for record in reversed(own)}.items():
        if record.judged is not None:
            judged.append(record.judged)
        elif request in first:
            unjudged.append(record.token_ids == first[request].token_ids)
    return Quality(len(judged), sum(judged), len(unjudged), sum(unjudged))


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


class Seconds(NamedTuple):
    """What one round of a request took; see ``schedule.RoundSeconds``."""

    round_id: int
    num_proposed: int
    draft_s: float
    forward_s: float
    after_s: float


def round_seconds(record: RequestRecord) -> list[Seconds]:
    """Return what the rounds of a request took."""
    rounds = record.rounds
    columns = (rounds.num_proposed, rounds.draft_s, rounds.forward_s, rounds.after_s)
    return [Seconds(index, *row) for index, row in enumerate(zip(*columns, strict=True))]


def predict(own: Sequence[RequestRecord], plain: Sequence[RequestRecord], arm: ArmRecord | None) -> Prediction | None:
    """Return the cost model's account of finished requests; None where their rounds, or plain decoding's, are too few.

    A round of k proposals costs what those of the run cost in the median, and gives 1 + S_1 + ... + S_k tokens.
    """
    plain_costs = RoundCosts.measured((row for record in plain for row in round_seconds(record)), 0)
    rounds = [row for record in own for row in round_seconds(record)]
    lengths = Counter(row.num_proposed for row in rounds if row.round_id)
    if plain_costs is None or not lengths:
        return None
    plain_s = cost_per_token(plain_costs, ())
    survival = [position.survival or 0.0 for position in add_positions(record.positions for record in own)]
    spent_s = num_tokens = 0.0
    for length, count in lengths.items():
        costs = RoundCosts.measured(rounds, length)
        assert costs is not None
        spent_s += count * expected_round_cost(costs, survival[:length])
        num_tokens += count * expected_tokens(survival[:length])
    speculative_s = spent_s / num_tokens
    if plain_s <= 0 or speculative_s <= 0:  # too short for the clock
        return None
    session = SessionCosts(
        target_load_s=(arm.target_load_s if arm is not None else None) or 0.0,
        target_prefill_s=statistics.median(record.first_token_s or 0.0 for record in plain),
        draft_load_s=(arm.drafters_load_s if arm is not None else None) or 0.0,
        draft_prefill_s=statistics.median(map(draft_prefill_s, own)),
    )
    num_decoded = [len(record.token_ids) - record.num_first for record in own]
    in_turn = attrs.evolve(session, target_load_s=0.0, draft_load_s=0.0)  # requests are timed on what is loaded
    baseline_s = sum(in_turn.baseline_s(count, plain_s) for count in num_decoded)
    least = session.min_tokens(plain_s, speculative_s)
    return Prediction(
        plain_s=plain_s,
        speculative_s=speculative_s,
        decode_speed=plain_s / speculative_s,
        speed=baseline_s / sum(in_turn.speculative_s(count, speculative_s) for count in num_decoded),
        min_tokens=least,
        break_even=least / max(statistics.median(num_decoded), 1),
        session=session,
    )


def draft_prefill_s(record: RequestRecord) -> float:
    """Return what the first round that drafted took to draft beyond the median of those like it."""
    rounds = [row for row in round_seconds(record) if row.num_proposed]
    if not rounds:
        return 0.0
    alike = [row.draft_s for row in rounds if row.num_proposed == rounds[0].num_proposed]
    return max(rounds[0].draft_s - statistics.median(alike), 0.0)


def _request(record: RequestRecord) -> tuple[int, int | None]:
    return record.index, record.seed


def _finished(records: Iterable[RequestRecord]) -> list[RequestRecord]:
    return [record for record in records if record.error is None]


def _farthest_from_1(ratios: Iterable[float | None]) -> float | None:
    return max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=None)


def _matched_share(own: Sequence[RequestRecord], against: Speed) -> float | None:
    """Return the share of matched requests; None where only the law of outputs is promised."""
    is_promised = any(record.exactness != "distribution-exact" for record in _finished(own))
    return against.num_matched / against.num_requests if is_promised and against.num_requests else None


def _certified(arm: Mapping[str, Any]) -> float | None:
    return float(arm["certificate"]["verdict"] == "certified") if "certificate" in arm else None


def _peak_over(own: ArmRecord | None, plain: ArmRecord | None) -> float | None:
    if own is None or plain is None or own.bytes is None or plain.bytes is None:
        return None
    return own.bytes.peak_resident / plain.bytes.peak_resident


def _energy_over(own: Sequence[RequestRecord], plain: Sequence[RequestRecord]) -> float | None:
    ours, theirs = _joules_per_token(own), _joules_per_token(plain)
    return ours / theirs if ours is not None and theirs else None


def _joules_per_token(records: Sequence[RequestRecord]) -> float | None:
    counted = [record for record in records if record.energy_j is not None and record.token_ids]
    if not counted:
        return None
    return sum(record.energy_j or 0.0 for record in counted) / sum(len(record.token_ids) for record in counted)


def _mean_phases(records: Sequence[RequestRecord]) -> dict[str, float]:
    told = [record.phases for record in records if record.phases]
    return {name: statistics.fmean(phases[name] for phases in told) for name in (told[0] if told else ())}


def _controls(plan: Plan) -> tuple[str, ...]:
    assert plan.baseline is not None
    same = plan.arms[plan.baseline]
    return tuple(name for name, arm in plan.arms.items() if name != plan.baseline and arm == same)


def _is_plain_library(arm: Mapping[str, Any]) -> bool:
    library = arm.get("library")
    return library is not None and not any(value is not None for value in library.values())
