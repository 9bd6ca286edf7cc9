"""Running a plan: each turn once whatever happens, in the planned order, and nothing carried from one to the next."""

from __future__ import annotations

import itertools
import os
import random
import signal
import warnings

import attrs
import pytest
from comparisons import DRAFTED, PLAIN, MadeArm, items, made_bench, made_plan, run_made
from rich.console import Console

from specframe import Engine, InvalidResults, Length, Strategy
from specframe.bench.lines import ArmRecord, Origin
from specframe.bench.measure import origins, text_pieces
from specframe.bench.metrics import summarise
from specframe.bench.results import read_results
from specframe.bench.tables import render
from specframe.records import DrafterShare, RoundRecord
from specframe.testing import Oracle, RandomOffers, TableTarget, byte_tokenizer, random_table
from specframe.text import TokenBytes

CORPUS = items("chat", "json", "code")
ARMS = {"plain": PLAIN, "again": PLAIN, "drafted": DRAFTED}
PLAN = made_plan(ARMS, CORPUS, repeats=2)


def bench(target=None, table=None):
    """Return a plain arm twice and one with a drafter, all on one table."""
    target = target or random_table()
    drafted = MadeArm(
        Engine(target, {"scripted": RandomOffers(seed=1)}, strategy=Strategy(length=Length(max_tokens=3)))
    )
    return made_bench(
        {"plain": MadeArm(Engine(target)), "again": MadeArm(Engine(target)), "drafted": drafted}, CORPUS, table
    )


def keys(path):
    return [record.key for record in read_results(path).requests]


ALL = [turn.key for turn in PLAN.turns()]


def test_every_turn_is_done_once_in_the_planned_order(tmp_path):
    """Prevents a request from being left out, and arms from being run one after another instead of side by side."""
    path = tmp_path / "r.jsonl"
    results = run_made(PLAN, bench(), path)
    assert keys(path) == ALL
    assert len(set(ALL)) == len(ALL) == 2 * 3 * 3
    assert results.header.plan_digest == PLAN.digest
    assert set(results.arms) == set(ARMS)
    orders = {tuple(arm for arm, *_ in ALL[start : start + 3]) for start in range(0, len(ALL), 3)}
    assert len(orders) > 1
    assert all(len({(index, repeat) for _, index, repeat in ALL[start : start + 3]}) == 1 for start in range(0, 18, 3))
    assert not (tmp_path / "r.jsonl.lock").exists()


def test_what_is_the_same_arm_is_measured_once(tmp_path):
    """The control costs what the arm costs that it repeats; each arm has a line of its own."""
    measured = []

    def measure_arm(plan, name):
        measured.append(name)
        return ArmRecord(name, 1.0, 2.0)

    results = run_made(PLAN, bench(), tmp_path / "r.jsonl", measure_arm=measure_arm)
    assert measured == ["plain", "drafted"]
    assert results.arms == {name: ArmRecord(name, 1.0, 2.0) for name in ARMS}


def test_a_finished_run_loads_nothing(tmp_path):
    """Prevents the look at results from costing a model's load."""
    path = tmp_path / "r.jsonl"
    first = run_made(PLAN, bench(), path)

    def refuse(plan):
        raise AssertionError("loaded")

    assert run_made(PLAN, bench(), path, load=refuse) == first


def test_a_run_that_was_cut_at_any_byte_goes_on_where_it_was(tmp_path):
    """Killed at any moment: what is whole is kept, the rest is done once."""
    path = tmp_path / "r.jsonl"
    small = made_plan({"plain": PLAIN, "drafted": DRAFTED}, CORPUS[:1], max_new_tokens=3)

    def few():
        made = bench()
        return attrs.evolve(made, arms={name: made.arms[name] for name in small.arms})

    run_made(small, few(), path)
    whole = path.read_bytes()
    wanted = {record.key: record.token_ids for record in read_results(path).requests}
    lines = whole.split(b"\n")
    ends = {sum(len(line) + 1 for line in lines[:count]) for count in range(len(lines))}
    inside = {random.Random(0).randrange(len(whole)) for _ in range(10)}
    for cut in sorted({*ends, *(end - 1 for end in ends if end), *(end + 1 for end in ends), *inside}):
        path.write_bytes(whole[:cut])
        run_made(small, few(), path)
        found = read_results(path)
        assert {record.key: record.token_ids for record in found.requests} == wanted, cut
        assert set(found.arms) == set(small.arms)


