"""Distributions: sampling, ties, residuals."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from specframe.distribution import Distribution, sample_weights

BELOW_ONE = 1 - 2.0**-53
UNIFORMS = (0.0, 2.0**-53, 0.25, 0.5, BELOW_ONE)

weights = st.lists(st.integers(0, 9), min_size=2, max_size=8).filter(any)


def dist(*probs):
    return Distribution.from_probs(probs)


def test_sample_never_returns_zero_mass():
    """Prevents an empty bucket from being drawn at u = 0 or at the largest float below 1 (case A4)."""
    for probs in ([0, 1], [1, 0], [0, 0.5, 0, 0.5, 0], [0, 0.7, 0.3, 0], [0] * 50 + [1e-300, 1] + [0] * 50):
        law = dist(*probs)
        for uniform in UNIFORMS:
            assert probs[law.sample(uniform)] > 0, (probs, uniform)


@given(row=weights, uniform=st.floats(0, BELOW_ONE))
def test_sample_weights_never_returns_zero_weight(row, uniform):
    """Prevents a correction from being a token whose residual is 0, wherever the zeros stand."""
    ids = np.arange(len(row)) * 3
    token = sample_weights(ids, np.array(row, dtype=float), uniform)
    assert row[list(ids).index(token)] > 0


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1.0, 1e30])
def test_sample_weights_at_the_edges_of_float(scale):
    """Prevents rounding of u times the total up to the total from giving an id out of range."""
    row = np.array([0.0, 0.1, 0.0, 0.7, 0.2, 0.0]) * scale
    assert sample_weights(np.arange(6), row, 0.0) == 1
    assert sample_weights(np.arange(6), row, BELOW_ONE) == 4


def test_sample_weights_of_subnormal_mass():
    """Prevents an index out of range where u times the total does round up to the total."""
    row = np.array([0.0, 5e-324, 0.0])
    assert BELOW_ONE * row.sum() == row.sum()
    assert sample_weights(np.arange(3), row, BELOW_ONE) == 1


@given(row=weights, numerator=st.integers(0, 63))
def test_sample_is_the_inverse_cdf(row, numerator):
    """Prevents an off-by-one bucket: the id is the first whose exact cumulative mass passes u."""
    uniform = Fraction(2 * numerator + 1, 128)  # never on an edge of these rationals with denominators below 128
    total = sum(row)
    edges = np.cumsum([Fraction(weight, total) for weight in row])
    assume(all(edge != uniform for edge in edges))
    expected = next(i for i, edge in enumerate(edges) if edge > uniform)
    assert dist(*row).sample(float(uniform)) == expected


def test_argmax_ties_go_to_the_lowest_id():
    """Prevents baseline and verification from breaking ties differently (case B4)."""
    law = Distribution(np.array([2, 5, 9]), np.array([1.0, 3.0, 3.0]), 10)
    assert law.argmax() == (5, 0.0)
    assert Distribution(np.array([2, 5, 9]), np.array([3.0, 1.0, 2.5]), 10).argmax() == (2, 0.5)


def test_perturbed_argmax_ties_go_to_the_lowest_id():
    """Prevents the coupled rule from having a tie rule of its own."""
    law = Distribution(np.array([0, 1]), np.array([1.0, 2.0]), 4)
    assert law.perturbed_argmax(np.array([3.0, 2.0])) == (0, 0.0)
    assert law.perturbed_argmax(np.array([0.0, 2.0])) == (1, 3.0)


def test_margin_of_a_single_id_is_infinite():
    """Prevents a forced token from being reported as a near-tie."""
    assert Distribution(np.array([3]), np.array([-7.0]), 5).argmax() == (3, np.inf)


@given(row=weights)
def test_prob_reads_agree(row):
    """Prevents the accept test, the residual and the draw from reading different vectors (case A3)."""
    law = dist(*row)
    dense = law.dense()
    assert dense.sum() == pytest.approx(1, abs=1e-15)
    assert [law.prob(token) for token in range(len(row))] == dense.tolist()
    assert law.probs is law.probs
    assert (law.probs_at(np.arange(len(row))) == dense).all()
    assert law.prob(len(row)) == 0.0


def test_huge_log_weights_do_not_overflow():
    """Prevents NaN probabilities from logits that a tiny temperature has blown up."""
    law = Distribution(np.arange(3), np.array([1e300, -1e300, 1e300]), 3)
    assert law.dense().tolist() == [0.5, 0.0, 0.5]


def test_residual_dense():
    """Prevents a residual made by anything but subtraction: [q - p]+ of the report (case A1's numbers)."""
    residual = dist(0.5, 0.3, 0.2).residual(dist(0.2, 0.3, 0.5))
    assert residual.weights == pytest.approx([0.3, 0.0, 0.0])
    assert not residual.agree


def test_residual_of_sparse_laws_with_different_supports():
    """Prevents index arithmetic on supports from losing mass where p or q is zero."""
    q, p = dist(0, 0.5, 0, 0.25, 0.25), dist(0.5, 0.25, 0.25, 0, 0)
    residual = q.residual(p)
    assert dict(zip(q.ids.tolist(), residual.weights.tolist(), strict=True)) == {1: 0.25, 3: 0.25, 4: 0.25}
    assert not residual.agree


def test_residual_of_a_point_mass():
    """Prevents a deterministic proposal from being scored softly: q without x (case A2)."""
    q = dist(0.5, 0.3, 0.2)
    assert q.residual(0).weights == pytest.approx([0, 0.3, 0.2])
    assert dist(0.5, 0, 0.5).residual(1).weights.tolist() == [0.5, 0.5]  # q has none of it


@given(q=weights, p=weights)
def test_residual_equals_fractions(q, p):
    """Prevents any path of the sparse arithmetic from differing from exact rationals."""
    size = max(len(q), len(p))
    q, p = q + [0] * (size - len(q)), p + [0] * (size - len(p))
    exact = [max(Fraction(a, sum(q)) - Fraction(b, sum(p)), Fraction(0)) for a, b in zip(q, p, strict=True)]
    law = dist(*q)
    found = np.zeros(size)
    residual = law.residual(dist(*p))
    found[law.ids] = residual.weights
    assert found == pytest.approx([float(x) for x in exact], abs=1e-15)
    assert residual.agree == (sum(exact) == 0)


def test_agree_is_equality_to_rounding():
    """Prevents a vanished residual from being forgiven where p and q are not one distribution (case A5 i)."""
    probs = np.random.default_rng(0).random(1000) + 1e-3
    q = dist(*probs)
    assert q.residual(dist(*probs)).agree
    nudged = probs.copy()
    nudged[::2] = np.nextafter(nudged[::2], 2)
    assert q.residual(dist(*nudged)).agree
    far = probs.copy()
    far[0] += 1e-6
    assert not q.residual(dist(*far)).agree  # float32-sized: a true residual


def test_agree_is_false_where_one_is_not_a_distribution():
    """Prevents a draft law that sums to more than 1 from passing as rounding."""
    q, p = dist(0.5, 0.5), dist(0.5, 0.5)
    p._probs = np.array([0.75, 0.75])
    residual = q.residual(p)
    assert residual.weights.sum() == 0
    assert not residual.agree
    wider = dist(0.5, 0.5, 0)
    elsewhere = Distribution.from_probs([0.25, 0.25, 0.5])
    elsewhere._probs = np.array([0.5, 0.5, 1.0])  # all of the excess outside q's support
    assert not wider.residual(elsewhere).agree


def test_certain_proposal_leaves_an_agreeing_residual():
    """Prevents a point mass on a certain token from raising when its residual is empty."""
    assert dist(0, 1, 0).residual(1).agree


@given(row=weights)
def test_entropy_is_that_of_the_probabilities(row):
    """Prevents an entropy of unnormalised weights, and a negative one where one id is left."""
    law = dist(*row)
    probs = law.probs[law.probs > 0]
    assert law.entropy() == pytest.approx(-float((probs * np.log(probs)).sum()), abs=1e-12)
    assert law.entropy() >= 0
    shifted = Distribution(law.ids, law.log_weights + 40.0, law.vocab_size)
    assert shifted.entropy() == pytest.approx(law.entropy(), abs=1e-12)
