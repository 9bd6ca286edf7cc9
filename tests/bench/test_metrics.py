"""What results mean: figures that anybody can recompute from the lines, and that the known machine must give."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics

import attrs
import pytest
from comparisons import DRAFTED, LIBRARY, PLAIN, items, machine_comparison, made_plan, made_rounds, run_made
from rich.console import Console
from scipy.stats import binom

from specframe import InvalidPlan, Length
from specframe.bench.gates import DELETE, KEEP, PROMOTE, Gate
from specframe.bench.lines import ArmRecord, ByteCounts, Header, RequestRecord
from specframe.bench.metrics import summarise
from specframe.bench.results import Results, ResultWriter, read_results
from specframe.bench.speed import median_interval, speed
from specframe.bench.tables import render
from specframe.positions import PositionStats
from specframe.records import DrafterStats
from specframe.schedule import RoundCosts, constant_survival, cost_per_token
from specframe.testing import Machine, ScriptedDrafter


def request(arm, index, seconds, *, kind="chat", tokens=10, repeat=0, **changes):
    """Return a finished request of so many seconds, of which 1 until the first token."""
    record = RequestRecord(
        arm=arm,
        index=index,
        kind=kind,
        name=f"item {index}",
        repeat=repeat,
        session=0,
        order=0,
        num_prompt=5,
        token_ids=tuple(range(tokens)),
        end_to_end_s=seconds,
        first_token_s=1.0,
        num_first=1,
        decode_s=seconds - 1.0,
        exactness="token-exact",
    )
    return attrs.evolve(record, **changes)


def results_of(requests, arms=None, kinds=("chat",) * 20, **settings):
    """Return results as if they had been read."""
    described = arms or {"plain": PLAIN, "drafted": DRAFTED}
    num_items = 1 + max(record.index for record in requests)
    plan = made_plan(described, items(*kinds[:num_items]), **settings)
    header = Header(plan.digest, plan.as_data(), plan.machine, {}, "not available")
    return Results(header, {}, tuple(requests), 0)


def pairs(seconds, **changes):
    """Return a plain and a drafted request for each pair of seconds."""
    return [
        record
        for index, (plain, drafted) in enumerate(seconds)
        for record in (request("plain", index, plain), request("drafted", index, drafted, **changes))
    ]


def test_speed_is_the_reference_over_the_arm():
    """Prevents the inverse, and a mean of times from hiding requests."""
    found = summarise(results_of(pairs([(10, 5), (10, 20), (4, 3)]))).cell("drafted").speeds["plain"]
    assert found.end_to_end.values == (2.0, 0.5, pytest.approx(4 / 3))
    assert found.end_to_end.median == pytest.approx(4 / 3)
    assert found.end_to_end.total == pytest.approx(24 / 28)
    assert found.decode.median == pytest.approx(3 / 2)
    assert found.decode.total == pytest.approx((9 + 9 + 3) / (4 + 19 + 2))
    assert found.first_token.median == 1.0
    assert (found.matched, found.num_other_length) == ("matched 3/3", 0)


def test_a_disturbed_repeat_does_not_decide():
    """One call that took ten times as long says something about the machine, not about the arm."""
    requests = [
        request(arm, 0, seconds, repeat=repeat)
        for repeat, (plain, drafted) in enumerate([(10, 5), (10, 50), (10.2, 5.1)])
        for arm, seconds in (("plain", plain), ("drafted", drafted))
    ]
    found = summarise(results_of(requests, repeats=3)).cell("drafted").speeds["plain"]
    assert found.num_requests == 1
    assert found.end_to_end.median == pytest.approx(2.0)


def test_arms_of_other_output_lengths_are_flagged_and_have_no_speed():
    """An arm that says less is not faster."""
    short = request("drafted", 1, 1.5, tokens=3)
    other = request("drafted", 2, 5, token_ids=(9,) * 10)
    requests = [r for r in pairs([(10, 5)] * 3) if r.key not in (short.key, other.key)] + [short, other]
    cell = summarise(results_of(requests)).cell("drafted")
    found = cell.speeds["plain"]
    assert (found.matched, found.num_other_length) == ("matched 1/3", 1)
    assert found.end_to_end.values == (2.0, 2.0)
    assert cell.metrics["matched"] == pytest.approx(1 / 3)
    assert cell.verdict.decision == DELETE


def test_failures_are_counted_and_have_no_time():
    """Prevents a request that broke off from being the fastest of all."""
    requests = pairs([(10, 5)] * 6)
    requests[1] = attrs.evolve(requests[1], error="TargetError: x", end_to_end_s=None, token_ids=())
    cell = summarise(results_of(requests)).cell("drafted")
    assert (cell.num_requests, cell.num_failed) == (6, 1)
    told = "drafted: 1 of 6 measurements ended with an error, the first with TargetError: x"
    assert summarise(results_of(requests)).events == (told,)
    assert cell.speeds["plain"].num_requests == 5
    assert cell.verdict.decision == DELETE
    assert any(reason.startswith("failures is 1") for reason in cell.verdict.reasons)


def test_what_plain_decoding_cannot_do_is_no_failure_of_an_arm():
    """A prompt that does not fit says nothing of a strategy; it is counted, and speaks against no arm."""
    requests = pairs([(10, 5)] * 7)
    for index in (12, 13):
        requests[index] = attrs.evolve(
            requests[index], error="InvalidRequest: too long", end_to_end_s=None, token_ids=()
        )
    cell = summarise(results_of(requests)).cell("drafted")
    assert (cell.num_failed, cell.metrics["failures"]) == (1, 0.0)
    assert cell.verdict.decision == KEEP


def test_an_interval_of_the_median_is_that_of_the_binomial():
    """The definition, and how often it misses: never more than one time in twenty."""
    assert median_interval([1.0] * 5) is None
    for count in range(6, 60):
        values = list(range(count))
        low, high = median_interval(values)
        assert low == count - 1 - high
        assert 2 * binom.cdf(low, count, 0.5) <= 0.05 < 2 * binom.cdf(low + 1, count, 0.5)
    source = random.Random(1)
    missed = 0
    for _ in range(2000):
        low, high = median_interval([source.expovariate(1) for _ in range(15)])
        missed += not low <= math.log(2) <= high
    assert missed < 2000 * 0.05  # expected 70 of 2,000; 100 are 3.7 standard deviations away


def test_an_interval_of_many_is_found_at_once():
    """Prevents a large corpus from taking minutes of big numbers for each figure."""
    low, high = median_interval(range(30_000))
    assert low == 29_999 - high
    assert 2 * binom.cdf(low, 30_000, 0.5) <= 0.05 < 2 * binom.cdf(low + 1, 30_000, 0.5)


def test_seeds_of_one_prompt_are_no_independent_evidence():
    """Prevents a narrow interval from one prompt that was sampled a hundred times."""
    seeds = tuple(range(10))
    requests = [
        request(arm, index, seconds, repeat=seed, seed=seed)
        for index in range(2)
        for seed in seeds
        for arm, seconds in (("plain", 10), ("drafted", 5 + seed / 10))
    ]
    settings = {"repeats": 10, "seeds": seeds, "sampling": {"temperature": 1.0}}
    found = summarise(results_of(requests, **settings)).cell("drafted").speeds["plain"]
    assert found.num_requests == len(found.end_to_end.values) == 20
    assert found.end_to_end.low is None
    requests = [
        attrs.evolve(r, index=index, name=f"item {index}") for index in range(6) for r in requests if r.index == 0
    ]
    whole = summarise(results_of(requests, **settings)).cell("drafted").speeds["plain"].end_to_end
    assert len(whole.values) == 60
    assert (whole.low, whole.high) == (pytest.approx(whole.median), pytest.approx(whole.median))


def test_times_that_are_too_short_for_the_clock_predict_nothing():
    """Prevents a division by a clock that did not move."""
    nothing = made_rounds((0, 0), (0, 0), (1, 1))
    cell = summarise(results_of([attrs.evolve(r, rounds=nothing) for r in pairs([(10, 5)])])).cell("drafted")
    assert cell.prediction is None


def test_quality_is_apart_from_acceptance():
    """A judge decides where there is one; elsewhere all that can be told is whether it is plain decoding's output."""
    requests = [
        request("plain", 0, 5, judged=False),
        request("drafted", 0, 5, judged=True, token_ids=(1,) * 10),
        request("plain", 1, 5),
        request("drafted", 1, 5, token_ids=(1,) * 10),
        request("plain", 2, 5),
        request("drafted", 2, 5),
    ]
    summary = summarise(results_of(requests))
    found = summary.cell("drafted").quality
    assert attrs.astuple(found) == (1, 1, 2, 1)
    assert found.share == pytest.approx(2 / 3)
    assert summary.cell("plain").quality.share == pytest.approx(2 / 3)
    assert summary.cell("drafted").acceptance is None


