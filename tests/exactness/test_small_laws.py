"""All short laws: target and draft laws of two to six ids with rational probabilities, and chains of proposals.

The theory is checked over rationals for every pair; the shipped rule to 1e-12, for every pair up to four ids, and up to a
renaming of ids beyond.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from wrong import CorrectionFromTarget, NotRenormalised, NotStrict, SoftmaxResidual

from specframe.distribution import Distribution
from specframe.random import CounterRandom
from specframe.strategy import Strategy
from specframe.testing import (
    CycleGrammar,
    LawRow,
    LogitsDrafter,
    TableTarget,
    distance,
    first_token_law,
    fractions,
    output_law,
    plain_law,
    real_round_law,
    round_law,
    sequence_law,
    target_law,
)
from specframe.testing.exhaustive import deviation
from specframe.testing.runs import request_of
from specframe.verify import Coupled

EXACT = 1e-12
PARTS = {2: 6, 3: 3, 4: 2, 5: 2, 6: 2}  # laws are of so many equal parts
TINY = Fraction(1, 10**6)


def laws(size):
    """Return all laws over so many ids in equal parts: equal, disjoint and partly zero ones among them."""
    parts = PARTS[size]
    return [fractions(*row) for row in itertools.product(range(parts + 1), repeat=size) if sum(row) == parts]


def pairs(size):
    """Return pairs of target and draft laws; of five and six ids, one of each that differ by the ids' names alone."""
    every = laws(size)
    targets = every if size <= 4 else [law for law in every if law == sorted(law, reverse=True)]
    return [(q, p) for q in targets for p in every]


def always(row):
    return lambda ids: row


@pytest.mark.parametrize("size", PARTS)
def test_theory_over_all_pairs(size):
    """The first token's law is the target's, exactly, for every pair of laws; acceptance is 1 - TV."""
    for q, p in itertools.product(laws(size), repeat=2):
        law = round_law(always(q), always(p), (), 1)
        assert first_token_law(law, size) == q
        corrected = sum((prob for outcome, prob in law.items() if outcome.is_correction), Fraction(0))
        assert corrected == sum(abs(x - y) for x, y in zip(q, p, strict=True)) / 2


@pytest.mark.parametrize("size", PARTS)
def test_shipped_rule_over_all_pairs(size):
    """The same of the code that runs, drawn proposals and offered ones, to 1e-12."""
    for q, p in pairs(size):
        law = real_round_law(always(q), always(p), (), 1)
        assert first_token_law(law, size) == pytest.approx([float(x) for x in q], abs=EXACT)
        assert {outcome.ids[0] for outcome in law} == {token for token, prob in enumerate(q) if prob}
    for q in laws(size):
        for token in range(size):
            law = real_round_law(always(q), lambda ids, token=token: token, (), 1)
            assert first_token_law(law, size) == pytest.approx([float(x) for x in q], abs=EXACT)


@pytest.mark.parametrize("size", PARTS)
def test_tiny_overlap(size):
    """Where the laws meet in a millionth of their mass, on either side."""
    near = [Fraction(1), *[TINY] * (size - 1)]
    for q, p in itertools.permutations((fractions(*near), fractions(*near[::-1])), 2):
        law = real_round_law(always(q), always(p), (), 1)
        assert distance(law, round_law(always(q), always(p), (), 1)) < EXACT


@pytest.mark.parametrize("rule", [NotStrict, NotRenormalised, SoftmaxResidual, CorrectionFromTarget])
def test_wrong_rules_are_seen_over_all_pairs(rule):
    """A negative control: among the same pairs each of these faults shows."""

    def shows(q, p):
        law = first_token_law(real_round_law(always(q), always(p), (), 1, rule=rule), 3)
        differences = [abs(float(x - y)) for x, y in zip(law, q, strict=True)]
        return max(differences) > EXACT or any(x and not y for x, y in zip(law, q, strict=True))

    assert any(shows(q, p) for q, p in pairs(3))


def rows_of(seed, size):
    """Return a table of laws by the last id, with zeros in it."""
    every = laws(size)
    return lambda ids: every[(7 * seed + 5 * (ids[-1] if ids else 0) + 3 * seed * seed) % len(every)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_chains(size, length):
    """Proposals of one to four tokens, laws that change with the prefix: a round has the law that theory gives it."""
    for seed in range(3 if size == 2 or length < 4 else 1):
        target, draft = rows_of(seed, size), rows_of(seed + 4, size)
        law = real_round_law(target, draft, (0,), length)
        assert distance(law, round_law(target, draft, (0,), length)) < EXACT
        whole = sequence_law(partial(round_law, target, draft), (0,), length + 1, length)
        assert whole == target_law(target, (0,), length + 1)


@pytest.mark.parametrize("allowed", [(0, 1), (1, 2), (0, 2), (1,)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_masked_laws(allowed, seed):
    """Whole outputs under a mask: the law is the target's own, restricted and renormalised, with zeros on either side."""
    valid = [law for law in laws(3) if any(law[token] for token in allowed)]
    draft = rows_of(seed + 4, 3)
    target = TableTarget.from_probs(lambda ids: valid[(7 * seed + 5 * ids[-1]) % len(valid)], vocab_size=3)
    drafter = LogitsDrafter(lambda ids: np.log(np.maximum(np.array(draft(ids), dtype=float), 1e-300)), num_tokens=1)
    grammar = CycleGrammar([allowed, (0, 1, 2)], vocab_size=3)
    request = request_of(target, (0,), {"max_new_tokens": 3, "temperature": 1.0, "seed": 0, "grammar": grammar})
    law = output_law(target, {"d": drafter}, Strategy(verifier="residual"), request)
    assert deviation(law, plain_law(target, request)) < EXACT
    assert {ids[0] for ids in law} <= set(allowed)


@pytest.mark.parametrize("size", PARTS)
def test_coupled_emits_the_targets_own_token(size):
    """For every target law, proposed token and seed: the token of plain sampling, and the proposal stands iff it is that."""
    for seed, q in itertools.product(range(3), laws(size)):
        rule = Coupled(CounterRandom(seed))
        row = LawRow(Distribution.from_probs([float(x) for x in q]), 7)
        own = rule.extra(row, 0).token
        assert q[own] > 0
        for token in range(size):
            decision = rule.judge(row, 0, token, None)
            assert (decision.token, decision.is_accepted) == (own, token == own)
