"""The exact law of code that asks for uniforms, by running it once in every interval in which nothing changes.

``integrate`` knows nothing of what it integrates: it hands out uniforms of the contract's own grid, ``m * 2**-53``, and
finds by bisection where the code's behaviour steps, so that the law is an exact rational number of grid points.
``real_round_law`` runs the shipped verifier (or a wrong one) under it, for comparison with ``enumerator.py``.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from specframe.distribution import Distribution
from specframe.proposal import Proposal
from specframe.random import Purpose, Random
from specframe.testing.enumerator import DraftStep, Ids, Outcome, Table
from specframe.testing.scripted import UniformKey
from specframe.verify import Choice, Residual, Row, Rule, verify

GRID = 1 << 53
_PROBE_WIDTH = GRID >> 2  # every interval this wide is probed, in case two steps cancel between its ends
_NEAR = 16  # grid points by which rounding may shift a suggested step

T = TypeVar("T", bound=Hashable)


class _Paused(BaseException):
    """The code asked for a draw beyond the ones that are fixed; not an ``Exception``, so that no code swallows it."""


class Integrand(Random):
    """The random draws of one run: fixed for the first asks, and pausing the run at the next.

    ``keys`` logs the asks. Asking twice for one key returns one value, as the real contract would.
    """

    def __init__(self, points: list[int]) -> None:
        self._points = points
        self.keys: list[UniformKey] = []
        self.notes: list[Hashable] = []
        self.hints: list[int] = []

    def uniform(self, purpose: Purpose, round_id: int, node: int) -> float:
        index = len(self.keys)
        self.keys.append(UniformKey(purpose, round_id, node))
        if index == len(self._points):
            raise _Paused
        return self._points[index] / GRID

    def gumbel(self, position: int, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        raise NotImplementedError("Gumbel noise is not integrated: what a coupled rule emits is a function of it")

    def note(self, value: Hashable) -> None:
        """Tell the integrator what a draw led to, where the next ask would not show it (a drawn token, a decision)."""
        self.notes.append((len(self.keys), value))

    def suggest(self, points: Iterable[float]) -> None:
        """Tell where the next draws may step. It saves time to look there first; a wrong suggestion changes nothing."""
        near = (int(point * GRID) + side for point in points for side in (-_NEAR, _NEAR))
        self.hints = sorted(near)


def integrate(run: Callable[[Integrand], T]) -> dict[T, Fraction]:
    """Return the exact law of what ``run`` returns, its uniforms ranging over the grid ``m * 2**-53``.

    ``run`` must be a function of the uniforms it asks for, and behave as a step function of each, given those before;
    what is seen of its behaviour is its next ask, its notes and its result. Steps are found to the grid point; a dent
    narrower than 1/4 that leaves both neighbours equal is the one thing that could be missed, and no inverse-CDF draw
    or threshold has one, for each of its values has one interval.
    """
    law: dict[T, Fraction] = {}
    stack: list[tuple[list[int], dict[UniformKey, tuple[int, int]]]] = [([], {})]
    while stack:
        points, intervals = stack.pop()
        is_over, result, draws, _ = _observe(run, points)
        if is_over:
            weight = Fraction(1)
            for low, high in intervals.values():
                weight *= Fraction(high - low, GRID)
            assert not isinstance(result, _Paused)
            law[result] = law.get(result, Fraction(0)) + weight
            continue
        # A key that was asked before keeps its interval, which the new ask can only divide further.
        key = draws.keys[-1]
        fixed = draws.keys[: len(points)]
        repeats = [i for i, k in enumerate(fixed) if k == key]
        for low, high in _steps(run, points, repeats, intervals.get(key, (0, GRID)), draws.hints):
            moved = [low if k == key else point for k, point in zip(fixed, points, strict=True)]
            stack.append(([*moved, low], {**intervals, key: (low, high)}))
    return law


def _observe(run: Callable[[Integrand], T], points: list[int]) -> tuple[bool, T | _Paused, Integrand, Hashable]:
    """Run with the first draws fixed; return whether it ended, its result, its draws, and all that is seen of it."""
    draws = Integrand(points)
    try:
        result: T | _Paused = run(draws)
    except _Paused as pause:
        return False, pause, draws, (False, tuple(draws.keys), tuple(draws.notes))
    return True, result, draws, (True, result, tuple(draws.keys), tuple(draws.notes))


def _steps(
    run: Callable[[Integrand], T],
    points: list[int],
    repeats: list[int],
    interval: tuple[int, int],
    hints: Sequence[int],
) -> list[tuple[int, int]]:
    """Return the intervals of the next uniform in which the run's behaviour is constant.

    ``hints``: points, in order, near which steps are likely; a bracket is divided there before it is halved.
    """

    def seen(point: int) -> Hashable:
        fixed = list(points)
        for index in repeats:
            fixed[index] = point
        return _observe(run, [*fixed, point])[3]

    cuts: list[int] = []
    low, high = interval
    stack = [(low, seen(low), high - 1, seen(high - 1))]
    while stack:
        left, at_left, right, at_right = stack.pop()
        is_wide = right - left >= _PROBE_WIDTH
        if right - left <= 1 or (at_left == at_right and not is_wide):
            if at_left != at_right:
                cuts.append(right)
            continue
        middle = (left + right) // 2 if is_wide else _hinted(hints, left, right)
        at_middle = seen(middle)
        stack += [(left, at_left, middle, at_middle), (middle, at_middle, right, at_right)]
    edges = [low, *sorted(cuts), high]
    return list(itertools.pairwise(edges))


def _hinted(hints: Sequence[int], left: int, right: int) -> int:
    """Return a point inside a bracket: the first hint, else the middle."""
    index = bisect.bisect_right(hints, left)
    return hints[index] if index < len(hints) and hints[index] < right else (left + right) // 2


class LawRow:
    """A verifier's row with a known distribution."""

    def __init__(self, distribution: Distribution, position: int) -> None:
        self._distribution, self.position = distribution, position

    def choose(self) -> Choice:
        return Choice(*self._distribution.argmax())

    def distribution(self) -> Distribution:
        return self._distribution


