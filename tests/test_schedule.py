"""The cost model: the report's formulas, and what a machine of known prices then measures."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe.schedule import (
    RoundCosts,
    SessionCosts,
    best_length,
    constant_survival,
    cost_per_token,
    expected_round_cost,
    expected_tokens,
    kv_bytes,
    law_bytes,
    logit_bytes,
    pays,
)
from specframe.strategy import Length
from specframe.testing import Machine, ScriptedDrafter


@given(acceptance=st.floats(0, 0.99), num_tokens=st.integers(0, 12))
def test_expected_tokens_at_constant_acceptance(acceptance, num_tokens):
    """Prevents E[G(k)] from being another sum than the geometric one of the report."""
    expected = (1 - acceptance ** (num_tokens + 1)) / (1 - acceptance)
    assert expected_tokens(constant_survival(acceptance, num_tokens)) == pytest.approx(expected)


def test_a_round_by_hand():
    """Prevents a part of the round's cost from being left out, or weighed by another probability."""
    costs = RoundCosts(
        verify_s=100.0,
        draft_s=(1.0, 2.0),
        sync_s=10.0,
        rollback_s=(1000.0, 2000.0),
        residual_s=(10_000.0, 20_000.0),
        full_accept_s=100_000.0,
        cache_append_s=20.0,
        telemetry_s=30.0,
    )
    # Rejected at 1 with 1 - 3/4, at 2 with 3/4 - 1/4, never with 1/4.
    assert expected_round_cost(costs, (0.75, 0.25)) == 163 + 0.25 * 11_000 + 0.5 * 22_000 + 0.25 * 100_000
    assert cost_per_token(costs, (0.75, 0.25)) == expected_round_cost(costs, (0.75, 0.25)) / 2
    assert cost_per_token(RoundCosts(verify_s=5.0), ()) == 5.0
    with pytest.raises(ValueError, match="must hold S_1 to S_2"):
        expected_round_cost(costs, (0.5,))
    with pytest.raises(ValueError, match="'residual_s' must have an entry for each of 2"):
        RoundCosts(verify_s=1.0, draft_s=(1.0, 1.0), residual_s=(1.0,))
    with pytest.raises(ValueError, match="'verify_s' must be >= 0 seconds"):
        RoundCosts(verify_s=-1.0)


def test_break_even_and_the_least_length():
    """Prevents a draft from being recommended that never pays, or after fewer tokens than it takes."""
    session = SessionCosts(
        target_load_s=7.0,
        target_prefill_s=5.0,
        draft_load_s=6.0,
        draft_prefill_s=2.0,
        draft_initialization_s=1.0,
        extra_allocation_s=1.0,
    )
    assert session.fixed_s == 10.0
    assert session.min_tokens(0.5, 0.25) == 40.0
    assert session.baseline_s(40, 0.5) == session.speculative_s(40, 0.25) == 32.0
    assert session.speculative_s(41, 0.25) < session.baseline_s(41, 0.5)
    assert session.speculative_s(39, 0.25, finalize_s=0.5) > session.baseline_s(39, 0.5)
    assert session.min_tokens(0.5, 0.5) == session.min_tokens(0.5, 0.75) == math.inf
    assert SessionCosts().min_tokens(0.5, 0.25) == 0.0
    assert pays(0.5, 0.25)
    assert not pays(0.5, 0.5)


@pytest.mark.parametrize(
    ("acceptance", "draft_s", "verify_s", "expected"),
    [
        (0.9, 0.0, lambda k: 1.0, 6),
        (0.9, 0.3, lambda k: 1.0, 5),
        (0.2, 0.3, lambda k: 1.0, 0),
        (0.0, 0.0, lambda k: 1.0, 0),
        (0.7, 0.05, lambda k: 1.0 if k < 4 else 2.0, 3),
    ],
)
def test_the_best_length(acceptance, draft_s, verify_s, expected):
    """Prevents a length that costs more per token than another; compared with all of them by hand."""
    survival = constant_survival(acceptance, 6)
    costs = [RoundCosts(verify_s(k), (draft_s,) * k) for k in range(7)]
    by_hand = [(k * draft_s + verify_s(k)) / sum(acceptance**i for i in range(k + 1)) for k in range(7)]
    assert best_length(costs.__getitem__, survival) == by_hand.index(min(by_hand)) == expected


def test_bytes():
    """Prevents a factor that is missing from memory figures: M_KV = 2 S L H D b, and k V b for laws."""
    # SmolLM2-135M: 30 layers, 3 KV heads of 64, float32: 46,080 bytes a position.
    assert kv_bytes(1000, num_layers=30, num_kv_heads=3, head_dim=64, element_bytes=4) == 46_080_000
    assert logit_bytes(7, vocab_size=49_152, element_bytes=4) == 1_572_864
    assert law_bytes(8, vocab_size=49_152) == 3_145_728


NUM_TOKENS = 3000


@pytest.fixture(scope="module")
def plain():
    """Plain decoding on a machine whose prefill takes 3 s and whose one-row forward takes 1 s, as in all scenes."""
    return Machine(lambda k: 1.0, prefill_s=3.0).engine().generate([0], max_new_tokens=NUM_TOKENS + 1)


