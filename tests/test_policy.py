"""The sampling pipeline against transformers' own processors, ties and edges, and the validation of every field."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation import logits_process as library

from specframe.distribution import NotADistribution
from specframe.errors import GrammarError, InvalidRequest
from specframe.policy import Pipeline, top_choices
from specframe.prefix import Prefix
from specframe.sampling import SamplingPolicy

V = 40
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
NUM_PROMPT = len(PROMPT)
GENERATED = [5, 3, 5, 8, 9, 7, 5]
IDS = PROMPT + GENERATED
INF = float("inf")


def pipeline(policy, vocab_size=V, stop_ids=frozenset(), num_prompt=NUM_PROMPT):
    return Pipeline(policy, vocab_size=vocab_size, stop_ids=stop_ids, num_prompt=num_prompt)


def prefix(ids=IDS, num_prompt=NUM_PROMPT, grammar=None):
    made = Prefix(ids[:num_prompt], grammar, "cpu")
    for token in ids[num_prompt:]:
        made.push(token)
    return made


def ours(logits, ids=IDS, **options):
    policy = SamplingPolicy(**{"temperature": 1.0, **options})
    stop_ids = frozenset({0, 1})
    law = pipeline(policy, len(logits), stop_ids).distribution(logits, prefix(ids), len(ids))
    return law.dense()


def theirs(logits, *processors, ids=IDS):
    scores = logits[None].clone()
    for processor in processors:
        scores = processor(torch.tensor([ids]), scores)
    return scores.double().softmax(-1)[0].numpy()


def random_logits(seed, dtype=torch.float64, size=V, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(size, generator=generator, dtype=torch.float64) * scale).to(dtype)


PENALTIES = {
    "repetition_penalty": (
        {"repetition_penalty": 1.3},
        lambda: [library.RepetitionPenaltyLogitsProcessor(1.3)],
    ),
    "no_repeat_ngram_size": ({"no_repeat_ngram_size": 2}, lambda: [library.NoRepeatNGramLogitsProcessor(2)]),
    "logit_bias": (
        {"logit_bias": {2: 3.0, 7: -4.0}},
        lambda: [library.SequenceBiasLogitsProcessor({(2,): 3.0, (7,): -4.0})],
    ),
    "bad_words_ids": (
        {"bad_words_ids": [[11], [7, 5, 12], [8, 13]]},
        lambda: [library.NoBadWordsLogitsProcessor([[11], [7, 5, 12], [8, 13]])],
    ),
    "suppress_tokens": (
        {"suppress_tokens": [4, 5]},
        lambda: [library.SuppressTokensLogitsProcessor([4, 5])],
    ),
    "min_new_tokens": (
        {"min_new_tokens": 9},
        lambda: [library.MinNewTokensLengthLogitsProcessor(NUM_PROMPT, 9, [0, 1])],
    ),
}
WARPERS = {
    "temperature": ({"temperature": 0.6}, lambda: [library.TemperatureLogitsWarper(0.6)]),
    "top_k": ({"top_k": 7}, lambda: [library.TopKLogitsWarper(7)]),
    "top_p": ({"top_p": 0.8}, lambda: [library.TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.07}, lambda: [library.MinPLogitsWarper(0.07)]),
    "typical_p": ({"typical_p": 0.7}, lambda: [library.TypicalLogitsWarper(0.7)]),
}
ORDER = [*PENALTIES, *WARPERS]
EVERYTHING = {**PENALTIES, **WARPERS}


@pytest.mark.parametrize("name", ORDER)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_each_option_is_transformers_own(name, dtype):
    """Prevents an option from meaning something else than in transformers, or from being dropped (case E1)."""
    options, build = EVERYTHING[name]
    for seed in range(60):
        logits = random_logits(seed, dtype)
        expected = theirs(logits, *build())
        found = ours(logits, **options)
        assert (found > 0).tolist() == (expected > 0).tolist(), seed
        assert found == pytest.approx(expected, abs=1e-12 if dtype == torch.float64 else 1e-6), seed


def test_the_option_acts():
    """Prevents the comparison above from passing because neither side does anything: each option moves the law."""
    for name, (options, _) in EVERYTHING.items():
        assert any(abs(ours(random_logits(s), **options) - ours(random_logits(s))).max() > 1e-3 for s in range(5)), name


@given(
    names=st.sets(st.sampled_from(ORDER), min_size=2),
    seed=st.integers(0, 1000),
    scale=st.sampled_from([0.5, 2.0, 6.0]),
)
@settings(max_examples=150, deadline=None)
def test_any_combination_is_transformers_chain_in_this_order(names, seed, scale):
    """Prevents a wrong order: any set of options equals transformers' processors applied in the documented order."""
    chosen = [name for name in ORDER if name in names]
    options = {key: value for name in chosen for key, value in EVERYTHING[name][0].items()}
    processors = [processor for name in chosen for processor in EVERYTHING[name][1]()]
    logits = random_logits(seed, scale=scale)
    assert ours(logits, **options) == pytest.approx(theirs(logits, *processors), abs=1e-12)


