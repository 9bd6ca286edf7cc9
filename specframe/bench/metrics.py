"""What the raw results of a comparison mean: speed, exactness, quality, acceptance, costs and verdicts. Pure functions.

Every figure is of one arm over one *scope*, a stratum or all of them, and follows from the lines of a file of results alone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import attrs

from specframe.bench.acceptance import Acceptance, acceptance
from specframe.bench.gates import NOISE, Verdict, decide
from specframe.bench.lines import ArmRecord, RequestRecord, finished
from specframe.bench.plan import Plan, is_judged, plan_of
from specframe.bench.prediction import Prediction, predict
from specframe.bench.results import Results
from specframe.bench.speed import Speed, speed
from specframe.bench.validity import complaints, disturbances, planned_requests
from specframe.bench.workload import CONVERSATIONAL
from specframe.errors import InvalidPlan
from specframe.testing.certificate import plain as as_plain


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
class Cell:
    """All figures of one arm in one scope; ``kind`` is the stratum, None for all of them.

    ``num_measured``: repeats of the ``num_requests`` requests that were run, of which ``num_failed`` ended with an error, the
    first of them with ``first_error``; ``speeds``: against each reference by its name; ``events``: how many measurements had
    an event, by its code; ``phases``: mean seconds of a request by phase; ``metrics``: what gates ask for
    (``gates.METRICS``); ``verdict``: of strategies that draft, else None.
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

    @property
    def events(self) -> tuple[str, ...]:
        """What happened to arms beside generating: errors, and events such as a drafter that failed, a sentence each."""
        told = []
        for cell in map(self.cell, self.plan.arms):
            if cell.first_error is not None:
                ended = f"{cell.num_failed} of {cell.num_measured} measurements ended with an error"
                told.append(f"{cell.arm}: {ended}, the first with {cell.first_error}")
            for code, count in sorted(cell.events.items()):
                told.append(f"{cell.arm}: {code} in {count} of {cell.num_measured} measurements")
        return tuple(told)

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
    off = {
        name: {cell.kind: cell.speeds[plan.baseline].end_to_end.median for cell in cells if cell.arm == name}
        for name in controls
    }
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
        complaints=tuple(complaints(results, plan, num_done=len(requests), num_all=num_all)),
        disturbances=tuple(disturbances(plan, off)),
        cells=cells,
    )


def _failed(records: Iterable[RequestRecord]) -> set[tuple[int, int]]:
    return {(record.index, record.repeat) for record in records if record.error is not None}


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
    done, done_plain = finished(own), finished(plain)
    speeds = {reference: speed(own, scoped[reference, kind]) for reference in references}
    prediction = None
    if is_judged(plan.arms[name]) and done and done_plain:
        prediction = predict(done, done_plain, arms.get(name))
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
        "energy": _energy_over(done, done_plain),
        "break_even": prediction.break_even if prediction and prediction.decode_speed >= 1 + NOISE else None,
        "control": _farthest_from_1(speed(scoped[control, kind], plain).end_to_end.median for control in controls),
    }
    return Cell(
        arm=name,
        kind=kind,
        num_requests=len({record.request for record in own}),
        num_measured=len(own),
        num_failed=len(own) - len(done),
        first_error=next((record.error for record in own if record.error is not None), None),
        speeds=speeds,
        quality=quality(done, done_plain),
        acceptance=acceptance(done),
        events=Counter(code for record in own for code in record.event_codes),
        phases=_mean_phases(done),
        prediction=prediction,
        joules_per_token=_joules_per_token(done),
        metrics=metrics,
        verdict=decide(metrics, plan.gates) if is_judged(plan.arms[name]) and own else None,
    )


def quality(own: Sequence[RequestRecord], plain: Sequence[RequestRecord]) -> Quality:
    """Judge finished requests, each in its first repeat."""
    first = {record.request: record for record in reversed(plain)}
    judged: list[bool] = []
    unjudged: list[bool] = []
    for request, record in {record.request: record for record in reversed(own)}.items():
        if record.judged is not None:
            judged.append(record.judged)
        elif request in first:
            unjudged.append(record.token_ids == first[request].token_ids)
    return Quality(len(judged), sum(judged), len(unjudged), sum(unjudged))


def _farthest_from_1(ratios: Iterable[float | None]) -> float | None:
    return max((abs(ratio - 1) for ratio in ratios if ratio is not None), default=None)


def _matched_share(own: Sequence[RequestRecord], against: Speed) -> float | None:
    """Return the share of matched requests; None where only the law of outputs is promised."""
    is_promised = any(record.exactness != "distribution-exact" for record in finished(own))
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
