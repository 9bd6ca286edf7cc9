"""Replays: a run repeats itself round by round from its receipt, and where it does not, the first difference is told."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from models import engine_on, random_table

from specframe import Difference, Engine, GenerationError, InvalidReceipt, InvalidRequest, Length, Strategy
from specframe.lengths import Adaptive
from specframe.testing import Adversary, Faulty, LogitsDrafter, Oracle, RandomOffers, TableTarget
from specframe.testing.machine import Machine, ScriptedDrafter

PROMPT = [1, 2]
TEXT = random_table().greedy(PROMPT, 64)


def drawing() -> LogitsDrafter:
    """A drafter that draws from a table of its own."""
    table = random_table(seed=9)
    return LogitsDrafter(lambda ids: table.row(ids))


@pytest.mark.parametrize("mode", ["extend", "first"])
@pytest.mark.parametrize("arguments", [{}, {"temperature": 0.9}, {"temperature": 0.9, "verifier": "residual"}], ids=str)
def test_a_run_repeats_itself(mode, arguments):
    """Every rule, two drafters, offers and draws."""
    arguments = dict(arguments)
    verifier = arguments.pop("verifier", "coupled")
    drafters = (Oracle(TEXT, wrong_at=2), drawing())
    engine = engine_on(random_table(), *drafters, mode=mode, verifier=verifier, length=6)
    result = engine.generate(PROMPT, max_new_tokens=32, **arguments)
    replay = engine.replay(result.receipt, PROMPT, max_new_tokens=32, **arguments)
    assert replay.is_same, replay
    assert replay.result.token_ids == result.token_ids
    assert replay.receipt.rounds != ()
    assert replay.receipt.hashes == result.receipt.hashes


def noisy_machine(seed: int) -> Any:
    """A machine on which time is never twice the same, with a drafter that pays sometimes."""
    noise = random.Random(seed)
    machine = Machine(lambda k: 1.0 + 0.02 * k, noise=lambda: noise.choice([0.5, 1.0, 3.0]))
    drafter = ScriptedDrafter(machine, lambda emitted, position: 0.7, token_s=0.1)
    return machine, drafter


def test_lengths_that_saw_the_clock_are_taken_from_the_receipt():
    """Under residual verification another length is another text: without the receipt's the run cannot be repeated."""

    def engine(seed: int) -> Engine:
        machine, _ = noisy_machine(seed)
        table = random_table(vocab_size=16, on_call=lambda call: machine.spend(1.0 + 0.1 * len(call.ids)))
        own = random_table(vocab_size=16, seed=0, spread=1.0)

        def row(ids):
            machine.spend(0.2)
            return own.row(ids)

        strategy = Strategy(verifier="residual", length=Length("adaptive", 8))
        return Engine(table, {"d": LogitsDrafter(row)}, strategy=strategy, clock=machine.clock)

    arguments: dict[str, Any] = {"max_new_tokens": 60, "temperature": 1.0, "seed": 3}
    runs = [engine(seed).generate(PROMPT, **arguments) for seed in range(4)]
    assert len({result.token_ids for result in runs}) > 1  # the clock did decide
    for result in runs:
        other = engine(99)
        replay = other.replay(result.receipt, PROMPT, **arguments)
        assert replay.is_same, replay
        assert replay.result.token_ids == result.token_ids
        assert replay.receipt.length_policy == Adaptive.name


@pytest.mark.parametrize("method", ["open", "propose", "commit"])
@pytest.mark.parametrize("at_call", [0, 3])
def test_a_failure_of_the_day_is_taken_from_the_receipt(method, at_call):
    """A drafter that failed in the run and works in the replay must not change which draws are asked for."""
    if method == "open" and at_call:
        at_call = 0
    inner = LogitsDrafter(drawing().row_function, num_tokens=3)
    engine = engine_on(random_table(), Faulty(method, at_call, inner), RandomOffers(5), verifier="residual", length=5)
    arguments = {"max_new_tokens": 40, "temperature": 1.0, "seed": 11}
    result = engine.generate(PROMPT, **arguments)
    assert [event.code for event in result.receipt.events] == ["drafter-failed"]
    replay = engine.replay(result.receipt, PROMPT, **arguments)
    assert replay.is_same, replay
    assert replay.result.events == ()  # it did not fail again
    assert replay.result.token_ids == result.token_ids


def test_each_of_several_generations_is_repeated():
    """Generations of one seed have draws of their own; the receipt says which one it is."""
    engine = engine_on(random_table(), Oracle(TEXT))
    results = engine.generate(PROMPT, n=3, max_new_tokens=12, temperature=1.5, seed=4)
    assert len({result.token_ids for result in results}) == 3
    for result in results:
        replay = engine.replay(result.receipt, PROMPT, max_new_tokens=12, temperature=1.5)
        assert replay.is_same
        assert replay.result.token_ids == result.token_ids


def test_a_cancelled_run_is_repeated_as_far_as_it_came():
    """A stream that was closed has no text behind its end to compare."""
    engine = engine_on(random_table(), Oracle(TEXT, wrong_at=1))
    stream = engine.stream(PROMPT, max_new_tokens=30)
    for _ in range(4):
        next(stream)
    stream.close()
    replay = engine.replay(stream.receipt, PROMPT, max_new_tokens=30)
    assert replay.is_same, replay
    assert len(replay.receipt.rounds) == 4
    assert replay.result.finish_reason == "cancelled"


