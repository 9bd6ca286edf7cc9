"""The exact law of a whole generation: the product's round loop, every uniform of which is integrated.

Nothing is sampled. The drafter must do the same again for the same draws after ``reset``, or there is nothing to integrate.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from specframe.distribution import Distribution, Floats
from specframe.generation import Generation
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Drafter, Drawn
from specframe.random import Purpose, Random
from specframe.request import Request
from specframe.strategy import Strategy
from specframe.testing.enumerator import Ids
from specframe.testing.integrator import Integrand, integrate
from specframe.testing.runs import run
from specframe.testing.table import TableTarget
from specframe.verify import Choice, Decision, Row, Rule


def output_law(
    target: TableTarget,
    drafters: Mapping[str, Drafter],
    strategy: Strategy,
    request: Request,
    *,
    generation: type[Generation] = Generation,
) -> dict[Ids, Fraction]:
    """Return the exact law of the output ids of a sampled request under residual verification.

    The drafters are reset before each of the many runs. ``generation`` may be a wrong round loop, to show that a comparison
    sees it.
    """

    def run_once(draws: Integrand) -> Ids:
        for drafter in drafters.values():
            drafter.reset()
        passing = _Passing(draws)
        noted = _noting(generation, draws)
        try:
            return run(target, drafters, strategy, request, generation=noted, random=passing).token_ids
        except KeyboardInterrupt:
            if passing.pause is None:
                raise
            raise passing.pause from None
        finally:
            target.calls.clear()

    return integrate(run_once)


def plain_law(target: TableTarget, request: Request) -> dict[Ids, float]:
    """Return the law of plain decoding: the product of the processed rows' own probabilities."""
    pipeline = Pipeline(
        request.policy,
        vocab_size=target.facts.vocab_size,
        stop_ids=request.stop_ids,
        num_prompt=len(request.prompt_ids),
    )
    done: dict[Ids, float] = {}
    open_: dict[Ids, float] = {(): 1.0}
    while open_:
        ids, weight = open_.popitem()
        if len(ids) == request.budget or (ids and ids[-1] in request.stop_ids):
            done[ids] = weight
            continue
        prefix = Prefix(request.prompt_ids, request.grammar, "cpu")
        for token in ids:
            prefix.push(token)
        row = pipeline.distribution(target.row(prefix.ids), prefix, len(prefix))
        open_ |= {
            (*ids, token): weight * prob for token, prob in zip(row.ids.tolist(), row.probs.tolist(), strict=True)
        }
    return done


def deviation(found: Mapping[Ids, Fraction], expected: Mapping[Ids, float]) -> float:
    """Return the largest difference of an output's probability; infinite if one law makes possible what the other does not.

    An impossible output is never a matter of rounding, so it is not weighed by its mass.
    """
    if {ids for ids, prob in found.items() if prob} != {ids for ids, prob in expected.items() if prob}:
        return float("inf")
    return max(abs(float(found[ids]) - prob) for ids, prob in expected.items() if prob)


class _Passing(Random):
    """An integrator's draws whose pause passes through what catches a drafter's failures, as an interrupt does."""

    def __init__(self, draws: Random) -> None:
        self._draws = draws
        self.pause: BaseException | None = None

    def uniform(self, purpose: Purpose, round_id: int, node: int) -> float:
        try:
            return self._draws.uniform(purpose, round_id, node)
        except BaseException as pause:
            self.pause = pause
            raise KeyboardInterrupt from pause

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return self._draws.gumbel(position, ids)


def _noting(generation: type[Generation], draws: Integrand) -> type[Generation]:
    """Return a round loop whose rule tells the integrator what every draw led to."""

    class Noting(generation):  # type: ignore[misc, valid-type]  # a subclass of what is certified
        @property
        def rule(self) -> Rule:
            return _NotedRule(super().rule, draws)

    return cast(type[Generation], Noting)


class _NotedRule:
    """A rule that tells where its draws may step, and what came of them."""

    def __init__(self, inner: Rule, draws: Integrand) -> None:
        self._inner, self._draws = inner, draws

    def draw(self, row: Row, node: int) -> Drawn:
        known = _KnownRow(row)
        self._draws.suggest(_cumulative(known.distribution().probs))
        drawn = self._inner.draw(known, node)
        self._draws.note(drawn.token)
        return drawn

    def judge(self, row: Row, node: int, token: int, law: Any) -> Decision:
        known = _KnownRow(row)
        target = known.distribution()
        draft_prob = 1.0 if law is None else law.prob(token)
        ratio = min(1.0, target.prob(token) / draft_prob) if draft_prob else 0.0
        residual = target.residual(token if law is None else law).weights
        self._draws.suggest([ratio, *_cumulative(residual)])
        decision = self._inner.judge(known, node, token, law)
        self._draws.note(decision)
        return decision

    def extra(self, row: Row, num_proposed: int) -> Decision:
        known = _KnownRow(row)
        self._draws.suggest(_cumulative(known.distribution().probs))
        decision = self._inner.extra(known, num_proposed)
        self._draws.note(decision)
        return decision


class _KnownRow:
    """A row that is processed once."""

    def __init__(self, row: Row) -> None:
        self._row, self.position = row, row.position
        self._distribution: Distribution | None = None

    def choose(self) -> Choice:
        return self._row.choose()

    def distribution(self) -> Distribution:
        if self._distribution is None:
            self._distribution = self._row.distribution()
        return self._distribution


def _cumulative(weights: Floats) -> list[float]:
    sums = np.cumsum(weights)
    points: list[float] = (sums[:-1] / sums[-1]).tolist() if sums[-1] > 0 else []
    return points
