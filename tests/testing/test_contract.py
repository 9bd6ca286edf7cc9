"""The contract checks: each broken drafter is caught by the check that is for it, and a right one by none."""

from __future__ import annotations

import random
from functools import partial

import pytest
from wrong import DiscardsOnFailure, EndPassedOver

from specframe.generation import Generation
from specframe.testing import QUICK, Adversary, LogitsDrafter, RandomOffers, contract, random_table
from specframe.testing.runs import Subject


def subject(make, generation=Generation):
    return Subject("it", lambda target: {"it": make()}, generation=generation)


def lookup():
    """Return a drafter that offers what followed the last id before."""

    def choose(context, index):
        ids = list(context)
        places = [place for place in range(len(ids) - 1) if ids[place] == ids[-1]]
        return ids[places[-1] + 1] if places else None

    return Adversary(choose)


def drawing():
    return LogitsDrafter(random_table(vocab_size=6, order=1, seed=9).row, num_tokens=3)


class Session:
    """A session that does nothing; broken ones refine it."""

    def __init__(self, drafter, request):
        self.drafter, self.request, self.ids = drafter, request, []

    def propose(self, round):
        pass

    def commit(self, commit):
        self.ids += commit.ids

    def close(self):
        pass


def drafter(session):
    """Return a class of drafters whose sessions are of a class."""

    class Drafter:
        def __init__(self):
            self.learned = 0

        def open(self, request):
            return session(self, request)

        def reset(self):
            pass

        def close(self):
            pass

    return Drafter


class OutOfRange(Session):
    def propose(self, round):
        round.offer(self.request.facts.vocab_size)


class NeedsRoom(Session):
    """Counts on more room than one token."""

    def propose(self, round):
        assert round.room > 1
        round.offer(0)


class Learning(Session):
    """Proposes the number of requests so far, which its drafter's reset does not forget."""

    def propose(self, round):
        self.drafter.learned += 1
        round.offer(self.drafter.learned % 6)


class NeverRollsBack(Session):
    """Takes what was proposed for what was accepted."""

    def propose(self, round):
        self.ids += round.context[len(self.ids) :]
        token = (self.ids[-1] + len(self.ids)) % 6
        if round.offer(token):
            self.ids.append(token)

    def commit(self, commit):
        self.ids += commit.ids[commit.num_accepted :]


class Dice(Session):
    def propose(self, round):
        round.offer(random.SystemRandom().randrange(6))


@pytest.mark.parametrize("make", [lookup, drawing, lambda: RandomOffers(3)])
def test_right_drafters_pass(make):
    """What they propose may be anything: only what the contract asks for is asked."""
    for name, check in contract.checks(subject(make), QUICK, is_deterministic=True).items():
        found = check()
        assert found.status in ("passed", "noted"), (name, found)


@pytest.mark.parametrize(
    ("check", "session", "told"),
    [
        (partial(contract.stays_on, plan=QUICK), OutOfRange, "ProposalError: a proposed id must be in"),
        (partial(contract.stays_on, plan=QUICK), Session, "it proposed nothing"),
        (contract.respects_room, NeedsRoom, "with room for 1"),
        (partial(contract.is_reset, is_deterministic=True), Learning, "something of earlier requests is left"),
    ],
    ids=["ids", "nothing", "room", "reset"],
)
def test_broken_drafters_are_caught(check, session, told):
    """Each by name, with what it did."""
    broken = subject(drafter(session))
    found = check(broken)
    assert found.status == "failed"
    assert told in found.told


def test_a_session_that_keeps_what_was_rejected_is_told():
    """It costs speed and no text, so it is noted; a session that follows the text is not."""
    assert contract.is_aligned(subject(drafter(NeverRollsBack))).figures["other_tokens"]
    found = contract.is_aligned(subject(lookup))
    assert found.status == "passed"
    assert found.figures["equal"] == found.figures["rounds"] > 10


def test_randomness_is_reported_and_allowed():
    """A drafter may roll dice; what can then not be compared is skipped, with the reason."""
    assert contract.is_deterministic(subject(lookup))
    assert not contract.is_deterministic(subject(drafter(Dice)))
    checks = contract.checks(subject(drafter(Dice)), QUICK, is_deterministic=False)
    found = checks["contract: determinism"]()
    assert (found.status, found.figures["is_deterministic"]) == ("noted", False)
    assert checks["contract: reset"]().status == "skipped"


def test_failures_are_harmless_and_the_check_can_fail():
    """A failing drafter leaves text and the others alone; a loop that is wrong beside it is seen."""
    found = contract.fails_harmlessly(subject(lookup))
    assert found.status == "passed"
    assert found.figures["num_failures"] == 16  # four calls, twice each, greedy and sampled

    class Lost(DiscardsOnFailure):
        """Loses the pending token where a drafter fails."""

        def _propose(self):
            proposal = super()._propose()
            if self.events and not proposal.ids:
                self.token_ids[-1:] = []
            return proposal

    assert contract.fails_harmlessly(subject(lookup, Lost)).status == "failed"


def test_the_loop_under_judgement_is_the_one_that_runs():
    """A negative control of the wiring: a wrong loop is not judged by the shipped one."""
    assert contract.fails_harmlessly(subject(lookup, EndPassedOver)).status == "passed"  # no stop ids there
