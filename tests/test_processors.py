"""Our own processors against transformers', and the declaration of purity."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as library

import specframe
from specframe.processors import CountPenalty, build_processors, is_pure, pure
from specframe.sampling import SamplingPolicy

V = 6
ids_lists = st.lists(st.integers(0, V - 1), min_size=1, max_size=25)


def scores(size=V):
    return torch.arange(size, dtype=torch.float64)[None]


@given(ids=ids_lists, num_prompt=st.integers(0, 30), presence=st.floats(-2, 2), frequency=st.floats(-2, 2))
def test_count_penalty_equals_counting(ids, num_prompt, presence, frequency):
    """Prevents counting prompt ids, or a token once where it stands twice."""
    generated = ids[num_prompt:]
    found = CountPenalty(presence, frequency, num_prompt)(torch.tensor([ids]), scores())[0]
    expected = [x - frequency * generated.count(x) - presence * (x in generated) for x in range(V)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)


def test_order_of_the_pipeline():
    """Prevents a reordering, which changes results: penalties, bias, bans, minimum length, then the caller's."""
    mine = pure(library.LogitNormalization())
    policy = SamplingPolicy(
        repetition_penalty=1.2, presence_penalty=0.1, no_repeat_ngram_size=3, logit_bias={1: 1.0},
        bad_words_ids=[[2]], suppress_tokens=[3], min_new_tokens=4, processors=[mine],
    )  # fmt: skip
    made = build_processors(policy, stop_ids=frozenset({0}), num_prompt=2)
    assert [type(processor).__name__ for processor in made] == [
        "RepetitionPenaltyLogitsProcessor",
        "CountPenalty",
        "NoRepeatNGramLogitsProcessor",
        "SequenceBiasLogitsProcessor",
        "NoBadWordsLogitsProcessor",
        "SuppressTokensLogitsProcessor",
        "MinNewTokensLengthLogitsProcessor",
        "LogitNormalization",
    ]
    assert build_processors(SamplingPolicy(), stop_ids=frozenset({0}), num_prompt=2) == []
    assert build_processors(SamplingPolicy(min_new_tokens=4), stop_ids=frozenset(), num_prompt=2) == []


class Counting(library.LogitsProcessor):
    def __init__(self):
        self.num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        return scores


def test_purity_is_declared_not_guessed():
    """Prevents a processor that keeps state from being replayed for rows of a block (case E3)."""
    assert not is_pure(Counting())
    assert not is_pure(lambda ids, scores: scores)
    declared = Counting()
    assert pure(declared) is declared
    assert is_pure(declared)
    assert not is_pure(Counting())  # the declaration is of the object, not of its class
    assert specframe.pure is pure


def test_librarys_stateless_processors_are_pure():
    """Prevents speculation from being switched off for transformers' own processors, and a subclass from inheriting that."""
    assert is_pure(library.TopKLogitsWarper(3))
    assert is_pure(library.RepetitionPenaltyLogitsProcessor(1.1))

    class Changed(library.TopKLogitsWarper):
        pass

    assert not is_pure(Changed(3))


@pytest.mark.parametrize("name", [name for name in dir(library) if name.endswith(("GuidanceLogitsProcessor",))])
def test_librarys_stateful_processors_are_not_pure(name):
    """Prevents a processor that runs a model or keeps a cache from being taken for pure."""
    assert getattr(library, name) not in specframe.processors._PURE_LIBRARY_TYPES


def test_ids_beyond_the_logits_do_not_fail():
    """Prevents a prompt id in a padded embedding from an index error: it can never be generated."""
    ids = torch.tensor([[1, V + 2, 1]])
    assert torch.isfinite(CountPenalty(0.5, 0.5, 3)(ids, scores())).all()
    assert torch.isfinite(library.NoRepeatNGramLogitsProcessor(2)(ids, scores())).any()