def test_a_failure_is_repeated_too():
    """Where the run fails as it did, it is the same run; where it fails for the first time, the error goes its way."""

    def row(ids):
        if ids[-1] == 5:
            raise MemoryError
        return [float(token == ids[-1] + 1) for token in range(12)]

    engine = engine_on(TableTarget(row, vocab_size=12))
    stream = engine.stream(PROMPT, max_new_tokens=8)
    with pytest.raises(GenerationError):
        list(stream)
    replay = engine.replay(stream.receipt, PROMPT, max_new_tokens=8)
    assert replay.is_same
    assert replay.result is None
    fine = engine_on(TableTarget(lambda ids: [float(token == ids[-1] + 1) for token in range(12)], vocab_size=12))
    with pytest.raises(GenerationError):
        engine.replay(fine.generate(PROMPT, max_new_tokens=8).receipt, PROMPT, max_new_tokens=8)
    unlike = fine.replay(stream.receipt, PROMPT, max_new_tokens=8)
    assert [difference.field for difference in unlike.outcome] == ["finish_reason", "failure", "hashes.output"]


def run(**arguments):
    engine = engine_on(random_table(), Oracle(TEXT, wrong_at=2))
    return engine, engine.generate(PROMPT, **{"max_new_tokens": 16, **arguments}).receipt


@pytest.mark.parametrize(
    ("first", "then", "fields"),
    [
        ({}, {"prompt": [1, 3]}, ["hashes.prompt"]),
        ({}, {"prompt": [1, 2, 3]}, ["hashes.prompt", "num_prompt"]),
        ({}, {"max_new_tokens": 15}, ["max_new_tokens"]),
        ({}, {"stop_ids": [3]}, ["hashes.stops"]),
        ({"temperature": 0.5}, {"temperature": 0.6}, ["hashes.sampling_policy"]),
        ({"temperature": 0.5}, {}, ["hashes.sampling_policy", "seed"]),
    ],
)  # fmt: skip
def test_other_inputs_are_named(first, then, fields):
    """Who replays with another prompt should hear that, and not look for a fault."""
    engine, receipt = run(**first)
    arguments = {"max_new_tokens": 16, **then}
    replay = engine.replay(receipt, arguments.pop("prompt", PROMPT), **arguments)
    assert [difference.field for difference in replay.inputs] == fields
    assert replay.first == replay.inputs[0]
    assert not replay.is_same


def test_the_first_round_that_differs_is_named():
    """The first field, in the order in which it comes about, of the first round."""
    _, receipt = run()
    shorter = engine_on(random_table(), Oracle(TEXT[:7], wrong_at=2)).replay(receipt, PROMPT, max_new_tokens=16)
    assert shorter.first == Difference(2, "drafters.given-1.num_proposed", 4, 3)
    assert shorter.outcome == ()  # the text is the same
    right = engine_on(random_table(), Oracle(TEXT)).replay(receipt, PROMPT, max_new_tokens=16)
    assert right.first == Difference(1, "drafters.given-1.num_evaluated", 3, 4)


def test_another_token_is_seen_by_its_check():
    """Counts may agree where texts differ."""
    wrong = Adversary(lambda context, index: None)
    tables = [
        TableTarget(lambda ids, s=s: [float(t == (ids[-1] + s) % 12) for t in range(12)], vocab_size=12) for s in (1, 2)
    ]
    receipts = engine_on(tables[0], wrong).generate(PROMPT, max_new_tokens=8).receipt
    replay = engine_on(tables[1], wrong).replay(receipts, PROMPT, max_new_tokens=8)
    assert (replay.first.round_id, replay.first.field) == (0, "check")
    assert [difference.field for difference in replay.outcome] == ["hashes.output"]


def test_a_run_that_goes_on_is_another():
    """All rounds that both have are equal, and one has more."""
    engine, receipt = run()
    shorter = attrs.evolve(receipt, rounds=receipt.rounds[:-1])
    replay = engine.replay(shorter, PROMPT, max_new_tokens=16)
    assert replay.rounds == Difference(5, "num_rounds", 5, 8)  # plain ones, as none is allowed more


def test_another_seed_is_refused():
    """A seed beside the receipt's own would be ignored or make another run."""
    engine, receipt = run(temperature=0.5, seed=8)
    assert engine.replay(receipt, PROMPT, max_new_tokens=16, temperature=0.5, seed=8).is_same
    with pytest.raises(InvalidRequest, match="'seed' must be the receipt's, 8"):
        engine.replay(receipt, PROMPT, max_new_tokens=16, temperature=0.5, seed=9)
    engine, receipt = run(seed=8)  # greedy: no seed is looked at
    assert engine.replay(receipt, PROMPT, max_new_tokens=16, seed=9).is_same


def test_a_coarse_receipt_cannot_be_replayed():
    """It has neither seed nor rounds."""
    engine, receipt = run()
    with pytest.raises(InvalidReceipt, match="coarse receipt has no rounds"):
        engine.replay(receipt.coarse(), PROMPT)
