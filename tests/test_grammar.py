"""The grammar's place: masks follow the prefix, row by row, and states are pure."""

import numpy as np
import pytest
import torch

from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Proposal
from specframe.random import CounterRandom
from specframe.sampling import SamplingPolicy
from specframe.testing import LawRow, fractions, integrate, run_verify
from specframe.verify import Residual, verify

V, STOP = 4, 3


class Counted:
    """Allow id 0 any number of times, then id 1, then the stop id: a grammar with an accepting state (a*b)."""

    start = "a"

    def mask(self, state):
        return np.isin(np.arange(V), {"a": [0, 1], "b": [STOP]}[state])

    def advance(self, state, token):
        assert self.mask(state)[token], f"{token} is not allowed in {state}"
        return "b" if token == 1 else "a"

    def is_final(self, state):
        return state == "b"


class UpTo:
    """`1{1,3}` over id 1: after three of them, only the stop id."""

    start = 0

    def mask(self, state):
        allowed = ([1] if state < 3 else []) + ([STOP] if state >= 1 else [])
        return np.isin(np.arange(V), allowed)

    def advance(self, state, token):
        return state + (token == 1)

    def is_final(self, state):
        return state >= 1


def rows(grammar, ids, logits):
    pipeline = Pipeline(SamplingPolicy(temperature=1.0), vocab_size=V, stop_ids=frozenset({STOP}), num_prompt=1)
    prefix = Prefix([9], grammar, "cpu")
    for token in ids:
        prefix.push(token)
    return [pipeline.distribution(logits, prefix, 1 + n) for n in range(len(ids) + 1)]


def test_each_row_is_masked_by_its_own_state():
    """Prevents a mask of the round's start from being used for all of its rows (case H5)."""
    laws = rows(Counted(), [0, 0, 1], torch.zeros(V))
    assert [law.ids.tolist() for law in laws] == [[0, 1], [0, 1], [0, 1], [STOP]]


def test_rows_after_a_forbidden_token_are_never_reached():
    """Prevents the grammar from being advanced by a token that it refused: the row before rejects it (case H5)."""
    pipeline = Pipeline(SamplingPolicy(temperature=1.0), vocab_size=V, stop_ids=frozenset({STOP}), num_prompt=1)
    prefix = Prefix([9], Counted(), "cpu")
    proposal = Proposal()
    for token in (0, 2, 0):
        proposal.append(token, None, "test")
        prefix.push(token)
    verdict = verify(
        lambda i: LawRow(pipeline.distribution(torch.tensor([9.0, 0, 9, 9]), prefix, 1 + i), 1 + i),
        proposal,
        Residual(CounterRandom(0), 0),
        lambda token: token == STOP,
    )
    assert verdict.num_accepted <= 1
    assert verdict.token in (0, 1)


def test_after_the_last_repeat_only_the_stop_id_is_left():
    """Prevents a frozen state from letting over-long text pass (case H4)."""
    laws = rows(UpTo(), [1, 1, 1], torch.zeros(V))
    assert [law.ids.tolist() for law in laws] == [[1], [1, STOP], [1, STOP], [STOP]]


@pytest.mark.parametrize("proposed", [[], [0], [1], [2], [3]])
def test_masked_speculation_has_the_masked_targets_law(proposed):
    """Prevents exactness from being relative to the unmasked target: q_G, whatever is proposed, by exact integration."""
    logits = torch.tensor([float(w) for w in (2, 1, 4, 3)]).log()
    laws = rows(Counted(), [], logits)

    def run(draws):
        proposal = Proposal()
        for token in proposed:
            proposal.append(token, None, "test")

        def row_at(index):
            draws.note(index)
            return LawRow(rows(Counted(), proposal.ids[:index], logits)[-1], index)

        return run_verify(Residual(draws, 0), row_at, proposal, frozenset({STOP})).ids[0]

    law = integrate(run)
    assert laws[0].dense() == pytest.approx([float(x) for x in fractions(2, 1, 0, 0)])
    assert [float(law.get(x, 0)) for x in range(V)] == pytest.approx(laws[0].dense(), abs=1e-12)