@pytest.mark.parametrize("point", [1, 8, 9, 60, 150, 400])
def test_a_killed_run_goes_on(tmp_path, point):
    """The real thing: SIGKILL in the middle of a forward, then the same command again."""
    path = tmp_path / "r.jsonl"
    count = 0

    def kill(call):
        nonlocal count
        count += 1
        if count == point:
            os.kill(os.getpid(), signal.SIGKILL)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which do nothing here
        child = os.fork()
    if child == 0:
        run_made(PLAN, bench(random_table(on_call=kill)), path)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    before = path.read_bytes()
    done = keys(path)
    assert len(done) < len(ALL)
    assert done == ALL[: len(done)]
    results = run_made(PLAN, bench(), path)
    assert keys(path) == ALL
    assert path.read_bytes().startswith(before)
    assert [record.session for record in results.requests] == [0] * len(done) + [int(bool(done))] * (
        len(ALL) - len(done)
    )


def test_an_interrupt_loses_nothing(tmp_path):
    """Ctrl-C ends a run at once; the request that it hits is done again."""
    path = tmp_path / "r.jsonl"
    count = 0

    def interrupt(call):
        nonlocal count
        count += 1
        if count == 300:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_made(PLAN, bench(random_table(on_call=interrupt)), path)
    assert 0 < len(keys(path)) < len(ALL)
    run_made(PLAN, bench(), path)
    assert keys(path) == ALL


def test_two_runs_do_not_write_one_file(tmp_path):
    """Prevents every turn from being done twice."""
    path = tmp_path / "r.jsonl"

    def load(plan):
        with pytest.raises(InvalidResults, match="are being written by another run"):
            run_made(PLAN, bench(), path)
        return bench()

    run_made(PLAN, bench(), path, load=load)
    assert keys(path) == ALL


