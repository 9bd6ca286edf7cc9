"""The RNG contract: golden integers, random access, independence, and the two float maps."""

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from specframe.random import VERSION, CounterRandom, Purpose, fresh_seed

GOLDEN = json.loads((Path(__file__).parent / "golden" / "rng_v1.json").read_text(encoding="utf-8"))

seeds = st.integers(0, 2**64 - 1)
purposes = st.sampled_from(Purpose)
places = st.integers(0, 2**40)
indexes = st.integers(0, 5000)


def test_golden_words():
    """Prevents a silent change of the contract: a seed recorded today must give the same text with any later version."""
    assert GOLDEN["version"] == VERSION
    for seed, sample, purpose, where, index, word in GOLDEN["words"]:
        found = CounterRandom(seed, sample).words(Purpose(purpose), where, index, index + 1)
        assert int(found[0]) == int(word), (seed, sample, purpose, where, index)


def test_purposes_keep_their_numbers():
    """Prevents renumbering a purpose, which would change every word drawn for it."""
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "DRAFT_SAMPLE": 1,
        "ACCEPT_UNIFORM": 2,
        "CORRECTION_SAMPLE": 3,
        "TARGET_EXTRA": 4,
        "TARGET_BASELINE": 5,
        "COUPLED_NOISE": 6,
    }


@given(seed=seeds, sample=st.integers(0, 1000), purpose=purposes, where=places, index=indexes)
def test_word_is_what_the_docstring_says(seed, sample, purpose, where, index):
    """Prevents the fast path from drifting away from the definition that others would implement."""
    generator = np.random.Philox(
        key=np.array([seed, VERSION], dtype=np.uint64), counter=[0, where, sample, int(purpose)]
    )
    expected = generator.random_raw(index + 1)[index]
    assert CounterRandom(seed, sample).words(purpose, where, index, index + 1)[0] == expected


@given(seed=seeds, purpose=purposes, where=places, bounds=st.tuples(indexes, indexes).map(sorted))
def test_random_access_equals_sequential(seed, purpose, where, bounds):
    """Prevents a draw from depending on where reading began, which would tie text to proposal lengths."""
    start, stop = bounds
    random = CounterRandom(seed)
    assert (random.words(purpose, where, start, stop) == random.words(purpose, where, 0, stop)[start:]).all()


@given(seed=seeds, calls=st.lists(st.tuples(purposes, places, st.integers(0, 64)), min_size=1, max_size=8))
def test_draws_do_not_depend_on_other_draws(seed, calls):
    """Prevents hidden state: asking for anything, in any order, twice, changes no other draw (case K1)."""
    shared = CounterRandom(seed)
    forwards = [shared.uniform(*call) for call in calls]
    backwards = [shared.uniform(*call) for call in reversed(calls)]
    alone = [CounterRandom(seed).uniform(*call) for call in calls]
    assert forwards == alone == backwards[::-1]


def test_keys_are_independent():
    """Prevents two purposes, rounds, nodes, samples or seeds from sharing a word.

    21,600 words of 64 bits: a false alarm has odds of about 1e-11.
    """
    words = {
        int(word)
        for seed in (0, 1, 2)
        for sample in (0, 1)
        for purpose in Purpose
        for where in range(20)
        for word in CounterRandom(seed, sample).words(purpose, where, 0, 30)
    }
    assert len(words) == 3 * 2 * len(Purpose) * 20 * 30


def test_neighbouring_keys_are_uncorrelated():
    """Prevents a counter layout in which neighbouring rounds move together. |r| < 6/sqrt(n): odds 2e-9 per pair."""
    random = CounterRandom(5)
    n = 4000
    columns = [
        [random.uniform(Purpose.ACCEPT_UNIFORM, i, 0) for i in range(n)],
        [random.uniform(Purpose.ACCEPT_UNIFORM, i + 1, 0) for i in range(n)],
        [random.uniform(Purpose.ACCEPT_UNIFORM, i, 1) for i in range(n)],
        [random.uniform(Purpose.CORRECTION_SAMPLE, i, 0) for i in range(n)],
        [CounterRandom(6).uniform(Purpose.ACCEPT_UNIFORM, i, 0) for i in range(n)],
        [CounterRandom(5, 1).uniform(Purpose.ACCEPT_UNIFORM, i, 0) for i in range(n)],
    ]
    correlations = np.corrcoef(columns) - np.eye(len(columns))
    assert np.abs(correlations).max() < 6 / np.sqrt(n)


