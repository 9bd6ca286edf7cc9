"""The statistical tests: right odds on right numbers, against scipy, and small p-values on wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from specframe.testing.statistics import goodness_of_fit, holm, uniformity

PROBS = {"a": 0.5, "b": 0.3, "c": 0.2}


def test_chi_square_is_scipys():
    """The tail is taken from torch; its value is the one that everyone else computes."""
    counts = {"a": 55, "b": 25, "c": 20}
    assert goodness_of_fit(counts, PROBS) == pytest.approx(scipy.stats.chisquare([55, 25, 20], [50, 30, 20]).pvalue)


def test_small_cells_are_put_together():
    """A cell with a tenth of an expected count would make any hit in it a finding."""
    probs = {"a": 0.98, **{str(index): 0.001 for index in range(20)}}
    counts = {"a": 985, "3": 4, "7": 4, "12": 4, "19": 3}
    assert goodness_of_fit({"a": 98, "3": 2}, probs) is None  # two expected outside the first cell: nothing to compare
    assert goodness_of_fit(counts, probs) > 0.1


def test_an_impossible_outcome_has_no_chance():
    """It is never a matter of rounding."""
    assert goodness_of_fit({"a": 1000, "d": 1}, {**PROBS, "d": 0.0}) == 0
    assert goodness_of_fit({"a": 1000, "e": 1}, PROBS) == 0


def test_uniformity_has_its_odds():
    """Of 2,000 uniform samples 5% have p < 0.05, give or take six sigma (odds 2e-9); samples of a law beside it have few."""
    source = np.random.default_rng(0)
    small = sum(uniformity(source.random(400).tolist(), 16) < 0.05 for _ in range(2000))
    assert abs(small / 2000 - 0.05) < 6 * (0.05 * 0.95 / 2000) ** 0.5
    assert uniformity((source.random(400) ** 1.5).tolist(), 16) < 1e-6
    assert uniformity([0.5] * 79, 16) is None
    assert uniformity([1.0] * 80, 16) < 1e-6  # the end of the interval is in the last bin


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_is_holms(p_values):
    """Step-down, monotone, and never smaller than what was put in."""
    adjusted = holm(p_values)
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    assert all(one >= p for one, p in zip(adjusted, p_values, strict=True))
    assert sorted(adjusted) == [adjusted[index] for index in order]
    assert adjusted[order[0]] == min(1.0, len(p_values) * p_values[order[0]])
    # Rejected at alpha exactly where Holm's procedure rejects.
    for alpha in (0.01, 0.05, 0.3):
        rejected = set()
        for rank, index in enumerate(order):
            if (len(p_values) - rank) * p_values[index] >= alpha:
                break
            rejected.add(index)
        assert {index for index, value in enumerate(adjusted) if value < alpha} == rejected