def test_temperature_comes_before_the_cuts():
    """Prevents top-p, min-p or typical from cutting the untempered law, which keeps other tokens."""
    logits = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    assert (ours(logits, ids=[0], temperature=2.0, top_p=0.78) > 0).sum() == 3  # .42 + .32 is not enough
    assert (ours(logits, ids=[0], temperature=1.0, top_p=0.78) > 0).sum() == 2


def test_nothing_is_implied():
    """Prevents hidden defaults (top_k = 50): an empty policy with temperature 1 is the softmax of all logits."""
    logits = random_logits(0, size=300)
    assert ours(logits) == pytest.approx(logits.softmax(-1).numpy(), abs=1e-15)
    assert SamplingPolicy().is_greedy
    assert SamplingPolicy(temperature=0).is_greedy
    assert not SamplingPolicy(temperature=0.1).is_greedy


@pytest.mark.parametrize(
    "off", [{"top_p": 1.0}, {"min_p": 0.0}, {"typical_p": 1.0}, {"repetition_penalty": 1.0}, {"min_new_tokens": 0},
            {"presence_penalty": 0.0, "frequency_penalty": 0}, {"top_k": V}, {"top_k": 10**9}]
)  # fmt: skip
def test_neutral_values_change_nothing(off):
    """Prevents a neutral value from costing a token by rounding (top_p = 1 must keep the whole tail)."""
    logits = random_logits(1, scale=30.0)
    assert (ours(logits, **off) == ours(logits)).all()


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, [1, 2, 4]),  # the second best is tied: both stay, as in transformers
        ({"top_k": 1}, [1]),
        ({"min_p": 0.5}, [1, 2, 4]),
        ({"top_p": 0.45}, [1, 4]),  # of equals at the edge the highest id stays, as in transformers
        ({"top_p": 0.65}, [1, 2, 4]),
        ({"top_p": 1e-9}, [1]),
    ],
)
def test_ties(options, kept):
    """Prevents a cut through equal tokens from depending on a sort's whim (probabilities .1 .4 .2 .1 .2)."""
    logits = torch.tensor([0.1, 0.4, 0.2, 0.1, 0.2], dtype=torch.float64).log()
    assert np.flatnonzero(ours(logits, ids=[0], **options)).tolist() == kept


