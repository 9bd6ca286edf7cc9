"""Section A of the public faults: wrong output distributions, each with its exact numbers, by enumeration.

Nothing here is sampled unless it says so: laws are exact (``specframe.testing``), so a fault cannot hide in noise. A7 waits
for trees.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import engine_on, random_table
from wrong import (
    CorrectionFromTarget,
    FirstIdRemoved,
    NotRenormalised,
    NotStrict,
    ReusedNoise,
    SecondDraw,
    SoftArgmax,
    SoftmaxResidual,
)

from specframe.distribution import Distribution, NotADistribution
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Proposal
from specframe.random import CounterRandom, Purpose
from specframe.sampling import SamplingPolicy
from specframe.testing import (
    Integrand,
    LawRow,
    LogitsDrafter,
    Outcome,
    ScriptedRandom,
    distance,
    first_token_law,
    fractions,
    integrate,
    real_round_law,
    round_law,
    run_verify,
    sequence_law,
    target_law,
)
from specframe.verify import Residual, verify

EXACT = 1e-12
A1_Q, A1_P = fractions("0.5", "0.3", "0.2"), fractions("0.2", "0.3", "0.5")
A2_Q, A2_P = fractions("0.5", "0.3", "0.2"), fractions("0.6", "0.3", "0.1")


def always(row):
    """Make a table that has one row for every prefix."""
    return lambda ids: row


def first(law, size):
    return [float(prob) for prob in first_token_law(law, size)]


def tv(row, other):
    return sum(abs(float(a) - float(b)) for a, b in zip(row, other, strict=True)) / 2


# --- The shipped rule is exact -----------------------------------------------------------------------------------------


def table(seed, size, denominator=12):
    """Make a table of random rationals that depends on the last two ids; zeros are common."""

    def row(ids):
        draws = np.random.default_rng([seed, *(ids[-2:] or (0,))]).integers(0, denominator // 2, size)
        draws[sum(ids) % size] += 1
        return fractions(*draws.tolist())

    return row


def drawn(seed, size):
    return table(seed, size)


def fixed(seed, size):
    return lambda ids: (seed + 2 * sum(ids)) % size


def mixed(seed, size):
    rows = table(seed, size)
    return lambda ids: rows(ids) if len(ids) % 2 else (len(ids) + seed) % size


def stopping(seed, size):
    """Draw, and stop early because of what was drawn: allowed, for nothing is taken back."""
    rows = table(seed, size)
    return lambda ids: None if ids and ids[-1] == 1 else rows(ids)


DRAFTS = [drawn, fixed, mixed, stopping, lambda seed, size: lambda ids: None]


def real_sequences(target, step, num_tokens, num_draft, stop_ids=frozenset(), **wrong):
    return sequence_law(
        lambda prefix, room: real_round_law(target, step, prefix, room, stop_ids, **wrong),
        (1,),
        num_tokens,
        num_draft,
        stop_ids,
    )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("num_draft", [1, 2, 3])
@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({1})])
def test_enumerated_speculation_is_plain_decoding(draft, num_draft, stop_ids, seed):
    """Prevents a wrong theory: over rationals, whole sequences up to length 4 have exactly the target's law."""
    target, step = table(seed, 3), draft(seed + 50, 3)
    law = sequence_law(
        lambda prefix, room: round_law(target, step, prefix, room, stop_ids), (1,), 4, num_draft, stop_ids
    )
    assert law == target_law(target, (1,), 4, stop_ids)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("stop_ids", [frozenset(), frozenset({1})])
def test_shipped_rule_makes_the_targets_sequences(draft, stop_ids):
    """Prevents any bias of the shipped rule over whole outputs: laws of three tokens, two drafted, to 1e-12."""
    target, step = table(7, 3), draft(57, 3)
    law = real_sequences(target, step, 3, 2, stop_ids)
    assert sum(law.values()) == 1
    assert distance(law, target_law(target, (1,), 3, stop_ids)) < EXACT