def test_gates_are_asked_of_each_stratum():
    """Prevents a gain by repetition from hiding a loss in conversation."""
    kinds = ("repetitive",) * 8 + ("chat",) * 8
    requests = []
    for index, kind in enumerate(kinds):
        gain = 3.0 if kind == "repetitive" else 0.8
        requests += [request("plain", index, 12, kind=kind), request("drafted", index, 12 / gain, kind=kind)]
    results = attrs.evolve(results_of(requests, kinds=kinds), arms={
        name: ArmRecord(name, 1.0, 0.0, ByteCounts(1, {}, 1, 0, 100)) for name in ("plain", "drafted")
    })  # fmt: skip
    summary = summarise(results)
    repetitive, chat = (summary.cell("drafted", kind) for kind in ("repetitive", "chat"))
    assert repetitive.metrics["speed"] == pytest.approx(3.0)
    assert repetitive.metrics["conversation_speed"] == chat.metrics["speed"] == pytest.approx(0.8)
    assert repetitive.verdict.decision == KEEP
    assert any(reason.startswith("conversation_speed is 0.8") for reason in repetitive.verdict.reasons)
    assert chat.verdict.decision == DELETE
    assert summary.cell("plain").verdict is None

    only = summarise(attrs.evolve(results, requests=tuple(r for r in requests if r.kind == "repetitive")))
    assert only.cell("drafted", "repetitive").verdict.decision == KEEP  # conversation was not measured
    lenient = tuple(g for g in only.plan.gates if g.metric not in ("conversation_speed", "control"))
    promoted = summarise(results_of([r for r in requests if r.kind == "repetitive"], kinds=kinds, gates=lenient))
    assert promoted.cell("drafted").verdict.decision == KEEP  # memory was not measured
    header = attrs.evolve(results.header, plan=attrs.evolve(only.plan, gates=lenient).as_data())
    assert summarise(attrs.evolve(results, header=header)).cell("drafted", "repetitive").verdict.decision == PROMOTE


