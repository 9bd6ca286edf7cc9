"""Verification against the reference interpreter, and what a round may look at, ask for and say."""

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from specframe import verify as verify_module
from specframe.distribution import Distribution, NotADistribution
from specframe.proposal import Proposal
from specframe.random import CounterRandom, Purpose
from specframe.testing import LawRow, ScriptedRandom, UniformKey, reference
from specframe.verify import Choice, Coupled, Greedy, Residual, verify

V = 4
ROOT = Path(verify_module.__file__).parent

# Rows of sixteenths and uniforms of odd 1/64ths: every product, sum and comparison is exact in float64, so that the fast
# verifier must equal the reference without any tolerance.
counts = st.lists(st.integers(0, 15), min_size=V - 1, max_size=V - 1).map(
    lambda cuts: np.diff([0, *sorted(cuts), 16]).tolist()
)
rows = counts.map(lambda row: [count / 16 for count in row])
uniforms = st.integers(0, 31).map(lambda m: (2 * m + 1) / 64)
tokens = st.integers(0, V - 1)


class Scores:
    """A row of greedy scores; NaN margins are refused as the pipeline does."""

    def __init__(self, scores, position=0):
        self.scores, self.position = scores, position

    def choose(self):
        if any(np.isnan(self.scores)) or max(self.scores) in (np.inf, -np.inf):
            raise NotADistribution("bad row")
        best = max(self.scores)
        ordered = sorted(self.scores)
        return Choice(self.scores.index(best), ordered[-1] - ordered[-2])

    def distribution(self):
        raise AssertionError("greedy reads no distribution")


class BadRow:
    position = 0

    def choose(self):
        raise NotADistribution("bad row")

    distribution = choose


def make_proposal(ids, laws):
    proposal = Proposal()
    for token, law in zip(ids, laws, strict=True):
        proposal.append(token, None if law is None else Distribution.from_probs(law), "test")
    return proposal


def as_result(verdict, proposal):
    last = () if verdict.token is None else (verdict.token,)
    emitted = (*proposal.ids[: verdict.num_accepted], *last)
    return reference.RoundResult(
        emitted, verdict.num_accepted, verdict.token, verdict.is_correction, verdict.num_rounding
    )


@st.composite
def sampled_rounds(draw):
    num = draw(st.integers(0, 4))
    q_rows = draw(st.lists(rows, min_size=num + 1, max_size=num + 1))
    laws = [draw(st.none() | rows) for _ in range(num)]
    # A drawn token has mass under its law; half of the time p is q itself, so that long prefixes are accepted.
    laws = [q if law is not None and draw(st.booleans()) else law for law, q in zip(laws, q_rows, strict=False)]
    ids = [draw(tokens if law is None else st.sampled_from([x for x in range(V) if law[x]])) for law in laws]
    return q_rows, ids, laws, draw(st.frozensets(tokens, max_size=1))


def test_reference_is_written_separately():
    """Prevents the reference from agreeing with the verifier because it calls it."""
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in imported if name.startswith("specframe")}


@given(case=sampled_rounds(), script=st.lists(uniforms, min_size=6, max_size=6))
@settings(max_examples=200)
def test_residual_equals_the_normative_pseudocode(case, script):
    """Prevents any departure of the fast round from the report, token for token and draw for draw."""
    q_rows, ids, laws, stop_ids = case
    proposal = make_proposal(ids, laws)
    random = ScriptedRandom(script)
    asked = []

    def uniform(purpose, node):
        asked.append((purpose, node))
        return script[len(asked) - 1]

    expected = reference.stochastic_round(q_rows, ids, laws, stop_ids, uniform)
    made = [LawRow(Distribution.from_probs(row), i) for i, row in enumerate(q_rows)]
    verdict = verify(made.__getitem__, proposal, Residual(random, 7), stop_ids.__contains__)
    assert as_result(verdict, proposal) == expected
    assert [(key.purpose.name.lower(), key.node) for key in random.keys] == asked
    assert {key.round_id for key in random.keys} <= {7}
    assert verdict.num_evaluated == sum(purpose == "accept_uniform" for purpose, _ in asked)