def test_shipped_rule_over_four_tokens():
    """Prevents a bias that needs a second round after a long first one: laws of four tokens, three drafted."""
    target, step = table(8, 2), drawn(58, 2)
    assert distance(real_sequences(target, step, 4, 3), target_law(target, (1,), 4)) < EXACT


@given(seed=st.integers(0, 10_000), draft=st.sampled_from(DRAFTS), size=st.integers(2, 4), room=st.integers(0, 2))
@settings(max_examples=25, deadline=None)
def test_shipped_round_has_the_enumerated_law(seed, draft, size, room):
    """Prevents a right first token with wrong rejection positions or corrections: laws equal outcome by outcome."""
    target, step = table(seed, size), draft(seed + 1, size)
    found, expected = real_round_law(target, step, (1,), room), round_law(target, step, (1,), room)
    assert sum(abs(found.get(x, 0) - expected.get(x, 0)) for x in found.keys() | expected.keys()) / 2 < EXACT
    # Laws that are equal as rationals may round apart, and be rejected with a chance of 1e-16; no impossible token follows.
    assert all(target((1, *ids[:i]))[token] for ids, _ in found for i, token in enumerate(ids))


def test_every_pair_of_small_laws():
    """Prevents a corner from being missed: all laws in thirds over three ids, so equal, disjoint and zero ones too."""
    laws = [fractions(*row) for row in itertools.product(range(4), repeat=3) if sum(row) == 3]
    for q, p in itertools.product(laws, repeat=2):
        law = real_round_law(always(q), always(p), (), 1)
        assert distance(law, round_law(always(q), always(p), (), 1)) < EXACT
        assert first(law, 3) == pytest.approx([float(x) for x in q], abs=EXACT)
        is_corrected = sum((prob for outcome, prob in law.items() if outcome.is_correction), Fraction(0))
        assert float(is_corrected) == pytest.approx(tv(q, p), abs=EXACT)  # acceptance is 1 - TV


@pytest.mark.parametrize(
    ("q", "p"),
    [
        (("0.000001", "0.999999"), ("0.999999", "0.000001")),
        ((1, 0, 0), (0, 1, 0)),
        ((0, 1, 0, 1), (1, 0, 1, 0)),
        ((1, 10**6, 1), (10**6, 1, 1)),
    ],
)
def test_tiny_overlap_and_disjoint_supports(q, p):
    """Prevents small masses from being lost in a ratio or a residual."""
    q, p = fractions(*q), fractions(*p)
    law = real_round_law(always(q), always(p), (), 1)
    assert distance(law, round_law(always(q), always(p), (), 1)) < EXACT


# --- Deliberately wrong verifiers, which the enumeration must catch ----------------------------------------------------


def first_unverified(rule, row_at, proposal, stop_ids):
    rest = Proposal()
    for token, law in zip(proposal.ids[1:], proposal.laws[1:], strict=True):
        rest.append(token, law, "draft")
    outcome = run_verify(rule, lambda index: row_at(index + 1), rest, stop_ids)
    return Outcome((*proposal.ids[:1], *outcome.ids), outcome.is_correction)


def dropped_for_its_value(rule, row_at, proposal, stop_ids):
    if proposal.ids and proposal.ids[0] == 0:
        proposal = Proposal()
    return run_verify(rule, row_at, proposal, stop_ids)


def shifted_rows(rule, row_at, proposal, stop_ids):
    return run_verify(rule, lambda index: row_at(max(index - 1, 0)), proposal, stop_ids)


