"""Whether results answer the question of their plan: what was not run as planned, and where the machine was not quiet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from specframe.bench.gates import is_quiet_by
from specframe.bench.lines import RequestRecord
from specframe.bench.plan import Plan
from specframe.bench.results import Results
from specframe.bench.workload import ALL


def planned_requests(results: Results, plan: Plan) -> list[RequestRecord]:
    """Return the requests that are of the plan: its turns, items and seeds."""
    turns = {turn.key for turn in plan.turns()}
    return [record for record in results.requests if record.key in turns and _is_as_planned(record, plan)]


def _is_as_planned(record: RequestRecord, plan: Plan) -> bool:
    item = plan.items[record.index]
    return (record.kind, record.name, record.seed) == (item.kind, item.name, plan.seed(record.repeat))


def complaints(results: Results, plan: Plan, *, num_done: int, num_all: int) -> Iterator[str]:
    """Tell what makes results no answer to the question of their plan, a sentence each."""
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


def disturbances(plan: Plan, controls: Mapping[str, Mapping[str | None, float | None]]) -> Iterator[str]:
    """Tell which controls are off by the plan's gates; ``controls``: their speed by arm and by stratum, None for all."""
    for name, speeds in controls.items():
        off = [
            f"{median:.3f} {f'in {kind}' if kind is not None else f'over {ALL}'}"
            for kind, median in speeds.items()
            if median is not None and not is_quiet_by(plan.gates, abs(median - 1))
        ]
        if off:
            told = ", ".join(off)
            yield f"{name} is {plan.baseline} once more, but was {told} times as fast; no time decides anything there"