SCENES = {
    "a free draft, a flat forward": (4, lambda k: 1.0, 0.0, (0.8, 0.8, 0.8, 0.8)),
    "a good draft": (4, lambda k: 1.0 + 0.05 * k, 0.15, (0.85, 0.8, 0.7, 0.6)),
    "a draft that loses": (3, lambda k: 1.0 + 0.2 * k, 0.3, (0.3, 0.3, 0.3)),
    "a forward with a step": (6, lambda k: 1.0 if k < 4 else 1.9, 0.02, (0.95, 0.9, 0.9, 0.9, 0.5, 0.1)),
}


@pytest.mark.parametrize("scene", SCENES)
def test_predicted_and_measured_speed_agree(plain, scene):
    """Prevents a model that is right on paper only: within 2 % of what a machine of these prices takes (case L3).

    The draws are seeded; the standard error of the measured speed is about 1 % at this length.
    """
    length, verify_s, draft_s, chances = SCENES[scene]
    machine = Machine(verify_s, prefill_s=3.0)
    drafter = ScriptedDrafter(machine, lambda emitted, position: chances[position - 1], token_s=draft_s)
    drafted = machine.engine(drafter, length=Length(max_tokens=length)).generate([0], max_new_tokens=NUM_TOKENS + 1)
    assert plain.token_ids == drafted.token_ids
    measured = plain.stats.total_s / drafted.stats.total_s

    session = SessionCosts(target_prefill_s=3.0)
    survival = [math.prod(chances[: i + 1]) for i in range(length)]
    costs = RoundCosts(verify_s(length), (draft_s,) * length)
    spec_s = cost_per_token(costs, survival)
    predicted = session.baseline_s(NUM_TOKENS, 1.0) / session.speculative_s(NUM_TOKENS, spec_s)
    assert plain.stats.total_s == pytest.approx(session.baseline_s(NUM_TOKENS, 1.0))
    assert measured == pytest.approx(predicted, rel=0.02)
    assert pays(1.0, spec_s) is (measured > 1.0) is (scene != "a draft that loses")

    # The same from what the run itself measured: costs by records, survival by positions.
    found = RoundCosts.measured(drafted.records, length)
    observed = [position.survival for position in drafted.stats.positions]
    assert found.verify_s == pytest.approx(verify_s(length))
    assert sum(found.draft_s) == pytest.approx(draft_s * length)
    again = session.speculative_s(NUM_TOKENS, cost_per_token(found, observed))
    assert drafted.stats.total_s == pytest.approx(again, rel=0.01)
    # Negative control: the share of accepted tokens, taken for a constant acceptance, predicts something else.
    share = drafted.stats.num_accepted / drafted.stats.num_proposed
    assert abs(cost_per_token(costs, constant_survival(share, length)) / spec_s - 1) > 0.02


def test_costs_are_measured_from_equally_long_rounds():
    """Prevents a median over rounds of different lengths, and the prefill from being counted as a round."""
    machine = Machine(lambda k: 1.0 + k, prefill_s=50.0)
    drafter = ScriptedDrafter(
        machine, lambda emitted, position: 1.0, token_s=0.25, ask_s=0.5, wanted=lambda n: 2 * (n > 20)
    )
    records = machine.engine(drafter).generate([0], max_new_tokens=40).records
    assert RoundCosts.measured(records, 2) == RoundCosts(3.0, (0.5, 0.5), rollback_s=(0.0, 0.0), residual_s=(0.0, 0.0))
    assert RoundCosts.measured(records, 0) == RoundCosts(1.0, sync_s=0.5)
    assert RoundCosts.measured(records, 7) is None
    assert RoundCosts.measured(records[:1], 0) is None


class Took(NamedTuple):
    """What a round took, as a record tells it."""

    num_proposed: int
    num_accepted: int
    sync_s: float
    decide_s: float
    commit_s: float
    round_id: int = 1
    draft_s: float = 3.0
    forward_s: float = 8.0


def test_a_lost_token_costs_what_rounds_that_lost_one_took():
    """Prevents the price of corrections and rollbacks from being put on rounds that stand whole, or the other way round."""
    whole = [Took(3, 3, 0.5, 2.0, 1.0)] * 3
    lost = [Took(3, 1, 0.5, 1.0, 5.0)] * 5
    found = RoundCosts.measured([*whole, *lost, Took(0, 0, 9.0, 9.0, 9.0)], 3)
    assert found == RoundCosts(
        8.0, (1.0,) * 3, sync_s=0.5, rollback_s=(5.0,) * 3, residual_s=(1.0,) * 3, full_accept_s=3.0
    )
    survival = (0.75, 0.5, 3 / 8)  # of eight rounds three stand whole
    spent = [took.draft_s + took.forward_s + took.sync_s + took.decide_s + took.commit_s for took in (*whole, *lost)]
    assert expected_round_cost(found, survival) == pytest.approx(sum(spent) / 8)
    only = RoundCosts.measured(lost, 3)
    assert (only.rollback_s, only.full_accept_s) == ((5.0,) * 3, 6.0)
    assert RoundCosts.measured([Took(0, 0, 0.5, 2.0, 1.0)], 0) == RoundCosts(8.0, sync_s=3.5, full_accept_s=3.0)