WRONG = {
    "softmax residual": (SoftmaxResidual, run_verify),
    "soft law for an argmax": (SoftArgmax, run_verify),
    "accept at u = 0": (NotStrict, run_verify),
    "residual not renormalised": (NotRenormalised, run_verify),
    "draft noise reused": (ReusedNoise, run_verify),
    "correction from q": (CorrectionFromTarget, run_verify),
    "second draw after a mismatch": (SecondDraw, run_verify),
    "only the rejected id removed": (FirstIdRemoved, run_verify),
    "first token unverified": (Residual, first_unverified),
    "a drawn token dropped for its value": (Residual, dropped_for_its_value),
    "rows shifted by one": (Residual, shifted_rows),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_verifiers_are_caught(fault):
    """Prevents a blind check: each of these faults, all of them real ones, must show in the enumerated law."""
    rule, run_round = WRONG[fault]
    q_rows = {0: fractions(4, 4, 2), 1: fractions(5, 5, 0), 2: fractions(1, 1, 8)}

    def target(ids):
        return q_rows[ids[-1]]

    draft = always(fractions(3, 2, 5))
    wrong = real_sequences(target, draft, 3, 2, rule=rule, run_round=run_round)
    right = real_sequences(target, draft, 3, 2)
    expected = target_law(target, (1,), 3)
    assert distance(right, expected) < EXACT
    assert distance(wrong, expected) > 0.001


# --- The cases' own numbers --------------------------------------------------------------------------------------------


def test_a1_softmax_residual():
    """Prevents case A1: a residual made with softmax, which gives mass to impossible tokens."""
    wrong = first(real_round_law(always(A1_Q), always(A1_P), (), 1, rule=SoftmaxResidual), 3)
    assert wrong == pytest.approx([0.321, 0.390, 0.290], abs=6e-4)
    assert tv(wrong, A1_Q) == pytest.approx(0.179, abs=6e-4)
    right = first(real_round_law(always(A1_Q), always(A1_P), (), 1), 3)
    assert right == pytest.approx([0.5, 0.3, 0.2], abs=EXACT)
    weights = Distribution.from_probs(A1_Q).residual(Distribution.from_probs(A1_P)).weights
    assert (weights / weights.sum()).tolist() == [1, 0, 0]


def test_a2_point_mass_scored_softly():
    """Prevents case A2: an argmax draft that reports its soft law, under which one token can never appear."""
    wrong = first(real_round_law(always(A2_Q), always(A2_P), (), 1, rule=SoftArgmax), 3)
    assert wrong == pytest.approx([0.833, 0, 0.167], abs=6e-4)
    assert wrong[1] == 0
    right = first(real_round_law(always(A2_Q), lambda ids: 0, (), 1), 3)
    assert right == pytest.approx([0.5, 0.3, 0.2], abs=EXACT)


def test_a2_second_draw_after_a_mismatch():
    """Prevents the advice that a target draw may be thrown away: exact only if the emitted token is that very draw."""
    wrong = first(real_round_law(always(A2_Q), always(A2_P), (), 1, rule=SecondDraw), 3)
    assert wrong == pytest.approx([0.595, 0.267, 0.138], abs=1e-9)


A3_Q, A3_P = [0.35, 0.45, 0.1, 0.1], [0.4, 0.3, 0.2, 0.1]


def processed(probs, policy, dtype=torch.float64):
    logits = torch.tensor(probs, dtype=torch.float64).log().to(dtype)
    pipeline = Pipeline(policy, vocab_size=len(probs), stop_ids=frozenset(), num_prompt=1)
    return pipeline.distribution(logits, Prefix([0], None, "cpu"), 1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a3_the_reported_law_is_the_sampled_one(dtype):
    """Prevents case A3: a law that is not, bit for bit, the vector that the token was drawn from."""
    policy = SamplingPolicy(temperature=1.0, top_k=2)
    q, p = processed(A3_Q, policy), processed(A3_P, policy, dtype)
    assert p.probs.sum() == pytest.approx(1, abs=1e-15)

    def run(draws):
        rule = Residual(draws, 0)
        drawn = rule.draw(LawRow(p, 1), 0)
        draws.note(drawn.token)
        assert drawn.law is p
        assert p.prob(drawn.token) > 0
        proposal = Proposal()
        proposal.append(drawn.token, drawn.law, "draft")
        outcome = run_verify(rule, lambda i: LawRow(q, i), proposal, frozenset())
        return outcome.ids[0]

    law = integrate(run)
    assert [float(law.get(x, 0)) for x in range(4)] == pytest.approx([0.4375, 0.5625, 0, 0], abs=EXACT)
    assert set(law) == {0, 1}


def test_a3_negative_control():
    """Prevents case A3's fault from being invisible: filtered draft drawn, raw draft reported."""
    q, raw = processed(A3_Q, SamplingPolicy(temperature=1.0, top_k=2)), Distribution.from_probs(A3_P)
    filtered = processed(A3_P, SamplingPolicy(temperature=1.0, top_k=2))

    def run(draws):
        rule = Residual(draws, 0)
        proposal = Proposal()
        proposal.append(rule.draw(LawRow(filtered, 1), 0).token, raw, "draft")
        draws.note(proposal.ids[0])
        return run_verify(rule, lambda i: LawRow(q, i), proposal, frozenset()).ids[0]

    law = integrate(run)
    assert [float(law.get(x, 0)) for x in range(4)] == pytest.approx([0.571, 0.429, 0, 0], abs=6e-4)


@pytest.mark.parametrize("uniform", [0.0, 1 - 2.0**-53])
def test_a4_uniform_at_the_ends(uniform):
    """Prevents case A4: u = 0 accepting a token of probability 0, or a draw of a zero-mass bucket."""
    q, p = Distribution.from_probs([0.7, 0.3, 0]), Distribution.from_probs([0.2, 0.2, 0.6])
    decision = Residual(ScriptedRandom([uniform, uniform]), 0).judge(LawRow(q, 0), 0, 2, p)
    assert not decision.is_accepted
    assert decision.token in (0, 1)
    assert not Residual(ScriptedRandom([uniform, uniform]), 0).judge(LawRow(q, 0), 0, 2, None).is_accepted
    assert Distribution.from_probs([0, 1]).sample(uniform) == 1
    assert Distribution.from_probs([1, 0]).sample(uniform) == 0


@pytest.mark.parametrize(("point", "corrected"), [(0.0, 1), (1 - 2.0**-53, 2)])
def test_a4_correction_at_the_ends(point, corrected):
    """Prevents case A4 in the correction: its residual begins and ends with ids that have nothing left."""
    q, p = Distribution.from_probs([0.1, 0.5, 0.3, 0.1]), Distribution.from_probs([0.4, 0.2, 0, 0.4])
    decision = Residual(ScriptedRandom([1 - 2.0**-53, point]), 0).judge(LawRow(q, 0), 0, 0, p)
    assert (decision.is_accepted, decision.token) == (False, corrected)


def test_a4_negative_control():
    """Prevents case A4's fault from hiding in its tiny mass: one grid point of 2**53 makes an impossible token."""
    q, p = fractions(7, 3, 0), fractions(2, 2, 6)
    wrong = first_token_law(real_round_law(always(q), always(p), (), 1, rule=NotStrict), 3)
    assert 0 < wrong[2] < 2.0**-52
    assert first_token_law(real_round_law(always(q), always(p), (), 1), 3)[2] == 0


def test_a5_residual_at_rounding_and_above():
    """Prevents case A5 i: an empty residual divided by its sum, or a real one replaced by q."""
    probs = np.random.default_rng(3).random(1000)
    probs /= probs.sum()
    q = Distribution.from_probs(probs)
    for ulp, is_rounding in ((np.finfo(np.float64).eps, True), (np.finfo(np.float32).eps, False)):
        nudged = probs * (1 + ulp * np.where(np.arange(1000) % 2, 1, -1))
        p = Distribution.from_probs(nudged)
        token = int(np.argmax(p.dense() / q.dense()))
        decision = Residual(ScriptedRandom([1 - 2.0**-53, 0.5]), 0).judge(LawRow(q, 0), 0, token, p)
        assert not decision.is_accepted
        assert decision.is_rounding == is_rounding
        assert decision.token % 2 == 0 or is_rounding  # where q exceeds p


@pytest.mark.parametrize(("times", "is_rounding"), [(0.75, True), (1.0, True), (1.25, False)])
def test_a5_the_floor_of_a_residual(times, is_rounding):
    """Prevents case A5 i at its bound: a mass of V * 2**-52 is rounding, one above it is drawn from."""
    mass = times * 4 * 2.0**-52
    q, p = Distribution.from_probs([0.25 + mass, 0.25 - mass, 0.25, 0.25]), Distribution.from_probs([0.25] * 4)
    decision = Residual(ScriptedRandom([1 - 2.0**-53, 0.99]), 0).judge(LawRow(q, 0), 0, 1, p)
    assert (decision.is_accepted, decision.is_rounding) == (False, is_rounding)
    assert decision.token == (3 if is_rounding else 0)


@pytest.mark.parametrize("policy", [SamplingPolicy(), SamplingPolicy(temperature=0.7, top_k=3, top_p=0.9)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), "all masked"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a5_rows_that_are_no_distribution(policy, bad, dtype):
    """Prevents case A5 ii, iii: a NaN law, a uniform draw, or a silent stream of token 0."""
    logits = torch.randn(8, dtype=torch.float64).to(dtype)
    if bad == "all masked":
        logits[:] = -torch.inf
    else:
        logits[5] = bad
    pipeline = Pipeline(policy, vocab_size=8, stop_ids=frozenset(), num_prompt=1)
    prefix = Prefix([0], None, "cpu")
    with pytest.raises(NotADistribution):
        pipeline.choose(logits, prefix, 1)
    with pytest.raises(NotADistribution, match=r"NaN|inf|masked"):
        pipeline.distribution(logits, prefix, 1)


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 4}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a5_a_drafts_bad_row_costs_that_drafter(bad, sampling, verifier):
    """Prevents case A5 ii in p: a request that a draft's NaN ends, or a text that it changes."""
    target, draft = random_table(), random_table(seed=1)

    def generate(second_row):
        """Draw one good row in the first round, then have what ``second_row`` gives."""
        drafter = LogitsDrafter(lambda ids: draft.row(ids) if len(ids) == 3 else second_row)
        return engine_on(target, drafter, verifier=verifier).generate([1, 2], max_new_tokens=12, **sampling)

    found, expected = generate([bad] * 12), generate(None)
    assert found.token_ids == expected.token_ids
    assert [(event.round_id, event.code) for event in found.events] == [(1, "drafter-failed")]
    assert found.stats.num_proposed == expected.stats.num_proposed == 1


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-310])
def test_a5_tiny_temperature(temperature):
    """Prevents case A5 iv: logits divided by a tiny temperature overflow, and the law is no longer one."""
    logits = torch.full((50,), -20.0)
    logits[17] = 42.0
    pipeline = Pipeline(SamplingPolicy(temperature=temperature), vocab_size=50, stop_ids=frozenset(), num_prompt=1)
    law = pipeline.distribution(logits, Prefix([0], None, "cpu"), 1)
    assert law.dense().sum() == pytest.approx(1, abs=1e-6)
    assert law.prob(17) == 1
    assert Residual(ScriptedRandom([1 - 2.0**-53]), 0).judge(LawRow(law, 0), 0, 17, None).is_accepted


