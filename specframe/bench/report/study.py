"""Results and what they mean, arranged for a page: arms and strata in order, and how each arm is drawn.

Knows nothing about figures or markup.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from specframe.bench.lines import RequestRecord
from specframe.bench.metrics import Cell, Summary, summarise
from specframe.bench.report.palette import Look, looks
from specframe.bench.results import Results
from specframe.bench.speed import Speed
from specframe.bench.validity import planned_requests
from specframe.bench.workload import ALL


@attrs.frozen
class Study:
    """A file of results, without requests that are not of its plan; its summary, and the look of each arm."""

    results: Results
    summary: Summary
    looks: Mapping[str, Look]

    @classmethod
    def of(cls, results: Results) -> Study:
        """Arrange results. Raises ``InvalidPlan`` where they hold no plan that this version reads."""
        summary = summarise(results)
        own = attrs.evolve(results, requests=tuple(planned_requests(results, summary.plan)))
        return cls(own, summary, looks(summary.plan))

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
