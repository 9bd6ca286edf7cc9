"""A drafter that draws and then fails never biases residual sampling: every point of failure, by exact enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch
from wrong import DiscardsOnFailure

from specframe import DrafterExhausted, GrammarError
from specframe.generation import Generation
from specframe.strategy import Length, Strategy
from specframe.testing import RecordedSession, TableTarget, output_law, plain_law
from specframe.testing.exhaustive import deviation
from specframe.testing.runs import quiet, request_of

EXACT = 1e-12
ROOM, BUDGET = 2, 4
TARGET_ROWS = {(0,): [0.75, 0.25], (1,): [0.375, 0.625]}
DRAFT_ROWS = {0: [0.25, 0.75], 1: [0.875, 0.125]}
# Where in a round: what was drawn so far. Failing there alone lets what was drawn decide whether it fails.
DRAWN = [ids for length in range(ROOM + 1) for ids in itertools.product((0, 1), repeat=length)]


def raise_error(round):
    raise RuntimeError


def raise_panic(round):
    raise BaseException


def end(round):
    raise DrafterExhausted


def raise_grammar_error(round):
    raise GrammarError("not the target's")


FAILURES = {
    "an error": raise_error,
    "a panic": raise_panic,
    "its end": end,
    "the grammar's": raise_grammar_error,
    "an id outside the vocabulary": lambda round: round.offer(2),
    "a row with a NaN": lambda round: round.draw(torch.full((2,), torch.nan)),
    "a masked row": lambda round: round.draw(torch.full((2,), -torch.inf)),
}


class FailsAt:
    """Draw while there is room, and fail in one round once just these tokens were drawn in it."""

    def __init__(self, round_id, drawn, fail):
        self.round_id, self.drawn, self.fail = round_id, drawn, fail
        self.num_failures = 0

    def open(self, request):
        return RecordedSession(request, self.propose)

    def propose(self, round):
        start = len(round.context)
        while True:
            if round.index == self.round_id and round.context[start:] == self.drawn:
                self.num_failures += 1
                self.fail(round)
            if round.room <= 0:
                return
            round.draw(torch.tensor(DRAFT_ROWS[round.context[-1]]).log())

    def reset(self): ...
    def close(self): ...


def law_beside_plain(drafter, generation=Generation, **arguments):
    """Return how far the exact law of the output is from plain decoding's."""
    target = TableTarget.from_probs(TARGET_ROWS, vocab_size=2)
    request = request_of(target, (0,), {"max_new_tokens": BUDGET, "temperature": 1.0, "seed": 0, **arguments})
    strategy = Strategy(verifier="residual", length=Length(max_tokens=ROOM))
    with quiet():
        law = output_law(target, {"d": drafter}, strategy, request, generation=generation)
    return deviation(law, plain_law(target, request))


@pytest.mark.parametrize("drawn", DRAWN, ids=str)
@pytest.mark.parametrize("round_id", [1, 2])
def test_a_failure_at_any_point_leaves_the_law_alone(round_id, drawn):
    """Dropping what was drawn because of a failure that it decided about would bias the output."""
    drafter = FailsAt(round_id, drawn, raise_error)
    assert law_beside_plain(drafter) < EXACT
    assert drafter.num_failures or (round_id == 2 and len(drawn) == ROOM)  # where there is no room for so many


@pytest.mark.parametrize("fail", FAILURES.values(), ids=FAILURES)
def test_a_failure_of_any_kind_leaves_the_law_alone(fail, request):
    """However a drafter fails, and whatever was drawn before, what is in the round stays."""
    for drawn in DRAWN if request.config.getoption("--full") else [(0,), (1, 0)]:
        drafter = FailsAt(1, drawn, fail)
        assert law_beside_plain(drafter) < EXACT, drawn
        assert drafter.num_failures


@pytest.mark.parametrize("method", ["open", "commit", "close"])
def test_a_failure_outside_of_propose_leaves_the_law_alone(method):
    """The same of failures that come from elsewhere, and depend on the text that was emitted."""

    class Failing(FailsAt):
        def open(self, request):
            session = super().open(request)
            if method == "open":
                raise RuntimeError
            inner = getattr(session, method)

            def fails(*commit):
                inner(*commit)
                if method == "close" or (commit[0].start_pos > 1 and commit[0].ids[-1] == 0):
                    self.num_failures += 1
                    raise RuntimeError

            setattr(session, method, fails)
            return session

    drafter = Failing(0, (), raise_error)
    assert law_beside_plain(drafter) < EXACT
    assert drafter.num_failures or method == "open"


def test_discarding_what_was_drawn_is_seen():
    """A negative control: a round loop that throws the drawn tokens away when the drafter fails is biased."""
    seen = [law_beside_plain(FailsAt(1, drawn, raise_error), DiscardsOnFailure) > 1e-3 for drawn in DRAWN if drawn]
    assert all(seen)