@given(
    scores=st.lists(st.lists(st.integers(-2, 2).map(float), min_size=V, max_size=V), min_size=1, max_size=5),
    data=st.data(),
)
@settings(max_examples=200)
def test_greedy_equals_the_normative_pseudocode(scores, data):
    """Prevents a wrong tie rule, a missed stop or a token too many; scores of five values make ties the rule."""
    best = [row.index(max(row)) for row in scores]
    ids = [data.draw(st.just(token) | tokens) for token in best[:-1]]
    stop_ids = data.draw(st.frozensets(tokens, max_size=1))
    proposal = make_proposal(ids, [None] * len(ids))
    verdict = verify([Scores(row) for row in scores].__getitem__, proposal, Greedy(), stop_ids.__contains__)
    assert as_result(verdict, proposal) == reference.greedy_round(scores, ids, stop_ids)
    num_read = verdict.num_evaluated + (verdict.token is not None and not verdict.is_correction)
    assert list(verdict.margins) == [sorted(row)[-1] - sorted(row)[-2] for row in scores[:num_read]]


@given(case=sampled_rounds(), seed=st.integers(0, 2**32))
@settings(max_examples=200)
def test_coupled_equals_the_reference(case, seed):
    """Prevents noise of a wrong position or id, and any influence of p on what is emitted."""
    q_rows, ids, laws, stop_ids = case
    random = CounterRandom(seed)
    vocab = np.arange(V)
    expected = reference.coupled_round(q_rows, ids, stop_ids, lambda pos, x: float(random.gumbel(pos, vocab)[x]), 10)
    made = [LawRow(Distribution.from_probs(row), 10 + i) for i, row in enumerate(q_rows)]
    proposal = make_proposal(ids, laws)
    verdict = verify(made.__getitem__, proposal, Coupled(CounterRandom(seed)), stop_ids.__contains__)
    assert as_result(verdict, proposal) == expected
    assert all(margin > 0 for margin in verdict.margins)


@pytest.mark.parametrize("target_token", range(V))
@pytest.mark.parametrize("proposed", range(V))
@pytest.mark.parametrize("is_drawn", [False, True])
def test_coupled_emits_the_targets_own_token(target_token, proposed, is_drawn):
    """Prevents a proposal, its value or its law from changing text: every pair of target and proposed token."""
    q, p = [0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]
    noise = np.where(np.arange(V) == target_token, 50.0, 0.0)
    row = LawRow(Distribution.from_probs(q), 3)
    proposal = make_proposal([proposed], [p if is_drawn else None])
    rule = Coupled(ScriptedRandom(gumbels=[noise, noise]))
    verdict = verify(lambda index: row, proposal, rule, lambda token: False)
    emitted = [*proposal.ids[: verdict.num_accepted], verdict.token]
    assert emitted[0] == target_token
    assert verdict.is_correction == (proposed != target_token)
    assert len(emitted) == (2 if proposed == target_token else 1)


@given(q=rows, p=rows, seed=st.integers(0, 2**32), position=st.integers(0, 10_000))
def test_coupled_draft_uses_the_targets_noise(q, p, seed, position):
    """Prevents drafts from being drawn by other noise, which would lose acceptance: equal rows agree always."""
    rule = Coupled(CounterRandom(seed))
    target, draft = LawRow(Distribution.from_probs(q), position), LawRow(Distribution.from_probs(p), position)
    drawn = rule.draw(draft, 0)
    assert drawn.law is draft.distribution()
    assert p[drawn.token] > 0
    assert rule.judge(target, 0, rule.draw(target, 0).token, None).is_accepted
    assert rule.extra(target, 0).token == rule.draw(target, 5).token  # the node plays no part