def test_seed_zero_and_large_seeds_are_seeds():
    """Prevents seed 0 from meaning "no seed", and negative seeds from failing: the contract takes seed mod 2**64."""
    first = [CounterRandom(seed).uniform(Purpose.TARGET_EXTRA, 0, 0) for seed in (0, 1, 2**63, 2**64 - 1)]
    assert len(set(first)) == 4
    assert CounterRandom(-1).uniform(Purpose.TARGET_EXTRA, 0, 0) == first[3]


def test_fresh_seeds_differ_and_fit():
    """Prevents two unseeded requests from being identical. Odds of a false alarm: 1e-16."""
    made = {fresh_seed() for _ in range(50)}
    assert len(made) == 50
    assert all(0 <= seed < 2**63 for seed in made)


def _scripted_words(monkeypatch, random, words):
    monkeypatch.setattr(random, "words", lambda *key: np.array(words, dtype=np.uint64))


def test_uniform_range(monkeypatch):
    """Prevents u = 1, which would reject a certain token, and keeps u = 0 possible, which strict acceptance expects."""
    random = CounterRandom(0)
    _scripted_words(monkeypatch, random, [0])
    assert random.uniform(Purpose.ACCEPT_UNIFORM, 0, 0) == 0.0
    _scripted_words(monkeypatch, random, [2**64 - 1])
    assert random.uniform(Purpose.ACCEPT_UNIFORM, 0, 0) == 1 - 2.0**-53


def test_gumbel_is_finite_at_both_ends(monkeypatch):
    """Prevents infinite noise, which would make a token certain or its score NaN."""
    random = CounterRandom(0)
    _scripted_words(monkeypatch, random, [0, 2**64 - 1])
    noise = random.gumbel(0, np.array([0, 1]))
    assert np.isfinite(noise).all()
    assert noise[0] < -3.5
    assert noise[1] > 36


def test_gumbel_follows_its_law():
    """Prevents noise of another law, under which coupled text would not follow q. False alarm: 1e-6 each, seeds fixed.

    Negative control: the same noise without its outer logarithm must fail.
    """
    noise = CounterRandom(11).gumbel(3, np.arange(50_000))
    assert scipy.stats.kstest(noise, "gumbel_r").pvalue > 1e-6
    assert scipy.stats.kstest(np.exp(-noise), "gumbel_r").pvalue < 1e-6
    uniforms = [CounterRandom(11).uniform(Purpose.TARGET_EXTRA, i, 0) for i in range(5_000)]
    assert scipy.stats.kstest(uniforms, "uniform").pvalue > 1e-6


@given(seed=seeds, position=places, ids=st.sets(st.integers(0, 2000), min_size=1, max_size=30).map(sorted))
def test_gumbel_belongs_to_the_id(seed, position, ids):
    """Prevents noise that moves when other ids leave the support: an id's noise depends on the id alone."""
    random = CounterRandom(seed)
    full = random.gumbel(position, np.arange(2001))
    assert (random.gumbel(position, np.array(ids)) == full[ids]).all()


@pytest.mark.parametrize("other", [(0, 1), (1, 0)])
def test_gumbel_differs_by_position_and_sample(other):
    """Prevents the same noise at two positions, which would repeat tokens, or in two samples of one seed."""
    position, sample = other
    ids = np.arange(10)
    assert (CounterRandom(4).gumbel(0, ids) != CounterRandom(4, sample).gumbel(position, ids)).all()


def test_few_ids_far_apart_get_the_words_of_all():
    """Prevents the path that jumps to single blocks from giving other noise than the one that runs through."""
    random = CounterRandom(7, sample=2)
    every = random.gumbel(5, np.arange(250_000))
    for ids in ([0], [3, 4, 5, 240_001], [1, 99_999, 100_000, 249_999], list(range(0, 250_000, 50_000))):
        assert np.array_equal(random.gumbel(5, np.array(ids)), every[ids])