def controlled(control, plain=(10, 10, 10, 10, 10, 10)):
    """Return results in which each drafted request took half of plain decoding's time, and the control so much of it."""
    kinds = ("chat", "json") * (len(plain) // 2)
    requests = [
        request(arm, index, seconds * share, kind=kinds[index])
        for index, seconds in enumerate(plain)
        for arm, share in (("plain", 1), ("again", control(kinds[index])), ("drafted", 0.5))
    ]
    return results_of(requests, {"plain": PLAIN, "again": PLAIN, "drafted": DRAFTED}, kinds=kinds)


def test_a_control_that_is_off_is_told_and_decides_nothing():
    """Plain decoding that is 5 % faster than itself: the machine was not quiet, and no gain counts."""
    quiet = summarise(controlled(lambda kind: 1.01))
    assert quiet.disturbances == ()
    assert quiet.cell("drafted").metrics["control"] == pytest.approx(1 - 1 / 1.01)
    assert quiet.cell("drafted").verdict.is_quiet
    for share in (0.95, 1.05):
        found = summarise(controlled(lambda kind, share=share: share))
        (told,) = found.disturbances
        assert told.startswith("again is plain once more, but was ")
        assert f"{1 / share:.3f} over all strata, {1 / share:.3f} in chat, {1 / share:.3f} in json" in told
        for kind in (None, "chat", "json"):
            verdict = found.cell("drafted", kind).verdict
            assert (verdict.decision, verdict.is_quiet) == (KEEP, False)
            assert any(reason.startswith("control is 0.0") for reason in verdict.reasons)
        assert found.as_data()["disturbances"] == [told]
        assert found.complaints == ()


def test_a_control_is_asked_in_each_stratum():
    """Prevents a stratum that was disturbed from being judged by the others' quiet."""
    found = summarise(controlled(lambda kind: 1.1 if kind == "json" else 1.0, (10,) * 10 + (30, 30)))
    assert found.cell("drafted", "chat").verdict.is_quiet
    assert not found.cell("drafted", "json").verdict.is_quiet
    assert f"{1 / 1.1:.3f} in json" in found.disturbances[0]
    assert "in chat" not in found.disturbances[0]


def test_a_plan_says_how_quiet_is_quiet():
    """Prevents a banner that says something else than the verdicts."""
    results = controlled(lambda kind: 1.05)
    gates = tuple(gate for gate in summarise(results).plan.gates if gate.metric != "control")
    for own in ((*gates, Gate("control", at_most=0.1, otherwise=KEEP, reason="x")), gates):
        header = attrs.evolve(results.header, plan=attrs.evolve(summarise(results).plan, gates=own).as_data())
        found = summarise(attrs.evolve(results, header=header))
        assert found.disturbances == ()
        assert found.cell("drafted").verdict.is_quiet


def test_a_comparison_without_a_control_promotes_nothing():
    """Nobody knows then what noise is."""
    cell = summarise(results_of(pairs([(10, 5)] * 8))).cell("drafted")
    assert cell.metrics["control"] is None
    assert any(reason.startswith("control was not measured") for reason in cell.verdict.reasons)


@pytest.mark.parametrize(
    "change",
    [{"arm": "ghost"}, {"index": 7}, {"repeat": 4}, {"kind": "json"}, {"name": "other"}, {"seed": 3}],
)
def test_requests_that_are_not_of_the_plan_are_told_and_left_out(change):
    """Lines of another comparison, pasted in: they answer another question."""
    requests = pairs([(10, 5)] * 3)
    foreign = attrs.evolve(requests[-1], end_to_end_s=0.1, **change)
    plan_of_three = results_of(requests)
    found = summarise(attrs.evolve(plan_of_three, requests=(*requests[:-1], foreign)))
    assert found.complaints == (
        "1 requests in the results are not of the plan, and are left out",
        "the run is not finished: 5 of 6 requests are measured",
    )
    assert found.cell("drafted").speeds["plain"].end_to_end.values == (2.0, 2.0)
    assert (found.num_done, found.num_all) == (5, 6)


def test_a_plan_without_a_baseline_is_one_readable_error():
    """A header that was tampered with."""
    results = results_of(pairs([(10, 5)]))
    header = attrs.evolve(results.header, plan={**results.header.plan, "arms": {"drafted": DRAFTED}})
    with pytest.raises(InvalidPlan, match="has no arm that is plain decoding"):
        summarise(attrs.evolve(results, header=header))


def test_what_promises_only_a_law_is_not_held_to_texts():
    """Residual sampling gives other texts of the same law: a certificate is what it needs."""
    residual = [attrs.evolve(r, exactness="distribution-exact") for r in pairs([(10, 5)] * 8, token_ids=(3,) * 10)]
    gates = (Gate("matched", at_least=1.0, otherwise=DELETE, reason="x", is_optional=True),
             Gate("distribution", at_least=1.0, otherwise=DELETE, reason="x"))  # fmt: skip
    for certificate, decision in ((None, KEEP), ("certified", PROMOTE), ("not certified", DELETE)):
        arm = {**DRAFTED, **({"certificate": {"verdict": certificate}} if certificate else {})}
        cell = summarise(results_of(residual, {"plain": PLAIN, "drafted": arm}, gates=gates)).cell("drafted")
        assert cell.metrics["matched"] is None
        assert cell.speeds["plain"].matched == "matched 0/8"
        assert cell.verdict.decision == decision


def test_energy_and_memory_are_over_plain_decodings():
    """Per token, and nothing where nothing is counted."""
    requests = [attrs.evolve(r, energy_j=20.0 if r.arm == "plain" else 15.0) for r in pairs([(10, 5)] * 2)]
    arms = {"plain": ArmRecord("plain", 1.0, 0.0, ByteCounts(1, {"a": 1}, 1, 0, 100)),
            "drafted": ArmRecord("drafted", 1.0, 2.0, ByteCounts(1, {"a": 1}, 1, 0, 150))}  # fmt: skip
    summary = summarise(attrs.evolve(results_of(requests), arms=arms))
    metrics = summary.cell("drafted").metrics
    assert (metrics["energy"], metrics["peak_bytes"]) == (pytest.approx(0.75), 1.5)
    assert summary.cell("drafted").joules_per_token == pytest.approx(1.5)
    bare = summarise(results_of(pairs([(10, 5)] * 2))).cell("drafted")
    assert (bare.metrics["energy"], bare.metrics["peak_bytes"], bare.joules_per_token) == (None, None, None)


def drafted_rounds(costs, chance, num_rounds=40):
    """Return rounds of 4 proposals with these costs, and the counts of their positions."""
    positions = tuple(
        PositionStats(1000, 1000, round(1000 * chance ** (i - 1)), round(1000 * chance**i), round(1000 * chance**i))
        for i in range(1, 5)
    )
    num_all = num_rounds + 1
    return positions, made_rounds(
        (0, *(4,) * num_rounds),
        (0,) * num_all,
        (1,) * num_all,
        draft_s=(0.0, *(0.4,) * num_rounds),
        forward_s=(1.0, *(costs,) * num_rounds),
    )


def test_a_prediction_is_the_formula_of_the_report():
    """E[C_round(k)] / E[G(k)] over C_t(1), and N_min with what the draft costs at once."""
    positions, rounds = drafted_rounds(1.5, 0.8)
    plain_rounds = made_rounds((0,) * 10, (0,) * 10, (1,) * 10, forward_s=(1.0,) * 10)
    drafters = {"scripted": DrafterStats(4000, 2952, 2361, 1.0, positions)}
    requests = [
        request("plain", 0, 10, rounds=plain_rounds, num_target_calls=10),
        request("drafted", 0, 6, rounds=rounds, positions=positions, drafters=drafters, num_target_calls=4),
    ]
    arms = {"drafted": ArmRecord("drafted", 1.0, 7.0)}
    found = summarise(attrs.evolve(results_of(requests), arms=arms)).cell("drafted").prediction
    cost = cost_per_token(RoundCosts(1.5, (0.1,) * 4), constant_survival(0.8, 4))
    assert found.plain_s == 1.0
    assert found.speculative_s == pytest.approx(cost, rel=1e-3)
    assert found.decode_speed == pytest.approx(1 / cost, rel=1e-3)
    assert found.speed == pytest.approx(10 / (1 + 9 * cost), rel=1e-3)
    assert found.min_tokens == pytest.approx(7.0 / (1 - cost), rel=1e-2)
    assert found.break_even == pytest.approx(found.min_tokens / 9)
    slow = drafted_rounds(9.0, 0.8)[1]
    requests[1] = attrs.evolve(requests[1], rounds=slow)
    summary = summarise(attrs.evolve(results_of(requests), arms=arms))
    assert summary.cell("drafted").prediction.min_tokens == math.inf
    assert "Infinity" not in json.dumps(summary.as_data())
    assert summary.as_data()["cells"][2]["prediction"]["min_tokens"] == "inf"


@pytest.mark.parametrize(
    ("slope", "chance", "token_s", "max_tokens"),
    [(0.05, 0.9, 0.05, 4), (0.1, 0.7, 0.1, 3), (0.02, 0.8, 0.3, 8), (0.4, 0.4, 0.2, 4)],
)
def test_predicted_and_measured_speed_agree_on_a_known_machine(tmp_path, slope, chance, token_s, max_tokens):
    """Within 2 %, where drafting pays and where it loses; the same arm again shows no gain at all."""
    machine = Machine(lambda num_proposed: 1.0 + slope * num_proposed, prefill_s=3.0)
    drafter = ScriptedDrafter(machine, lambda emitted, position: chance, token_s=token_s)
    drafters = {"drafted": (drafter, Length(max_tokens=max_tokens))}
    plan, bench = machine_comparison(machine, drafters, ("chat",) * 3, max_new_tokens=800)
    summary = summarise(run_made(plan, bench, tmp_path / "r.jsonl", clock=machine.clock))
    cell = summary.cell("drafted")
    cost = cost_per_token(
        RoundCosts(1 + slope * max_tokens, (token_s,) * max_tokens), constant_survival(chance, max_tokens)
    )
    assert cell.prediction.decode_speed == pytest.approx(cell.speeds["plain"].decode.median, rel=0.02)
    assert cell.prediction.speed == pytest.approx(cell.speeds["plain"].end_to_end.median, rel=0.02)
    assert cell.speeds["plain"].decode.median == pytest.approx(1 / cost, rel=0.05)
    control = summary.cell("again").speeds["plain"]
    assert summary.controls == ("again",)
    assert set(control.end_to_end.values) == {1.0}
    assert control.end_to_end.total == 1.0
    assert control.matched == cell.speeds["plain"].matched == "matched 3/3"


def test_where_drafting_loses_the_adaptive_arm_stands_by_plain_decoding(tmp_path):
    """The model says that it loses; the policy is off, and the verdicts tell the two arms apart."""
    machine = Machine(lambda num_proposed: 1.0 + 0.3 * num_proposed)
    drafter = ScriptedDrafter(machine, lambda emitted, position: 0.3, token_s=0.2)
    arms = {"fixed": (drafter, Length("fixed", 3)), "adaptive": (drafter, Length("adaptive", 8))}
    plan, bench = machine_comparison(machine, arms, ("adversarial",) * 8, max_new_tokens=300)
    summary = summarise(run_made(plan, bench, tmp_path / "r.jsonl", clock=machine.clock))
    fixed, adaptive = summary.cell("fixed", "adversarial"), summary.cell("adaptive", "adversarial")
    assert fixed.prediction.decode_speed < 0.8
    assert fixed.metrics["speed"] < 0.8
    assert adaptive.metrics["speed"] >= 0.97
    assert (fixed.verdict.decision, adaptive.verdict.decision) == (DELETE, KEEP)


def recomputed(path, arm, kind):
    """Recompute an arm's figures from the lines alone, knowing nothing of the code under test."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    done = [line for line in lines if line["line"] == "request" and line["error"] is None]
    chosen = [line for line in done if kind in (None, line["kind"])]
    by_key = {(line["arm"], line["index"], line["repeat"]): line for line in chosen}
    ratios, decode, own_s, plain_s, matched = [], [], 0.0, 0.0, 0
    indices = sorted({line["index"] for line in chosen})
    repeats = sorted({line["repeat"] for line in chosen})
    for index in indices:
        both = [(by_key[arm, index, repeat], by_key["plain", index, repeat]) for repeat in repeats]
        ratios.append(statistics.median(plain["end_to_end_s"] / own["end_to_end_s"] for own, plain in both))
        decode.append(statistics.median(plain["decode_s"] / own["decode_s"] for own, plain in both))
        own_s += statistics.median(own["end_to_end_s"] for own, _ in both)
        plain_s += statistics.median(plain["end_to_end_s"] for _, plain in both)
        matched += all(own["token_ids"] == plain["token_ids"] for own, plain in both)
    own = [line for line in chosen if line["arm"] == arm]
    positions = list(itertools.chain.from_iterable(line["positions"] for line in own))
    calls = sum(line["num_target_calls"] for line in own)
    return {
        "median": statistics.median(ratios),
        "p10": sorted(ratios)[len(ratios) // 10],
        "total": plain_s / own_s,
        "decode": statistics.median(decode),
        "matched": f"matched {matched}/{len(indices)}",
        "accepted": sum(position["num_accepted"] for position in positions),
        "evaluated": sum(position["num_evaluated"] for position in positions),
        "tokens_per_call": sum(len(line["token_ids"]) for line in own) / calls,
    }


def test_every_figure_can_be_recomputed_from_the_lines(tmp_path):
    """Prevents a summary that says something else than its results."""
    source = random.Random(0)
    machine = Machine(
        lambda num_proposed: 1.0 + 0.1 * num_proposed, prefill_s=2.0, noise=lambda: 0.8 + 0.4 * source.random()
    )
    drafters = {
        "fixed": (ScriptedDrafter(machine, lambda emitted, position: 0.8, token_s=0.1), Length(max_tokens=3)),
        "adaptive": (ScriptedDrafter(machine, lambda emitted, position: 0.5, token_s=0.1), Length("adaptive", 8)),
    }
    kinds = ("chat", "json", "chat", "code", "json", "chat")
    plan, bench = machine_comparison(machine, drafters, kinds, max_new_tokens=60, repeats=3)
    path = tmp_path / "r.jsonl"
    summary = summarise(run_made(plan, bench, path, clock=machine.clock))
    for cell in summary.cells:
        if cell.arm == "plain":
            continue
        found, expected = cell.speeds["plain"], recomputed(path, cell.arm, cell.kind)
        assert found.end_to_end.median == pytest.approx(expected["median"])
        assert found.end_to_end.p10 == pytest.approx(expected["p10"])
        assert found.end_to_end.total == pytest.approx(expected["total"])
        assert found.decode.median == pytest.approx(expected["decode"])
        assert found.matched == expected["matched"]
        if cell.acceptance is not None:
            assert cell.acceptance.num_accepted == expected["accepted"]
            assert cell.acceptance.num_evaluated == expected["evaluated"]
            assert cell.acceptance.tokens_per_call == pytest.approx(expected["tokens_per_call"])
    assert {cell.arm for cell in summary.cells if cell.acceptance is not None} == {"fixed", "adaptive"}
    assert summarise(read_results(path)) == summary


def test_the_library_is_a_second_reference():
    """Speeds are told against transformers' plain decoding too, wherever it takes part."""
    requests = [*pairs([(10, 5)] * 2), *(request("transformers", index, 12, exactness=None) for index in range(2))]
    summary = summarise(results_of(requests, {"plain": PLAIN, "drafted": DRAFTED, "transformers": LIBRARY}))
    assert summary.references == ("plain", "transformers")
    assert summary.cell("drafted").speeds["transformers"].end_to_end.median == pytest.approx(2.4)
    assert summary.cell("transformers").verdict is None


def test_what_is_not_there_yet_is_no_figure():
    """A run that goes on can be looked at."""
    kinds = ("chat", "json", "code")
    whole = [attrs.evolve(r, kind=kinds[r.index]) for r in pairs([(10, 5)] * 3)]
    partial = [r for r in whole if r.key not in (("drafted", 2, 0), ("plain", 1, 0))]
    summary = summarise(results_of(partial, kinds=kinds))
    assert (summary.num_done, summary.num_all) == (4, 6)
    assert summary.cell("drafted").speeds["plain"].num_requests == 1
    assert summary.cell("drafted", "code").verdict is None
    assert summary.cell("drafted", "json").verdict.decision == KEEP


def test_an_interrupted_pair_is_told():
    """Two processes are not one machine at one time."""
    requests = pairs([(10, 5)] * 3)
    requests[-1] = attrs.evolve(requests[-1], session=1)
    assert summarise(results_of(requests)).num_split == 1


def test_speed_of_nothing_is_nothing():
    """Prevents a division by no requests."""
    found = speed([], [])
    assert (found.matched, found.end_to_end.median) == ("matched 0/0", None)


def test_the_tables_say_what_the_summary_says(tmp_path):
    """What a person reads, at a glance."""
    requests = [*pairs([(10, 5), (10, 20)] * 4), *(request("short", index, 2, tokens=3) for index in range(8))]
    kinds = ("chat", "json") * 4
    requests = [attrs.evolve(r, kind=kinds[r.index]) for r in requests]
    results = results_of(requests, {"plain": PLAIN, "drafted": DRAFTED, "short": LIBRARY, "again": PLAIN}, kinds=kinds)
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        Console(file=file, width=160).print(render(summarise(results)))
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert "24 of 32 requests are done" in text
    assert "not valid: the run is not finished: 24 of 32 requests are measured" in text
    assert "matched 8/8" in text
    assert "matched 0/8" in text
    assert "again (A/A control)" in text
    assert "too few" in text
    assert "drafted, json: delete" in text
    assert "speed is 0.5, must be >= 0.97" in text
    strata = text[text.index("By stratum") :].split("\n")
    row = next(line for line in strata if line.startswith("drafted"))
    assert row.split()[1:] == ["2.000", "0.500"]


def test_names_are_no_markup_and_speak_to_no_terminal(tmp_path):
    """A corpus may call its strata what it likes: prevents a crash over brackets, and a title that a terminal obeys."""
    kinds = ("[/red]", "[bold]\x1b]0;owned\x07", "\u202eevil")
    requests = [attrs.evolve(r, kind=kinds[r.index]) for r in pairs([(10, 5), (10, 20), (4, 4)])]
    renamed = [attrs.evolve(r, arm="[/x]\x1b[2J") if r.arm == "drafted" else r for r in requests]
    results = results_of(renamed, {"plain": PLAIN, "[/x]\x1b[2J": DRAFTED}, kinds=kinds)
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        Console(file=file, width=160).print(render(summarise(results)))
    text = (tmp_path / "out").read_text(encoding="utf-8")
    assert "[/x]\u27e8U+001B\u27e9[2J, [/red]: keep experimental" in text
    assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_results_of_a_file_give_a_summary(tmp_path):
    """The plan comes out of the header."""
    results = results_of(pairs([(10, 5)] * 2))
    path = tmp_path / "r.jsonl"
    with ResultWriter(path) as writer:
        for record in (results.header, *results.requests):
            writer.write(record)
    assert summarise(read_results(path)).cell("drafted").speeds["plain"].end_to_end.median == 2.0