def test_coupled_acceptance_reaches_its_bound():
    """Prevents a coupling worse than (1 - TV) / (1 + TV), which its docstring promises. 4,000 positions, 5 sigma: 6e-7."""
    q, p = Distribution.from_probs([0.5, 0.3, 0.2]), Distribution.from_probs([0.2, 0.3, 0.5])
    rule = Coupled(CounterRandom(1))
    n = 4000
    hits = sum(rule.judge(LawRow(q, i), 0, rule.draw(LawRow(p, i), 0).token, p).is_accepted for i in range(n))
    bound = (1 - 0.3) / (1 + 0.3)
    assert hits / n > bound - 5 * (0.25 / n) ** 0.5


@pytest.mark.parametrize("wrong_at", [0, 1, 2])
@pytest.mark.parametrize("rule", ["greedy", "residual", "coupled"])
def test_rows_after_the_first_rejection_are_not_read(rule, wrong_at):
    """Prevents rows of contexts that never happen from being processed: they may be NaN, and cost time."""
    good = Distribution.from_probs([1.0, 0, 0, 0])

    def row_at(index):
        assert index <= wrong_at, f"row {index} was read after a rejection at {wrong_at}"
        return LawRow(good, index)

    made = {"greedy": Greedy(), "residual": Residual(CounterRandom(0), 0), "coupled": Coupled(CounterRandom(0))}[rule]
    proposal = make_proposal([3 if i == wrong_at else 0 for i in range(4)], [None] * 4)
    verdict = verify(row_at, proposal, made, lambda token: False)
    assert (verdict.num_accepted, verdict.token, verdict.is_correction) == (wrong_at, 0, True)
    assert verdict.num_evaluated == wrong_at + 1


def test_an_accepted_final_token_ends_the_round():
    """Prevents a draw after an accepted stop token (case C1): no further row is read, no token follows."""
    good = LawRow(Distribution.from_probs([0, 1.0, 0, 0]), 0)
    random = ScriptedRandom([0.5, 0.5])
    read = []
    asked = []

    def is_final(token):
        asked.append(token)
        return len(asked) == 2

    verdict = verify(
        lambda i: read.append(i) or good, make_proposal([1, 1, 1], [None] * 3), Residual(random, 0), is_final
    )
    assert (verdict.num_accepted, verdict.token, verdict.is_correction) == (2, None, False)
    assert read == [0, 1]
    assert [key.purpose for key in random.keys] == [Purpose.ACCEPT_UNIFORM] * 2


def test_a_rejected_final_token_does_not_end_the_round():
    """Prevents a stop token that was drafted but rejected from stopping, and is_final from being asked of it (C1)."""
    row = LawRow(Distribution.from_probs([1.0, 0, 0, 0]), 0)
    asked = []
    verdict = verify(lambda i: row, make_proposal([2], [None]), Greedy(), lambda token: asked.append(token) or True)
    assert (verdict.num_accepted, verdict.token, verdict.is_correction) == (0, 0, True)
    assert asked == []  # nor of the correction: the caller's stopper sees every emitted token


def test_is_final_is_asked_once_of_each_accepted_token_in_order():
    """Prevents a stateful stop check (stop strings) from seeing a token twice or out of order."""
    row = LawRow(Distribution.from_probs([0.25] * 4), 0)
    asked = []
    script = ScriptedRandom([0.0, 0.0, 0.0, 0.5])
    verdict = verify(
        lambda i: row, make_proposal([3, 1, 2], [None] * 3), Residual(script, 0), lambda token: asked.append(token)
    )
    assert asked == [3, 1, 2]
    assert verdict.num_accepted == 3


@pytest.mark.parametrize("bad_at", [0, 1, 2])
@pytest.mark.parametrize("rule", ["greedy", "residual", "coupled"])
def test_a_bad_row_that_counts_carries_its_index(rule, bad_at):
    """Prevents a NaN from becoming a token, or an error that does not say which row (case A5 ii, iii)."""
    made = {"greedy": Greedy(), "residual": Residual(CounterRandom(0), 0), "coupled": Coupled(CounterRandom(0))}[rule]
    good = LawRow(Distribution.from_probs([1.0, 0, 0, 0]), 0)
    with pytest.raises(NotADistribution) as caught:
        verify(
            lambda i: BadRow() if i == bad_at else good, make_proposal([0, 0], [None] * 2), made, lambda token: False
        )
    assert caught.value.row == bad_at