A6_Q, A6_P = [0.10, 0.35, 0.35, 0.20], [0.55, 0.30, 0.05, 0.10]


def gumbel_rounds(correction_noise, draft_noise, uniforms):
    """Run many one-token residual rounds whose draws are Gumbel-max; returns the law of the first token."""
    q, p = np.array(A6_Q), np.array(A6_P)
    drafted = (np.log(p) + draft_noise).argmax(axis=1)
    with np.errstate(divide="ignore"):
        corrected = (np.log(np.maximum(q - p, 0)) + correction_noise).argmax(axis=1)
    emitted = np.where(uniforms * p[drafted] < q[drafted], drafted, corrected)
    return np.bincount(emitted, minlength=4) / len(emitted)


def test_a6_draft_noise_reused_for_the_correction():
    """Prevents case A6: the correction sees the very noise that made the draft win.

    400,000 rounds: TV < .005 has odds of a false alarm below 1e-6 (its expectation is .0013); the control's TV is .049.
    """
    num_trials = 400_000
    random = CounterRandom(3)
    noise = random.gumbel(0, np.arange(4 * num_trials)).reshape(-1, 4)
    fresh = random.gumbel(1, np.arange(4 * num_trials)).reshape(-1, 4)
    uniforms = np.random.default_rng(0).random(num_trials)
    wrong = gumbel_rounds(noise, noise, uniforms)
    assert wrong == pytest.approx([0.100, 0.316, 0.399, 0.185], abs=0.004)
    assert tv(wrong, A6_Q) == pytest.approx(0.049, abs=0.004)
    assert tv(gumbel_rounds(fresh, noise, uniforms), A6_Q) < 0.005


