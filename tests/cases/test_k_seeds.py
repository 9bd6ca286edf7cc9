"""Case K1: a request's draws that depend on its neighbours."""

from __future__ import annotations

import itertools
import threading

import pytest
from models import engine_on, random_table, shared_model

from specframe import TransformersTarget
from specframe.random import CounterRandom
from specframe.testing import LogitsDrafter, RandomOffers

A = {"prompt": [1, 2], "max_new_tokens": 12, "temperature": 1.0, "seed": 42}
B_PROMPT = [5, 6, 7]


def run(engine, **changes):
    return engine.generate(**{**A, **changes})


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("drafts", ["nothing", "offers", "draws"])
def test_k1_a_seeded_request_is_the_same_in_any_company(verifier, drafts):
    """A shared or advanced stream makes a request's text depend on what ran before or beside it."""
    drafter = {
        "nothing": (),
        "offers": (RandomOffers(seed=0),),
        "draws": (LogitsDrafter(random_table(seed=1).row, num_tokens=3),),
    }[drafts]

    def engine():
        return engine_on(random_table(), *drafter, verifier=verifier)

    alone = run(engine())
    neighbours = [
        {"prompt": B_PROMPT, "seed": None},
        {"prompt": B_PROMPT, "seed": 7},
        {"seed": 42},
        {"prompt": B_PROMPT, "temperature": None, "seed": None},
        {"prompt": B_PROMPT, "max_new_tokens": 0},
    ]
    for before in (*itertools.permutations(neighbours, 2), neighbours):
        shared = engine()
        for neighbour in before:
            run(shared, **neighbour)
        assert run(shared).token_ids == alone.token_ids
    samples = engine().generate(n=3, **A)
    assert samples[0].token_ids == alone.token_ids
    assert len({sample.token_ids for sample in samples}) == 3


def test_k1_a_request_in_the_middle_of_another_threads_changes_nothing():
    """Two engines on two threads at once share nothing that draws."""
    alone = run(engine_on(random_table())).token_ids
    found = {}

    def work(index):
        engine = engine_on(random_table(), RandomOffers(seed=index))
        found[index] = [run(engine, seed=42 + (index % 2) * step).token_ids for step in range(3)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found[0] == found[2] == [alone] * 3
    assert found[1] == found[3]
    assert found[1][1] != alone


def test_k1_a_stream_that_stands_open_does_not_shift_another_engines_draws():
    """A draw per step of the process, not of the request, would."""
    alone = run(engine_on(random_table())).token_ids
    other = engine_on(random_table()).stream(**{**A, "seed": 9})
    next(other)
    engine = engine_on(random_table())
    stream = engine.stream(**A)
    emitted = []
    for piece in stream:
        emitted += piece.token_ids
        next(other, None)
    assert tuple(emitted) == alone


def test_k1_unseeded_requests_get_seeds_of_their_own_that_repeat_them():
    """Two unseeded requests that are identical are no samples; one that cannot be repeated is no record."""
    engine = engine_on(random_table())
    results = [run(engine, seed=None) for _ in range(4)]
    seeds = [result.seed for result in results]
    assert len(set(seeds)) == 4
    assert len({result.token_ids for result in results}) > 1
    for result in results:
        assert run(engine, seed=result.seed).token_ids == result.token_ids


def test_k1_seed_0_is_a_seed():
    """A seed that is tested for truth makes 0 mean none."""
    engine = engine_on(random_table())
    first, second = run(engine, seed=0), run(engine, seed=0)
    assert first.seed == second.seed == 0
    assert first.token_ids == second.token_ids
    assert run(engine, seed=1).token_ids != first.token_ids


@pytest.mark.parametrize("seed", [2**63, 2**64 - 1])
def test_k1_large_seeds_keep_all_their_bits(seed):
    """A seed that passes through a float shares its draws with its neighbours."""
    engine = engine_on(random_table())
    texts = {run(engine, seed=one, max_new_tokens=20).token_ids for one in (seed, seed - 1, seed - 2)}
    assert len(texts) == 3


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
def test_k1_a_greedy_request_draws_nothing(verifier, monkeypatch):
    """A greedy row that is sampled at a tiny temperature may pick another token, and costs a draw."""

    def refuse(*args):
        raise AssertionError("a greedy request asked for randomness")

    monkeypatch.setattr(CounterRandom, "words", refuse)
    target = random_table()
    drafter = LogitsDrafter(random_table(seed=1).row, num_tokens=3)
    engine = engine_on(target, drafter, verifier=verifier)
    for temperature in (None, 0, 0.0):
        result = engine.generate([1, 2], max_new_tokens=12, temperature=temperature, seed=5)
        assert result.token_ids == tuple(target.greedy([1, 2], 12))
        assert result.seed is None


def test_k1_the_drafter_and_the_length_of_its_blocks_shift_nothing():
    """Draws that are counted, not keyed, move with the number of tokens that were proposed."""
    model = shared_model()
    call = {**A, "prompt": [5, 6, 7, 8]}
    alone = engine_on(TransformersTarget(model)).generate(**call)
    for length in (1, 3, 9):
        for seed in (0, 1):
            engine = engine_on(TransformersTarget(model), RandomOffers(seed=seed), length=length)
            assert engine.generate(**call).token_ids == alone.token_ids
