"""Cases L1 and L3: counters that break their identities, and speed-ups that are not real."""

from __future__ import annotations

import pytest
from models import engine_on, random_table

from specframe import Engine, Strategy
from specframe.bench.timing import time_arms
from specframe.bench.workload import WorkItem
from specframe.schedule import RoundCosts, constant_survival, cost_per_token
from specframe.strategy import Length
from specframe.testing import Adversary, Faulty, LogitsDrafter, Machine, Oracle, RandomOffers, ScriptedDrafter

SAMPLINGS = [{}, {"temperature": 0.9, "seed": 5}]


def drafters(full, target):
    """Return drafters whose rounds hold all that a counter may trip over, by name."""

    def two_then_none(context, index):
        start = len(context) - 2
        return full[start] if index < 2 and start % 3 and start < len(full) else None

    return {
        "right": [Oracle(full)],
        "wrong at 0": [Oracle(full, wrong_at=0)],
        "wrong at 2": [Oracle(full, wrong_at=2)],
        "rounds without a proposal": [Adversary(two_then_none)],
        "two drafters": [Adversary(two_then_none), RandomOffers(seed=3)],
        "drawing": [LogitsDrafter(random_table(seed=1).row, num_tokens=3)],
        "drawing the target's own": [LogitsDrafter(target.row), RandomOffers(seed=1)],
        "failing": [Faulty("propose", 2, inner=Oracle(full, wrong_at=1)), Oracle(full)],
    }


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("length", [1, 3, 7])
def test_l1_counters_keep_their_identities(length, sampling, verifier):
    """Rates above 1, drafts counted as rounds x maximum, and a bonus counted where the output ended inside a block."""
    target = random_table(stop_ids=[7])
    full = engine_on(random_table()).generate([1, 2], max_new_tokens=20, **sampling).token_ids
    for name, chosen in drafters(full, target).items():
        for budget in (1, 2, 5, 20):
            engine = engine_on(target, *chosen, length=length, verifier=verifier)
            result = engine.generate([1, 2], max_new_tokens=budget, **sampling)
            stats = result.stats
            assert stats.num_tokens == len(result.token_ids), name
            # Every token is a kept proposal or the target's own, one a round unless the output ended with an accepted one.
            own = [record.num_emitted - record.num_kept for record in result.records]
            assert sum(position.num_kept for position in stats.positions) + sum(own) == stats.num_tokens
            assert set(own[:-1]) <= {1}
            assert own[0] == 1  # the prefill's token is the target's
            for record in result.records[:-1]:  # the one that broke a proposal was judged too, and none behind it
                assert record.num_evaluated == min(record.num_accepted + 1, record.num_proposed)
            assert stats.num_proposed == sum(position.num_proposed for position in stats.positions)
            assert stats.num_proposed <= length * (stats.num_rounds - 1)
            assert stats.tokens_per_call == stats.num_tokens / stats.num_target_calls
            for depth, position in enumerate(stats.positions, start=1):
                assert_of_rounds_that_came_so_far(position, depth, result.records)
            for drafter in stats.drafters.values():
                assert 0 <= drafter.num_accepted <= drafter.num_evaluated <= drafter.num_proposed
                assert drafter.acceptance is None or 0 <= drafter.acceptance <= 1
                assert [position.num_proposed for position in drafter.positions] == sorted(
                    (position.num_proposed for position in drafter.positions), reverse=True
                )


def assert_of_rounds_that_came_so_far(position, depth, records):
    """Assert that a position counts the rounds that proposed so many tokens, and its survival those that decided about it."""
    offered = [record for record in records if record.num_proposed >= depth]
    broken = [
        record for record in offered if record.num_accepted < depth and record.num_evaluated > record.num_accepted
    ]
    stood = [record for record in offered if record.num_accepted >= depth]
    assert (position.num_proposed, position.num_accepted) == (len(offered), len(stood))
    num_decided = len(stood) + len(broken)
    assert position.survival == (len(stood) / num_decided if num_decided else None)


def test_l1_the_parts_of_a_round_stand_side_by_side():
    """Tokens credited to the wrong drafter, or counted for two."""
    target = random_table()
    full = target.greedy([1, 2], 40)
    result = engine_on(target, Oracle(full, wrong_at=1), RandomOffers(seed=2), length=6).generate(
        [1, 2], max_new_tokens=40
    )
    for record in result.records[1:]:
        position = 0
        for share in record.drafters:
            if share.num_proposed:
                assert share.start == position
                position += share.num_proposed
            assert share.num_proposed <= share.limit
        assert position == record.num_proposed


def test_l1_an_end_inside_a_block_adds_no_token_of_the_targets():
    """One token too many, "accepted + 1", counted where the end of the sequence cut the block."""
    target = random_table()
    full = target.greedy([1, 2], 12)
    stop = full[5]
    index = full.index(stop)
    result = engine_on(target, Oracle(full), length=11).generate([1, 2], max_new_tokens=12, stop_ids=[stop])
    assert result.token_ids == tuple(full[: index + 1])
    last = result.records[-1]
    assert (last.num_emitted, last.num_kept) == (index, index)
    assert last.num_evaluated == last.num_accepted == index
    assert [position.num_decided for position in result.stats.positions] == [1] * index