@given(
    counts=st.lists(st.integers(0, 6), min_size=2, max_size=12).filter(any),
    option=st.sampled_from(
        [{"top_p": 0.3}, {"top_p": 0.5}, {"top_p": 0.9}, {"typical_p": 0.4}, {"min_p": 0.3}, {"top_k": 3}]
    ),
)
@settings(deadline=None)
def test_tied_rows_keep_as_much_as_transformers(counts, option):
    """Prevents ties and masked ids from changing how much is kept: only which of equals stays may differ from torch's sort.

    Weights are small integers, so that equal probabilities and masses at the very edge are common.
    """
    logits = torch.tensor(counts, dtype=torch.float64).log()
    build = {
        "top_p": library.TopPLogitsWarper,
        "typical_p": library.TypicalLogitsWarper,
        "min_p": library.MinPLogitsWarper,
        "top_k": library.TopKLogitsWarper,
    }
    name, value = next(iter(option.items()))
    # Where a mass meets the edge to the last bit, summation order decides; such rows say nothing.
    total = sum(counts)
    if name == "top_p":
        ordered = np.cumsum(sorted(counts)) / total
        if any(abs(mass - (1 - value)) < 1e-12 for mass in ordered):
            return
    if name == "typical_p":
        entropy = -sum(c / total * math.log(c / total) for c in counts if c)
        surprise = {c: round(abs(-math.log(c / total) - entropy), 12) for c in counts if c}
        if len(set(surprise.values())) < len(surprise):
            return
        masses = np.cumsum([c / total for c in sorted((c for c in counts if c), key=surprise.get)])
        if any(abs(mass - value) < 1e-12 for mass in masses):
            return
    if name == "min_p" and any(abs(c - value * max(counts)) < 1e-9 for c in counts):
        return
    expected = theirs(logits, build[name](value), ids=[0])
    assert sorted(ours(logits, ids=[0], **option)) == pytest.approx(sorted(expected), abs=1e-12)


def test_a_mass_that_meets_top_p_exactly_is_enough():
    """Prevents one id too many where the kept mass is top_p to the last bit (dyadic, so that it can be)."""
    logits = torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).log()
    for top_p, kept in ((0.5, 1), (0.501, 2), (0.75, 2), (0.751, 3)):
        found = ours(logits, ids=[0], top_p=top_p)
        assert (found > 0).sum() == kept
        assert sorted(found) == pytest.approx(sorted(theirs(logits, library.TopPLogitsWarper(top_p), ids=[0])))


def test_masked_rows_are_cut_like_compact_ones():
    """Prevents ids at -inf from taking part in top-k, top-p or typical counts."""
    logits = random_logits(3)
    masked = torch.full((2 * V,), -INF, dtype=torch.float64)
    masked[::2] = logits
    for options, _ in WARPERS.values():
        assert (ours(masked, **options)[::2] == ours(logits, **options)).all()
        assert ours(masked, **options)[1::2].sum() == 0


def test_presence_and_frequency_penalties_by_hand():
    """Prevents counting prompt ids, or the penalty of one token from being applied to a row before it (case E1)."""
    logits = torch.zeros(V, dtype=torch.float64)
    row = pipeline(SamplingPolicy(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25))
    scores = row.scores(logits, prefix(), len(IDS))
    expected = torch.zeros(V, dtype=torch.float64)
    expected[[3, 8, 9, 7]] = -0.75  # generated once
    expected[5] = -1.25  # generated three times
    assert scores.tolist() == expected.tolist()  # 1, 4, 2, 6 stand in the prompt alone
    at_start = row.scores(logits, prefix(), len(PROMPT))
    assert at_start.tolist() == [0.0] * V
    assert row.scores(logits, prefix(), len(PROMPT) + 1)[5] == -0.75  # row 1 sees draft token 0
    assert row.scores(logits, prefix(), len(PROMPT) + 1)[8] == 0


@given(length=st.integers(len(PROMPT), len(IDS)))
def test_a_row_sees_its_own_prefix_alone(length):
    """Prevents a row of a block from seeing ids that come after it: rows equal those of a prefix cut there."""
    policy = SamplingPolicy(
        temperature=0.7,
        repetition_penalty=1.3,
        frequency_penalty=0.5,
        no_repeat_ngram_size=1,
        bad_words_ids=[[5, 8]],
        min_new_tokens=3,
    )
    logits = random_logits(9)
    row = pipeline(policy, stop_ids=frozenset({0}))
    long = row.distribution(logits, prefix(), length)
    short = row.distribution(logits, prefix(IDS[:length]), length)
    assert (long.dense() == short.dense()).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_input_row_is_never_modified(dtype):
    """Prevents a processor from writing into the target's logits, which other rows or log-probabilities still read."""
    logits = random_logits(2, dtype)
    before = logits.clone()
    policy = SamplingPolicy(
        temperature=0.7, repetition_penalty=1.3, presence_penalty=0.5, no_repeat_ngram_size=2, logit_bias={3: 1.0},
        bad_words_ids=[[4]], suppress_tokens=[5], min_new_tokens=30, top_k=9, top_p=0.9, min_p=0.01, typical_p=0.95,
    )  # fmt: skip
    for made in (policy, SamplingPolicy(), SamplingPolicy(temperature=1.0)):
        row = pipeline(made, stop_ids=frozenset({0}))
        row.distribution(logits, prefix(), len(IDS))
        row.choose(logits, prefix(), len(IDS))
        assert torch.equal(logits, before)


