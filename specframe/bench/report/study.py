"""Results and what they mean, arranged for a page: arms and strata in order, and how each arm is drawn.

Knows nothing about figures or markup.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs

from specframe.bench.metrics import Cell, Speed, Summary, summarise
from specframe.bench.report.palette import Look, looks
from specframe.bench.results import RequestRecord, Results

ALL = "all strata"


@attrs.frozen
class Study:
    """A file of results, its summary, and the look of each arm."""

    results: Results
    summary: Summary
    looks: Mapping[str, Look]
    complaints: tuple[str, ...] = ()

    @classmethod
    def of(cls, results: Results) -> Study:
        """Arrange results. Raises ``InvalidPlan`` where they hold no plan that this version reads."""
        summary = summarise(results)
        return cls(results, summary, looks(summary.plan), tuple(_complaints(results, summary)))

    @property
    def arms(self) -> tuple[str, ...]:
        """The arms in the order of the plan."""
        return tuple(self.summary.plan.arms)

    @property
    def others(self) -> tuple[str, ...]:
        """The arms but plain decoding, which they are compared with."""
        return tuple(arm for arm in self.arms if arm != self.summary.baseline)

    @property
    def scopes(self) -> Mapping[str, str | None]:
        """What figures are told of, by name: all strata, then each."""
        return {ALL: None, **{kind: kind for kind in self.summary.kinds}}

    def cell(self, arm: str, scope: str = ALL) -> Cell:
        """Return an arm's figures in a scope by name."""
        return self.summary.cell(arm, self.scopes[scope])

    def speed(self, arm: str, scope: str = ALL) -> Speed:
        """Return an arm's speed against plain decoding."""
        return self.cell(arm, scope).speeds[self.summary.baseline]

    def finished(self, arm: str) -> list[RequestRecord]:
        """Return an arm's requests that did not fail."""
        return [request for request in self.results.requests if request.arm == arm and request.error is None]


def _complaints(results: Results, summary: Summary) -> Iterator[str]:
    """Tell what makes results no answer to the question of their plan, a sentence each."""
    header, plan = results.header, summary.plan
    if plan.digest != header.plan_digest:
        yield f"the plan in the results was changed: its digest is {plan.digest}, not {header.plan_digest}"
    for name in sorted(plan.machine.keys() | header.machine.keys()):
        planned, found = plan.machine.get(name), header.machine.get(name)
        if planned != found:
            yield f"another machine than planned: {name} is {found}, not {planned}"
    if summary.num_done < summary.num_all:
        yield f"the run is not finished: {summary.num_done} of {summary.num_all} requests are measured"