def test_results_of_another_plan_are_refused(tmp_path):
    """Prevents figures of two plans, or two machines, from being mixed."""
    path = tmp_path / "r.jsonl"
    run_made(PLAN, bench(), path)
    before = path.read_bytes()
    with pytest.raises(InvalidResults, match="belong to another plan or machine") as caught:
        run_made(attrs.evolve(PLAN, max_new_tokens=13), bench(), path)
    assert caught.value.__notes__ == ["max_new_tokens: planned 12, now 13"]
    assert path.read_bytes() == before
    path.write_bytes(before.replace(b'"cores": "', b'"cores": "9', 2))
    with pytest.raises(InvalidResults) as caught:
        run_made(PLAN, bench(), path)
    assert caught.value.__notes__[0].startswith("machine.cores: ")
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InvalidResults, match="must begin with a line of the kind 'header'"):
        run_made(PLAN, bench(), tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == "mine"


class Learner(Oracle):
    """Knows the text once it has seen it; ``reset`` is what forgets."""

    def __init__(self):
        super().__init__([])
        self.num_resets = 0

    def reset(self):
        self.num_resets += 1


def test_arms_are_reset_before_each_request(tmp_path):
    """Replayed prompts must not profit from what an earlier request left."""
    target, learner = random_table(), Learner()
    prefilled = []
    target._on_call = lambda call: prefilled.append(len(call.ids)) if call.kind == "prefill" else None
    arms = {"plain": MadeArm(Engine(target)), "drafted": MadeArm(Engine(target, {"scripted": learner}))}
    plan = made_plan({"plain": PLAIN, "drafted": DRAFTED}, CORPUS, repeats=3)
    run_made(plan, made_bench(arms, CORPUS), tmp_path / "r.jsonl")
    assert learner.num_resets == 1 + 3 * 3  # the warm-up's, and one for each request
    assert set(prefilled) == {2}  # the whole prompt, each time


def test_an_arm_that_fails_is_a_result(tmp_path):
    """Prevents one arm from ending the comparison, and a failure from being counted as a fast answer."""

    def row(ids):
        if ids[-1] == 4:
            raise RuntimeError("no row")
        return [float(token == (ids[-1] + 1) % 5) for token in range(5)]

    target = TableTarget(row, vocab_size=5)
    plan = made_plan({"plain": PLAIN}, CORPUS)
    results = run_made(plan, made_bench({"plain": MadeArm(Engine(target))}, CORPUS), tmp_path / "r.jsonl")
    assert len(results.requests) == 3
    for record in results.requests:
        assert record.error.startswith("GenerationError: generation ended early")
        assert record.end_to_end_s is None
        assert record.token_ids == ()


class Breaking(RandomOffers):
    """Fails in the middle of every generation."""

    def _proposer(self, request):
        propose, count = super()._proposer(request), itertools.count(1)

        def fail(round_):
            if next(count) == 3:
                raise RuntimeError("broken")
            propose(round_)

        return fail


def test_a_drafter_that_fails_midway_is_told(tmp_path):
    """Prevents an arm whose drafter was off most of the time from passing for one that gains nothing."""
    target = random_table()
    arms = {"plain": MadeArm(Engine(target)), "drafted": MadeArm(Engine(target, {"scripted": Breaking(seed=1)}))}
    plan = made_plan({"plain": PLAIN, "drafted": DRAFTED}, CORPUS)
    summary = summarise(run_made(plan, made_bench(arms, CORPUS), tmp_path / "r.jsonl"))
    cell = summary.cell("drafted")
    assert cell.events == {"drafter-failed": 3}
    assert cell.speeds["plain"].matched == "matched 3/3"
    assert summary.events == ("drafted: drafter-failed in 3 of 3 measurements",)
    with open(tmp_path / "out", "w", encoding="utf-8") as file:
        Console(file=file, width=160).print(render(summary))
    assert "drafted: drafter-failed in 3 of 3 measurements" in (tmp_path / "out").read_text(encoding="utf-8")


def test_a_request_is_recorded_as_it_went(tmp_path):
    """The record and the engine's own result say the same."""
    made = bench()
    results = run_made(PLAN, made, tmp_path / "r.jsonl")
    for record in results.requests:
        engine = made.arms[record.arm].engine
        engine.reset()
        result = engine.generate(made.prepared[record.index].prompt_ids, max_new_tokens=12)
        assert record.token_ids == result.token_ids
        assert record.num_rounds == len(record.rounds.num_proposed) == result.stats.num_rounds
        assert record.num_target_calls == result.stats.num_target_calls
        assert record.positions == result.stats.positions
        assert sum(record.rounds.num_emitted) == len(record.token_ids) == len(record.origins)
        drafters = {name: attrs.evolve(stats, seconds=0) for name, stats in record.drafters.items()}
        assert drafters == {name: attrs.evolve(stats, seconds=0) for name, stats in result.stats.drafters.items()}
        assert record.end_to_end_s == pytest.approx(record.first_token_s + record.decode_s, abs=1e-6)
        assert sum(record.phases.values()) == pytest.approx(record.end_to_end_s, abs=1e-5)
        assert (record.num_first, record.finish_reason, record.kernel) == (1, "length", "single")
        accepted = sum(Origin.parse(text) == ("accepted", "scripted") for text in record.origins)
        assert accepted == result.stats.num_accepted


def test_sampling_takes_the_seeds_in_turn(tmp_path):
    """Prevents repeats of a sampled request from being one text, or any text."""
    target = random_table()
    plan = made_plan({"plain": PLAIN}, CORPUS, repeats=4, sampling={"temperature": 1.0}, seeds=(7, 8))
    made = made_bench({"plain": MadeArm(Engine(target), temperature=1.0)}, CORPUS)
    results = run_made(plan, made, tmp_path / "r.jsonl")
    texts = {(record.index, record.repeat): record.token_ids for record in results.requests}
    assert [record.seed for record in results.requests if record.index == 0] == [7, 8, 7, 8]
    assert texts[0, 0] == texts[0, 2] != texts[0, 1] == texts[0, 3]


def share(name, start, proposed, evaluated, accepted, kept):
    return DrafterShare(name, 9, start, proposed, evaluated, accepted, kept, 0.0, 0.0)


def record(shares, emitted):
    counts = [
        sum(getattr(part, f"num_{name}") for part in shares) for name in ("proposed", "evaluated", "accepted", "kept")
    ]
    return RoundRecord(1, tuple(shares), 1, *counts, emitted, None, 0, *[0.0] * 6)


@pytest.mark.parametrize(
    ("shares", "emitted", "expected"),
    [
        ([], 1, ["plain"]),
        ([share("a", 0, 0, 0, 0, 0)], 1, ["plain"]),
        ([share("a", 0, 2, 2, 2, 2)], 3, ["accepted:a", "accepted:a", "extra"]),
        ([share("a", 0, 2, 1, 0, 0)], 1, ["correction:a"]),
        ([share("a", 0, 3, 3, 3, 2)], 2, ["accepted:a", "accepted:a"]),  # a stop inside the proposal
        ([share("b", 1, 2, 2, 1, 1), share("a", 0, 1, 1, 1, 1)], 3, ["accepted:a", "accepted:b", "correction:b"]),
    ],
)
def test_each_token_is_put_down_to_who_it_comes_from(shares, emitted, expected):
    """Prevents a correction from passing for an accepted token, or one drafter's for another's."""
    assert [str(origin) for origin in origins([record(shares, emitted)])] == expected


def test_pieces_make_up_the_text():
    """A character that is split over tokens belongs to the one that completes it."""
    tokenizer = byte_tokenizer()
    ids = tokenizer("aé!")["input_ids"]
    pieces = text_pieces(TokenBytes(tokenizer), ids)
    assert len(pieces) == len(ids)
    assert "".join(pieces) == "aé!"
    assert pieces[1] == ""
    assert text_pieces(TokenBytes(tokenizer), ids[:2]) == ("a", "\ufffd")
    assert text_pieces(TokenBytes(tokenizer), []) == ()
