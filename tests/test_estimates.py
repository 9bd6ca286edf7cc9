"""Estimates from few and noisy samples: costs by size, and survival by position."""

from __future__ import annotations

import random

import pytest

from specframe.estimates import CostCurve, Survival
from specframe.records import DrafterShare


def curve(samples, prior_slope=0.1, shape=()):
    made = CostCurve(prior_slope, shape)
    for size, seconds in samples:
        made.add(size, seconds)
    return made


def cost(made, size):
    return made.upto(size)[size]


def test_what_is_not_measured_follows_from_what_is():
    """Prevents a decision from waiting for a measurement of every size."""
    assert cost(curve([]), 5) == 0.0
    assert cost(curve([(0, 2.0)]), 5) == 3.0
    measured = curve([(0, 2.0), (4, 4.0), (4, 4.0)])
    assert [cost(measured, size) for size in (0, 2, 4, 6, 40)] == [2.0, 3.0, 4.0, 5.0, 22.0]
    assert (curve([]).has_base, measured.has_base) == (False, True)
    assert (curve([]).largest, measured.largest) == (0, 4)


def test_what_is_known_of_the_shape_gives_the_price_of_every_size():
    """Prevents sizes from being tried one after the other to learn what a machine is known to do."""
    shape = (1.0, 1.6, 2.0, 1.4)
    unpriced, priced = curve([], shape=shape), curve([(3, 2.8), (3, 2.8)], shape=shape)
    assert (unpriced.is_comparable, unpriced.has_base) == (True, False)
    assert (priced.is_comparable, priced.has_base) == (True, True)
    assert [cost(priced, size) for size in (0, 1, 2, 3)] == pytest.approx(
        [2.0, 3.2, 4.0, 2.8]
    )  # not the larger the dearer
    assert cost(priced, 6) == pytest.approx(2.0 * (1.4 + 3 * 0.4 / 3))  # past its end it goes on
    both = curve([(3, 2.8), (0, 2.2)], shape=shape)
    assert cost(both, 1) == pytest.approx(1.6 * 2.1)  # the scale is that of all that was measured
    assert cost(both, 0) == pytest.approx((2.1 + 2.2) / 2)  # its own sample counts as much as the shape
    for _ in range(7):
        both.add(0, 2.2)
    assert 2.19 < cost(both, 0) < 2.2


def test_less_than_was_measured_is_expected_to_cost_less():
    """Prevents a drafter that was priced at one length from being held for equally dear at every shorter one."""
    measured = curve([(3, 0.4)], prior_slope=0.0)
    assert [cost(measured, size) for size in (0, 1, 3)] == pytest.approx([0.1, 0.2, 0.4])
    measured.add(0, 0.3)  # asked, and nothing proposed
    assert cost(measured, 1) == pytest.approx(0.3 + 0.1 / 3)


def test_the_first_call_of_a_size_is_not_believed_when_it_is_dearer_than_expected():
    """Prevents what happens once in a first call of a size, or to it, from passing for the price of every call."""
    once = curve([(0, 1.0), (4, 30.0)])
    assert cost(once, 4) == pytest.approx(1.4)
    once.add(4, 1.6)
    assert cost(once, 4) == 1.6
    assert cost(curve([(0, 1.0), (4, 1.02)]), 4) == 1.02
    assert cost(curve([(4, 30.0)], prior_slope=0.0), 6) == 30.0  # nothing was expected


def test_a_size_costs_no_more_than_a_larger_one():
    """Prevents one disturbed size from being avoided for good, where a larger one is known to cost less."""
    measured = curve([(0, 5.0), (2, 9.0), (2, 9.0), (4, 1.5), (4, 1.5)])
    assert [cost(measured, size) for size in (0, 1, 2, 3, 4)] == [1.5] * 5


def test_steals_of_time_do_not_move_a_cost():
    """Prevents a machine that another process slows down, one call in five by five times, from looking slow.

    Its negative control is the mean of the same samples.
    """
    source = random.Random(0)
    costs, means = [], []
    for _ in range(200):
        samples = [1.0 + 0.02 * source.random() + (4.0 if source.random() < 0.2 else 0.0) for _ in range(8)]
        costs.append(cost(curve([(0, seconds) for seconds in samples]), 0))
        means.append(sum(samples) / len(samples))
    assert max(costs) < 1.03
    assert sum(means) / len(means) > 1.5


def test_old_costs_are_forgotten():
    """Prevents a longer context, or a machine that has become slower, from being priced as it was."""
    slower = curve([(0, 1.0)] * 20 + [(0, 2.0)] * 8)
    assert cost(slower, 0) == 2.0


def share(num_proposed, num_accepted, limit=8, num_evaluated=None):
    if num_evaluated is None:
        num_evaluated = min(num_accepted + 1, num_proposed)
    return DrafterShare("d", limit, 0, num_proposed, num_evaluated, num_accepted, num_accepted, 0.0, 0.0)


def stands(survival, num_tokens):
    return [chances.stands for chances in survival.upto(num_tokens)]


def learned(*shares):
    survival = Survival()
    for one in shares:
        survival.learn(one)
    return survival


def test_survival_before_anything_is_known():
    """Prevents a drafter from being off, or fully on, before it has proposed anything."""
    assert stands(Survival(), 3) == pytest.approx([0.82, 0.82**2, 0.82**3])
    assert [chances.reach for chances in Survival().upto(3)] == [1.0] * 3


def test_survival_comes_to_what_happens():
    """Prevents the prior from holding against evidence; a position is drawn to the others, by less than a tenth."""
    source = random.Random(1)
    chances = [0.9, 0.5, 0.1]
    survival, found = Survival(), []
    for index in range(600):
        accepted = 0
        while accepted < 3 and source.random() < chances[accepted]:
            accepted += 1
        survival.learn(share(3, accepted, limit=3))
        if index >= 40:
            found.append(stands(survival, 3))
    means = [sum(column) / len(found) for column in zip(*found, strict=True)]
    assert means == pytest.approx([0.9, 0.45, 0.045], abs=0.1)


def test_a_drafter_with_a_restraint_of_its_own_is_judged_by_what_it_proposes():
    """Prevents weak short proposals, of which there are many, from cutting the strong long ones."""
    survival = learned(*[share(1, 0)] * 9, *[share(6, 6)] * 3, *[share(1, 0)] * 9)
    assert stands(survival, 6)[0] < 0.2
    assert min(stands(survival, 6)[1:]) > 2 * stands(survival, 6)[0]
    assert survival.upto(6)[5].reach < 0.5
    always_long = learned(*[share(6, 0)] * 9)
    assert max(stands(always_long, 6)[1:]) < 0.1


def test_what_was_not_put_to_the_test_teaches_nothing():
    """Prevents a drafter from being judged by another's failure, or by the end of the output."""
    assert stands(learned(share(3, 0, num_evaluated=0)), 3) == stands(Survival(), 3)
    cut = learned(share(4, 2, num_evaluated=2))
    assert stands(cut, 4)[2] > stands(Survival(), 4)[2]


def test_recent_proposals_count_most():
    """Prevents a text that has changed its kind from being drafted as its beginning was."""
    assert stands(learned(*[share(2, 2)] * 30, *[share(2, 0)] * 10), 2)[0] < 0.25
    assert stands(learned(*[share(2, 0)] * 30, *[share(2, 2)] * 10), 2)[1] > 0.75
