"""Counts by position: survival, conditional acceptance, and what was never put to the test."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.positions import by_position


class Part(NamedTuple):
    num_proposed: int
    num_evaluated: int
    num_accepted: int
    num_kept: int


def broken_at(num_proposed, position):
    """Return a proposal whose token at ``position``, from 1, was rejected; 0 for none."""
    if not position:
        return Part(*[num_proposed] * 4)
    return Part(num_proposed, position, position - 1, position - 1)


rounds = st.integers(0, 6).flatmap(lambda size: st.builds(broken_at, st.just(size), st.integers(0, size)))


def test_a_small_trace_by_hand():
    """Prevents a position from being counted in rounds that never offered it."""
    first, second, third = by_position([broken_at(3, 2), broken_at(1, 0), broken_at(3, 0), broken_at(0, 0)])
    assert (first.num_proposed, first.num_evaluated, first.num_accepted) == (3, 3, 3)
    assert (second.num_proposed, second.num_evaluated, second.num_accepted) == (2, 2, 1)
    assert (third.num_proposed, third.num_evaluated, third.num_accepted) == (2, 1, 1)
    assert [stats.survival for stats in (first, second, third)] == [1.0, 0.5, 0.5]
    assert [stats.acceptance for stats in (first, second, third)] == [1.0, 0.5, 1.0]
    assert [stats.num_rejected for stats in (first, second, third)] == [0, 1, 0]
    assert by_position([]) == ()


@given(parts=st.lists(rounds))
def test_counts_are_ordered_and_rejections_are_broken_rounds(parts):
    """Prevents sub-counts above their totals and acceptance above 1 (case L1)."""
    positions = by_position(parts)
    for stats in positions:
        assert (
            0 <= stats.num_kept <= stats.num_accepted <= stats.num_evaluated <= stats.num_decided <= stats.num_proposed
        )
        assert stats.survival is None or 0 <= stats.survival <= 1
    assert len(positions) == max((part.num_proposed for part in parts), default=0)
    for name in Part._fields:
        assert sum(getattr(stats, name) for stats in positions) == sum(getattr(part, name) for part in parts)
    assert sum(stats.num_rejected for stats in positions) == sum(
        part.num_evaluated > part.num_accepted for part in parts
    )


@given(breaks=st.lists(st.integers(0, 5), min_size=1))
def test_survival_is_the_product_of_acceptances_where_proposals_are_equally_long(breaks):
    """Prevents S_i from being another quantity than the report's: S_i = a_1 ... a_i (no independence is needed)."""
    product = 1.0
    for stats in by_position(broken_at(5, position) for position in breaks):
        product *= stats.acceptance or 0.0
        assert stats.survival == pytest.approx(product)


def test_survival_of_unequal_proposals_is_not_the_product():
    """Prevents a drafter that goes on only when it is sure from being charged with its short failures."""
    first, second = by_position([broken_at(1, 1)] * 8 + [broken_at(2, 0)] * 2)
    assert (first.survival, second.survival) == (0.2, 1.0)


def test_what_the_end_of_the_output_cut_off_is_not_a_failure():
    """Prevents an end of sequence inside a block from lowering the survival of the positions after it."""
    cut = Part(4, 2, 2, 2)
    assert [stats.num_decided for stats in by_position([cut])] == [1, 1, 0, 0]
    assert [stats.survival for stats in by_position([cut, broken_at(4, 0)])] == [1.0] * 4


def test_what_came_after_another_drafters_failure_was_not_put_to_the_test():
    """Prevents a drafter from being charged with the failure of the one before it."""
    (stats,) = by_position([Part(1, 0, 0, 0)])
    assert (stats.num_proposed, stats.num_decided, stats.survival, stats.acceptance) == (1, 0, None, None)


def test_survival_estimates_the_chance_that_made_it():
    """Prevents a systematic error; the tolerance is five standard errors (false alarm 6e-7 for each of four positions).

    Its negative control is the estimate that counts rounds which never offered the position.
    """
    random = np.random.default_rng(0)
    chances, parts = [0.9, 0.7, 0.5, 0.2], []
    for _ in range(20_000):
        size = random.integers(1, 5)
        failures = np.flatnonzero(random.random(size) >= chances[:size])
        parts.append(broken_at(int(size), int(failures[0]) + 1 if len(failures) else 0))
    positions = by_position(parts)
    expected = np.cumprod(chances)
    for stats, chance in zip(positions, expected, strict=True):
        error = 5 * (chance * (1 - chance) / stats.num_decided) ** 0.5
        assert abs(stats.survival - chance) < error
    last = positions[-1]
    assert abs(last.num_accepted / len(parts) - expected[-1]) > 5 * (expected[-1] / len(parts)) ** 0.5