def test_float64_rows_stay_float64():
    """Prevents a detour through float32, which moves probabilities by 1e-8 and breaks ties that are none."""
    logits = torch.zeros(3, dtype=torch.float64)
    logits[1] = 1e-12
    for options in ({}, {"repetition_penalty": 1.5}, {"frequency_penalty": 0.5}, {"logit_bias": {2: -1.0}}):
        row = pipeline(SamplingPolicy(**options), 3)
        assert row.choose(logits, prefix([0]), 1).token == 1, options
        assert row.scores(logits, prefix([0]), 1).dtype == torch.float64


def test_half_precision_rows_are_processed_in_float32():
    """Prevents penalties computed in bfloat16, whose rounding makes ties and moves the argmax."""
    logits = random_logits(0, torch.bfloat16)
    row = pipeline(SamplingPolicy(temperature=1.0, logit_bias={3: 0.001}))
    scores = row.scores(logits, prefix(), len(IDS))
    assert scores.dtype == torch.float32
    assert scores[3] == logits[3].float() + torch.tensor(0.001)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_tiny_temperatures_leave_the_peak(temperature):
    """Prevents overflow to a law that is none (case A5 iv); ties at the peak stay tied."""
    logits = torch.full((6,), -20.0, dtype=torch.float64)
    logits[[2, 4]] = 42.0
    assert ours(logits, ids=[0], temperature=temperature).tolist() == [0, 0, 0.5, 0, 0.5, 0]


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.5}, {"typical_p": 0.5}])
def test_a_single_valid_id_survives_everything(options):
    """Prevents a cut from removing the last id of a forced row."""
    logits = torch.full((5,), -INF, dtype=torch.float64)
    logits[3] = -1e30
    assert ours(logits, ids=[0], **options).tolist() == [0, 0, 0, 1, 0]


def test_greedy_ties_and_margins():
    """Prevents rows of a block from breaking ties otherwise than a row alone, in any dtype (case B4)."""
    rows = torch.tensor([[1.0, 3.0, 3.0, 2.0], [5.0, 1.0, 1.0, 1.0], [0.0, -INF, -INF, -INF]])
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        made = rows.to(dtype)
        assert top_choices(made) == [(1, 0.0), (0, 4.0), (0, INF)]
        assert torch.equal(made, rows.to(dtype))
        alone = [top_choices(row[None].clone())[0] for row in made]
        assert alone == top_choices(made)


def test_bad_greedy_rows_are_told_only_when_they_count():
    """Prevents a NaN in a row that is never read from failing a round."""
    rows = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [INF, 1.0], [-INF, -INF]])
    choices = top_choices(rows)
    assert choices[0] == (1, 1.0)
    assert all(math.isnan(choice.margin) for choice in choices[1:])
    with pytest.raises(NotADistribution):
        pipeline(SamplingPolicy(), 2).choose(rows[1], prefix([0]), 1)


def test_greedy_takes_processors_into_account():
    """Prevents penalties from being dropped at temperature 0."""
    logits = torch.tensor([1.0, 2.0, 1.9])
    assert pipeline(SamplingPolicy(), 3).is_plain(prefix([0]))
    biased = pipeline(SamplingPolicy(logit_bias={2: 0.5}), 3)
    assert not biased.is_plain(prefix([0]))
    assert biased.choose(logits, prefix([0]), 1).token == 2


def test_callers_processors_run_before_the_cuts_and_after_penalties():
    """Prevents a caller's processor from seeing tempered or masked scores, or from being left out."""
    seen = []

    class Spy(library.LogitsProcessor):
        def __call__(self, input_ids, scores):
            seen.append((input_ids.tolist(), scores.clone()))
            return scores + torch.nn.functional.one_hot(torch.tensor(6), V) * 100

    logits = random_logits(0)
    law = ours(logits, temperature=0.5, top_k=2, logit_bias={4: 7.0}, processors=[Spy()])
    assert law.argmax() == 6
    ids, scores = seen[0]
    assert ids == [IDS]
    assert scores[0, 4] == logits[4] + 7
    assert scores[0, 5] == logits[5]