RunRound = Callable[[Rule, "Callable[[int], Row]", Proposal, frozenset[int]], Outcome]


def run_verify(rule: Rule, row_at: Callable[[int], Row], proposal: Proposal, stop_ids: frozenset[int]) -> Outcome:
    """Run the shipped round verification and return what it emits."""
    verdict = verify(row_at, proposal, rule, lambda token: token in stop_ids)
    last = () if verdict.token is None else (verdict.token,)
    return Outcome((*proposal.ids[: verdict.num_accepted], *last), verdict.is_correction)


def real_round_law(
    target: Table,
    draft: DraftStep,
    prefix: Ids,
    room: int,
    stop_ids: frozenset[int] = frozenset(),
    *,
    rule: Callable[[Random, int], Rule] = Residual,
    run_round: RunRound = run_verify,
) -> dict[Outcome, Fraction]:
    """Return the exact law of one round of real code, to compare with ``enumerator.round_law``.

    The drafter's tokens are drawn by the rule itself. ``rule(random, round id)`` and ``run_round`` may be wrong ones,
    to show that a comparison sees it.
    """
    target_row, draft_row = _rows(target), _rows(draft)

    def run(draws: Integrand) -> Outcome:
        made = rule(draws, 0)
        proposal = Proposal()
        while len(proposal) < room and not (proposal.ids and proposal.ids[-1] in stop_ids):
            context = (*prefix, *proposal.ids)
            step = draft(context)
            if step is None:
                break
            if isinstance(step, int):
                proposal.append(step, None, "draft")
            else:
                drawn = made.draw(draft_row(context), len(proposal))
                draws.note(drawn.token)
                proposal.append(drawn.token, drawn.law, "draft")

        def row_at(index: int) -> Row:
            draws.note(index)  # shows an acceptance even where no further draw follows it
            return target_row((*prefix, *proposal.ids[:index]))

        return run_round(made, row_at, proposal, stop_ids)

    return integrate(run)


def _rows(table: Callable[[Ids], object]) -> Callable[[Ids], LawRow]:
    @functools.cache
    def row_after(ids: Ids) -> LawRow:
        return LawRow(Distribution.from_probs(np.array(table(ids), dtype=np.float64)), len(ids))

    return row_after
