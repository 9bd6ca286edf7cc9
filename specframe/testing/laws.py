"""The output law under residual verification, on small tables: enumerated to the last uniform, and by Monte Carlo."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import attrs

from specframe.generation import Generation
from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Round
from specframe.random import Purpose
from specframe.request import Request
from specframe.testing.exhaustive import deviation, output_law, plain_law
from specframe.testing.finding import Finding, Statistic, failed, noted, passed
from specframe.testing.plan import PROMPTS, Plan, sampling_policies
from specframe.testing.runs import Subject, request_of, run
from specframe.testing.statistics import goodness_of_fit, uniformity
from specframe.testing.table import TableTarget, random_table
from specframe.testing.transforms import Transforms
from specframe.verify import Decision, Residual, Row, Rule

FAILING = "temperature, failing after it proposed"


class Size(NamedTuple):
    """An enumeration's size: ids of the vocabulary, tokens of an output, and at most so many proposed a round."""

    vocab_size: int
    num_tokens: int
    num_proposed: int


_SIZES = {
    "temperature": Size(3, 3, 1),
    "top-p": Size(3, 3, 1),
    "penalties": Size(2, 3, 1),
    "mask": Size(3, 4, 2),
    FAILING: Size(2, 3, 1),
}
_MONTE_CARLO = Size(3, 4, 2)


def enumerations(subject: Subject, plan: Plan, *, is_deterministic: bool) -> dict[str, Callable[[], Finding]]:
    """Return the enumerations by name; each runs when it is called."""
    return {
        f"exact law: {name}": partial(enumerate_law, subject, plan, name, is_deterministic=is_deterministic)
        for name in (*plan.policies, FAILING)
    }


def monte_carlo(subject: Subject, plan: Plan) -> dict[str, Callable[[], Finding]]:
    """Return the Monte Carlo tests by name, and the control that shows what they can see."""
    return {
        **{f"Monte Carlo: {name}": partial(sample_law, subject, plan, name) for name in plan.policies},
        "Monte Carlo: control": partial(control, subject, plan),
    }


def enumerate_law(subject: Subject, plan: Plan, name: str, *, is_deterministic: bool) -> Finding:
    """Whether the law of whole outputs is plain decoding's, output by output, every uniform integrated."""
    if not is_deterministic:
        return Finding("skipped", "only a deterministic drafter can be enumerated")
    size = _SIZES.get(name, Size(3, plan.num_chained, 2))
    target = _table(size)
    request = _request(target, name.partition(",")[0], size)
    drafters = dict(subject.make(target))
    if name == FAILING:
        drafters = {who: _FailsAfter(drafter, token=0) for who, drafter in drafters.items()}
    strategy = subject.rounds(max_tokens=size.num_proposed, verifier="residual")
    law = output_law(target, drafters, strategy, request, generation=subject.generation)
    expected = plain_law(target, request)
    largest = deviation(law, expected)
    figures = {"outputs": len(expected), "largest_deviation": largest, **size._asdict()}
    if largest == float("inf"):
        return failed("an output is possible that plain decoding never gives, or never comes that it gives", **figures)
    if largest > plan.largest_deviation:
        return failed(f"an output's probability is off by {largest:.2g}", **figures)
    return passed(f"{len(expected)} outputs have plain decoding's probabilities to {largest:.1g}", **figures)


def sample_law(subject: Subject, plan: Plan, policy: str) -> Finding:
    """Test sampled outputs against the law of plain decoding, and each draw and decision against its own."""
    target = _table(_MONTE_CARLO)
    request = _request(target, policy, _MONTE_CARLO)
    transforms = Transforms()
    watching = transforms.watch(subject.generation)
    strategy = subject.rounds(max_tokens=_MONTE_CARLO.num_proposed, verifier="residual")
    drafters = subject.make(target)
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(plan.num_outputs):
        for drafter in drafters.values():
            drafter.reset()
        seeded = attrs.evolve(request, seed=seed)
        made = run(target, drafters, strategy, seeded, generation=watching, terms=subject.terms)
        counts[made.token_ids] += 1
    probs = plain_law(target, request)
    tests = {
        "outputs": Statistic(goodness_of_fit(cast(Any, counts), cast(Any, probs)), plan.num_outputs),
        **transformed(transforms, plan),
    }
    if transforms.num_impossible:
        return failed(f"{transforms.num_impossible} draws or decisions have probability 0")._replace(tests=tests)
    return Finding("passed", "outputs, draws and decisions have their laws", {"outputs": plan.num_outputs}, tests)