def test_entropies_are_those_of_the_laws_that_tokens_were_drawn_from():
    """An entropy of a row that was never judged, or of the target's, calibrates nothing."""
    flat = [0.0] * 12
    sharp = [50.0, *[0.0] * 11]
    target = random_table()

    def run(row, is_kept=True, **strategy):
        drafters = {"drawing": LogitsDrafter(lambda ids: row, num_tokens=2), "offering": RandomOffers(seed=1)}
        made = Strategy(length=Length(max_tokens=4), **strategy)
        engine = Engine(target, drafters, strategy=made, keep_entropies=is_kept)
        return engine.generate([1, 2], max_new_tokens=40, temperature=1.0, seed=1).stats.drafters

    for verifier in ("coupled", "residual"):
        drawing, offering = run(flat, verifier=verifier).values()
        assert len(drawing.entropies) == drawing.num_evaluated
        assert sum(is_accepted for _, is_accepted in drawing.entropies) == drawing.num_accepted
        assert {round(entropy, 9) for entropy, _ in drawing.entropies} == {2.484906650}  # ln 12
        assert offering.num_evaluated > 0
        assert offering.entropies == ()
        drawing, _ = run(sharp, verifier=verifier).values()
        assert max(entropy for entropy, _ in drawing.entropies) < 1e-6
    assert not any(stats.entropies for stats in run(flat, is_kept=False).values())


class MachineArm:
    """An engine on a machine as an arm of a comparison."""

    def __init__(self, machine, *drafters, length=None):
        self.engine = machine.engine(*drafters, length=length)

    def __call__(self, prompt_ids, max_new_tokens):
        return self.engine.generate(prompt_ids, max_new_tokens=max_new_tokens).token_ids

    def reset(self):
        self.engine.reset()


def compare(machine, arms, **changes):
    """Return what a comparison on the machine's clock measures over two prompts."""
    items = [WorkItem("test", "chat", name, name) for name in "ab"]
    settings = {"max_new_tokens": 200, "repeats": 2, "progress": lambda text: None, "clock": machine.clock}
    return time_arms(arms, items, [[0], [3, 4]], **{**settings, **changes})


class Remembering(ScriptedDrafter):
    """A drafter that has learned a text by heart once it has seen it; ``reset`` is what forgets."""

    def __init__(self, machine, *, forgets):
        super().__init__(machine, lambda emitted, position: self.chance)
        self.chance, self.forgets = 0.1, forgets

    def open(self, request):
        session = super().open(request)
        close = session.close

        def learned():
            close()
            self.chance = 1.0

        session.close = learned
        return session

    def reset(self):
        if self.forgets:
            self.chance = 0.1


@pytest.mark.parametrize("forgets", [True, False])
def test_l3_a_source_that_has_seen_the_text_is_no_faster_the_second_time(forgets):
    """Replayed drafts inflate a repeat many times over; the one that cannot forget is the negative control."""
    machine = Machine(lambda num_proposed: 1.0)
    arms = {"plain": MachineArm(machine), "lookup": MachineArm(machine, Remembering(machine, forgets=forgets))}
    timed = compare(machine, arms)
    if forgets:
        assert max(max(seconds) - min(seconds) for seconds in timed.seconds["lookup"]) < 1e-6
    ratio = timed.compare("lookup", "plain")["total_over_total"]
    assert (ratio > 0.8) is forgets


def test_l3_the_reported_speed_is_the_analytic_one():
    """A formula with a wrong denominator, or a prefill inside one arm's time only, reports another."""
    machine = Machine(lambda num_proposed: 1.0 + 0.1 * num_proposed, prefill_s=20.0)
    drafter = ScriptedDrafter(machine, lambda emitted, position: 1.0, token_s=0.05)
    arms = {"plain": MachineArm(machine), "drafted": MachineArm(machine, drafter, length=Length(max_tokens=4))}
    found = compare(machine, arms, max_new_tokens=401)
    cost = cost_per_token(RoundCosts(1.4, (0.05,) * 4), constant_survival(1.0, 4))
    assert found.compare("drafted", "plain")["total_over_total"] == pytest.approx(
        (20 + 400 * cost) / (20 + 400), abs=1e-4
    )
    assert found.compare("drafted", "plain")["matched"] == "2/2"


def test_l3_arms_of_other_outputs_are_told():
    """An arm that says less is not faster."""
    machine = Machine(lambda num_proposed: 1.0)

    class Short(MachineArm):
        def __call__(self, prompt_ids, max_new_tokens):
            return super().__call__(prompt_ids, max_new_tokens // 2)

    timed = compare(machine, {"plain": MachineArm(machine), "short": Short(machine)}, repeats=1)
    assert timed.compare("short", "plain")["matched"] == "0/2"


def test_l3_where_the_model_says_that_drafting_loses_the_policy_stops():
    """A policy that goes on drafting because tokens are accepted now and then is slower than none."""
    machine = Machine(lambda num_proposed: 1.0 + 0.3 * num_proposed)
    drafter = ScriptedDrafter(machine, lambda emitted, position: 0.3, token_s=0.2)
    costs = [RoundCosts(1.0 + 0.3 * length, (0.2,) * length) for length in range(9)]
    predicted = [cost_per_token(costs[length], constant_survival(0.3, length)) for length in range(9)]
    assert min(predicted) == predicted[0] == 1.0
    arms = {
        "plain": MachineArm(machine),
        "fixed": MachineArm(machine, drafter, length=Length("fixed", 3)),
        "adaptive": MachineArm(machine, drafter, length=Length("adaptive", 8)),
    }
    timed = compare(machine, arms, repeats=1)
    assert timed.compare("fixed", "plain")["total_over_total"] > 1.3
    assert timed.compare("adaptive", "plain")["total_over_total"] < 1.03