def test_an_impossible_residual_is_an_error():
    """Prevents a draw from a residual that rounding alone has made: p and q differ, and none of q exceeds p."""
    q, p = Distribution.from_probs([0.5, 0.5, 0, 0]), Distribution.from_probs([0.5, 0.5, 0, 0])
    p._probs = np.array([0.75, 0.75])  # a law that is none
    proposal = Proposal()
    proposal.append(0, p, "test")
    with pytest.raises(NotADistribution) as caught:
        verify(lambda i: LawRow(q, i), proposal, Residual(ScriptedRandom([0.9, 0.5]), 0), lambda token: False)
    assert caught.value.row == 0


@given(case=sampled_rounds(), seed=st.integers(0, 2**32), num_rounds=st.integers(1, 3))
def test_no_key_is_asked_for_twice(case, seed, num_rounds):
    """Prevents noise from being used twice, in a round or between rounds, drafting included (case A6)."""
    q_rows, _, laws, stop_ids = case
    assume(all(law is not None for law in laws))

    keys = []

    class Logged(CounterRandom):
        def uniform(self, purpose, round_id, node):
            keys.append(UniformKey(purpose, round_id, node))
            return super().uniform(purpose, round_id, node)

    random = Logged(seed)
    for round_id in range(num_rounds):
        rule = Residual(random, round_id)
        proposal = Proposal()
        for node, law in enumerate(laws):
            drawn = rule.draw(LawRow(Distribution.from_probs(law), node), node)
            proposal.append(drawn.token, drawn.law, "test")
        verify(lambda i: LawRow(Distribution.from_probs(q_rows[i]), i), proposal, rule, stop_ids.__contains__)
    assert len(set(keys)) == len(keys)


def test_plain_decoding_has_its_own_purpose():
    """Prevents the baseline's draw from sharing a word with an extra token of the same round number."""
    row = LawRow(Distribution.from_probs([0.25] * 4), 0)
    random = ScriptedRandom([0.6, 0.1, 0.6])
    assert verify(lambda i: row, Proposal(), Residual(random, 3), lambda token: False).token == 2
    verify(lambda i: row, make_proposal([1], [None]), Residual(random, 4), lambda token: False)
    assert random.keys == [
        (Purpose.TARGET_BASELINE, 3, 0),
        (Purpose.ACCEPT_UNIFORM, 4, 0),
        (Purpose.TARGET_EXTRA, 4, 1),
    ]


def test_greedy_draws_are_point_masses_and_use_no_randomness():
    """Prevents an argmax draft from being scored by its soft law, and greedy from depending on a seed (case A2)."""
    assert Greedy().draw(LawRow(Distribution.from_probs([0.2, 0.5, 0.3, 0]), 0), 0) == (1, None)
    assert Greedy() == Greedy()


def test_rounding_fallback_is_counted():
    """Prevents a vanished residual from failing a run, and from passing unseen (case A5 i)."""
    q, p = Distribution.from_probs([0.5, 0.5, 0, 0]), Distribution.from_probs([0.5, 0.5, 0, 0])
    p._probs = np.nextafter(p.probs, 2)  # one ulp above q, so that the largest u rejects
    random = ScriptedRandom([1 - 2.0**-53, 0.7])
    proposal = Proposal()
    proposal.append(0, p, "test")
    verdict = verify(lambda i: LawRow(q, i), proposal, Residual(random, 0), lambda token: False)
    assert (verdict.num_accepted, verdict.token, verdict.num_rounding) == (0, 1, 1)


def test_certainty_is_never_rejected():
    """Prevents a forced token from costing a rejection: with q(y) = 1 even the largest u accepts."""
    row = LawRow(Distribution.from_probs([0, 0, 1.0, 0]), 0)
    assert Residual(ScriptedRandom([1 - 2.0**-53]), 0).judge(row, 0, 2, None).is_accepted