def test_a6_shipped_rule():
    """Prevents case A6 in the shipped rule: its purposes are disjoint, no key repeats, and its law is exactly q."""
    q, p = fractions(*map(str, A6_Q)), fractions(*map(str, A6_P))
    repeats = []

    class Checked(Residual):
        def extra(self, row, num_proposed):
            decision = super().extra(row, num_proposed)
            repeats.append(len(self.random.keys) - len(set(self.random.keys)))
            return decision

    assert first(real_round_law(always(q), always(p), (), 1, rule=Checked), 4) == pytest.approx(A6_Q, abs=EXACT)
    assert repeats
    assert not any(repeats)
    assert tv(first(real_round_law(always(q), always(p), (), 1, rule=ReusedNoise), 4), A6_Q) > 0.01


def test_shipped_rule_with_the_shipped_random_numbers():
    """Prevents a fault between the rule and its random numbers that exact integration replaces.

    20,000 rounds; chi-square with odds of a false alarm 1e-6. Negative control: the softmax residual.
    """
    q, p = Distribution.from_probs(A1_Q), Distribution.from_probs(A1_P)
    num_trials = 20_000

    def counts(rule_type):
        random, found = CounterRandom(9), np.zeros(3)
        for round_id in range(num_trials):
            rule = rule_type(random, round_id)
            drawn = rule.draw(LawRow(p, 0), 0)
            proposal = Proposal()
            proposal.append(drawn.token, drawn.law, "draft")
            verdict = verify(lambda i: LawRow(q, i), proposal, rule, lambda token: True)
            found[proposal.ids[0] if verdict.num_accepted else verdict.token] += 1
        return found

    expected = q.dense() * num_trials
    assert scipy.stats.chisquare(counts(Residual), expected).pvalue > 1e-6
    assert scipy.stats.chisquare(counts(SoftmaxResidual), expected).pvalue < 1e-6


# --- The integrator itself ---------------------------------------------------------------------------------------------


def test_integrator_measures_intervals():
    """Prevents a wrong ruler: known steps, nested asks and a repeated key have their exact measure."""

    def run(draws: Integrand):
        u = draws.uniform(Purpose.ACCEPT_UNIFORM, 0, 0)
        draws.note(u < 0.25)
        if u < 0.25:
            return "low"
        v = draws.uniform(Purpose.ACCEPT_UNIFORM, 0, 1)
        draws.note(v < 1 / 3)
        again = draws.uniform(Purpose.ACCEPT_UNIFORM, 0, 0)
        assert again == u
        return ("v" if v < 1 / 3 else "w") + ("a" if again < 0.5 else "b")

    law = integrate(run)
    third = Fraction(-(-(1 << 53) // 3), 1 << 53)  # grid points below 1/3
    assert law == {
        "low": Fraction(1, 4),
        "va": third / 4,
        "vb": third / 2,
        "wa": (1 - third) / 4,
        "wb": (1 - third) / 2,
    }