def transformed(transforms: Transforms, plan: Plan) -> dict[str, Statistic]:
    """Return the tests of uniformity of transforms by kind."""
    return {
        kind: Statistic(uniformity(values, plan.num_bins), len(values)) for kind, values in transforms.values.items()
    }


def control(subject: Subject, plan: Plan) -> Finding:
    """Run the tests on a wrong verifier, which corrects from q where it should from [q - p]+: they should see it."""
    wrong = Subject(subject.name, subject.make, subject.strategy, _correcting_from_target(subject.generation))
    found = sample_law(wrong, plan, "temperature")
    p_values = [tested.p_value for tested in found.tests.values() if tested.p_value is not None]
    smallest = min(p_values, default=1.0)
    num_corrections = found.tests["corrections"].num_values
    if found.status == "failed" or smallest < plan.alpha:
        told = "a wrong verifier, which corrects from the target's own law, is seen by these tests"
        return passed(told, smallest_p_value=smallest, corrections=num_corrections)
    return noted(
        "these tests did not see a wrong verifier: this drafter is hardly ever corrected here",
        smallest_p_value=smallest,
        corrections=num_corrections,
    )


def _table(size: Size) -> TableTarget:
    return random_table(vocab_size=size.vocab_size, order=1, seed=1, spread=1.0)


def _request(target: TableTarget, policy: str, size: Size) -> Request:
    prompt = [token % size.vocab_size for token in PROMPTS[0]]
    arguments = sampling_policies(size.vocab_size)[policy]
    return request_of(target, prompt, {"max_new_tokens": size.num_tokens, "seed": 0, **arguments})


class _FailsAfter:
    """A drafter that fails after another has proposed a certain id last: its failure depends on what was drawn."""

    def __init__(self, inner: Drafter, token: int) -> None:
        self.inner, self.token = inner, token

    def open(self, request: DraftRequest) -> _FailsAfterSession:
        return _FailsAfterSession(self.inner.open(request), self.token)

    def reset(self) -> None:
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()


class _FailsAfterSession:
    """A session of ``_FailsAfter``."""

    def __init__(self, inner: DraftSession, token: int) -> None:
        self._inner, self._token = inner, token

    def propose(self, round: Round) -> None:
        num_before = len(round.context)
        self._inner.propose(round)
        if round.context[num_before:][-1:] == (self._token,):
            raise RuntimeError("fails for what was proposed")

    def commit(self, commit: Commit) -> None:
        self._inner.commit(commit)

    def close(self) -> None:
        self._inner.close()


def _correcting_from_target(generation: type[Generation]) -> type[Generation]:
    class Wrong(generation):  # type: ignore[misc, valid-type]  # a subclass of what is certified
        @property
        def rule(self) -> Rule:
            right = super().rule
            assert isinstance(right, Residual)
            return _CorrectingFromTarget(right)

    return cast(type[Generation], Wrong)


class _CorrectingFromTarget:
    """Residual verification but for its correction, which is drawn from q."""

    def __init__(self, right: Residual) -> None:
        self._right = right
        self.draw, self.extra = right.draw, right.extra

    def judge(self, row: Row, node: int, token: int, law: Any) -> Decision:
        decision = self._right.judge(row, node, token, law)
        if decision.is_accepted:
            return decision
        point = self._right.random.uniform(Purpose.CORRECTION_SAMPLE, self._right.round_id, node)
        return Decision(False, row.distribution().sample(point))