INVALID = [
    ("temperature", -0.1), ("temperature", math.nan), ("temperature", INF), ("temperature", "1"), ("temperature", True),
    ("top_k", 0), ("top_k", -1), ("top_k", 1.5), ("top_k", True), ("top_k", "5"),
    ("top_p", 0), ("top_p", 1.1), ("top_p", math.nan), ("top_p", "x"),
    ("min_p", -0.1), ("min_p", 1.1), ("min_p", math.nan),
    ("typical_p", 0), ("typical_p", 1.1),
    ("repetition_penalty", 0), ("repetition_penalty", -1), ("repetition_penalty", INF),
    ("presence_penalty", math.nan), ("presence_penalty", 101), ("presence_penalty", "a"),
    ("frequency_penalty", -101), ("frequency_penalty", INF),
    ("no_repeat_ngram_size", 0), ("no_repeat_ngram_size", 2.0), ("no_repeat_ngram_size", False),
    ("min_new_tokens", -1), ("min_new_tokens", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value"), INVALID)
def test_invalid_values_name_field_rule_and_value(field, value):
    """Prevents a bad value from being clamped, ignored, or told without the field that it belongs to."""
    with pytest.raises(InvalidRequest) as caught:
        SamplingPolicy(**{field: value})
    assert (caught.value.field, repr(caught.value.value)) == (field, repr(value))
    assert f"'{field}' must be" in str(caught.value)
    assert repr(value) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_every_field_off_is_valid():
    """Prevents None from being refused where it means off."""
    off = dict.fromkeys([field for field, _ in INVALID])
    assert SamplingPolicy(**off) == SamplingPolicy()


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": {10: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"suppress_tokens": [3, 10]},
        {"bad_words_ids": [[1], [2, 10]]},
        {"bad_words_ids": [[1], []]},
    ],
)
def test_ids_outside_the_vocabulary_are_refused(options):
    """Prevents an id that the target lacks from an index error in the middle of a generation."""
    with pytest.raises(InvalidRequest):
        SamplingPolicy(**options).check_ids(10)
    SamplingPolicy(logit_bias={9: 1.0}, suppress_tokens=[0], bad_words_ids=[[9]]).check_ids(10)


class Only:
    """A grammar that allows one set of ids for ever."""

    start = 0

    def __init__(self, allowed, size):
        self._mask = np.isin(np.arange(size), list(allowed))

    def mask(self, state):
        return self._mask

    def advance(self, state, token):
        return state

    def is_final(self, state):
        return False


def test_grammar_masks_before_the_cuts():
    """Prevents top-k from being spent on forbidden ids, which would leave fewer or none."""
    logits = torch.tensor([5.0, 4.0, 3.0, 2.0, 1.0], dtype=torch.float64)
    row = pipeline(SamplingPolicy(temperature=1.0, top_k=2), 5)
    law = row.distribution(logits, prefix([0], 1, Only({2, 3, 4}, 5)), 1)
    assert law.ids.tolist() == [2, 3]
    assert row.choose(logits, prefix([0], 1, Only({4, 3}, 5)), 1).token == 3


def test_a_mask_of_another_width_is_an_error():
    """Prevents ids beyond a narrow mask from staying allowed (case H1)."""
    row = pipeline(SamplingPolicy(temperature=1.0), 5)
    with pytest.raises(GrammarError, match=r"mask has shape \[4\], the logits \[5\]"):
        row.distribution(torch.zeros(5), prefix([0], 1, Only({1}, 4)), 1)


def test_an_empty_mask_is_an_error():
    """Prevents a grammar without a way out from emitting token 0 for ever."""
    row = pipeline(SamplingPolicy(temperature=1.0), 5)
    with pytest.raises(GrammarError, match="allows no token here"):
        row.distribution(torch.zeros(5), prefix([0], 1, Only(set(), 5)), 1)
