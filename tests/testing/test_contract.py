"""The contract checks: each broken drafter is caught by the check that is for it, and a right one by none."""

from __future__ import annotations

import itertools
import random
from functools import partial

import pytest
import torch
from wrong import DiscardsOnFailure

from specframe import DrafterExhausted, GrammarError
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


class Gossip(Session):
    """Proposes what followed the last id in any request; its drafter's reset forgets that."""

    def __init__(self, drafter, request):
        super().__init__(drafter, request)
        if isinstance(drafter.learned, int):
            drafter.learned = torch.full((6,), -1)

    def propose(self, round):
        token = int(self.drafter.learned[round.context[-1]])
        if token >= 0:
            round.offer(token)

    def commit(self, commit):
        super().commit(commit)
        for before, after in itertools.pairwise(self.ids):
            self.drafter.learned[before] = after


class Spoilt(Session):
    """Leaves its drafter broken if a round that it proposed in was never committed."""

    def __init__(self, drafter, request):
        super().__init__(drafter, request)
        if drafter.learned:
            raise KeyError("a round of another request")

    def propose(self, round):
        self.drafter.learned = 1
        round.offer(0)

    def commit(self, commit):
        self.drafter.learned = 0


class Sulks(Session):
    """Stays silent for good once a round that it proposed in was not committed."""

    def __init__(self, drafter, request):
        super().__init__(drafter, request)
        self.is_off = bool(drafter.learned)

    def propose(self, round):
        if not self.is_off:
            self.drafter.learned = 1
            round.offer(0)

    def commit(self, commit):
        if not self.is_off:
            self.drafter.learned = 0


class EndsInRoundThree(Session):
    error: Exception
    num_rounds = 0

    def propose(self, round):
        self.num_rounds += 1
        if self.num_rounds == 3:
            raise self.error
        round.offer(0)


class FailsInRoundThree(EndsInRoundThree):
    error = IndexError("no third")


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
        (partial(contract.is_unaware, is_deterministic=True), Gossip, "from what it kept of earlier requests"),
        (partial(contract.stays_on, plan=QUICK), FailsInRoundThree, "IndexError: no third (test_contract.py, line "),
        (
            contract.fails_harmlessly,
            Spoilt,
            "where propose failed at call 0 on purpose it failed by itself as well: it: open",
        ),
        (contract.fails_harmlessly, Sulks, "it proposes nothing more after a request where propose failed at call 0"),
    ],
    ids=["ids", "nothing", "room", "reset", "requests", "third round", "after a failure", "silent after a failure"],
)
def test_broken_drafters_are_caught(check, session, told):
    """Each by name, with what it did."""
    broken = subject(drafter(session))
    found = check(broken)
    assert found.status == "failed"
    assert told in found.told


@pytest.mark.parametrize("error", [DrafterExhausted("no more"), GrammarError("a dead end")], ids=["end", "grammar"])
def test_what_is_no_fault_of_the_drafters_is_none(error):
    """It may say that it is at its end, and a grammar's failure is the target's, where the target comes to it."""
    kind = type("Ends", (EndsInRoundThree,), {"error": error})
    for name, check in contract.checks(subject(drafter(kind)), QUICK, is_deterministic=True).items():
        assert check().status in ("passed", "noted"), name


def test_what_is_kept_between_requests_is_seen_where_reset_forgets_it():
    """Prevents one check from standing for the other: users' requests follow one another without a reset."""

    class Forgetful(drafter(Gossip)):
        def reset(self):
            self.learned = 0

    checks = contract.checks(subject(Forgetful), QUICK, is_deterministic=True)
    found = {name: check().status for name, check in checks.items()}
    assert found.pop("contract: determinism") == "noted"
    assert found.pop("contract: requests") == "failed"
    assert set(found.values()) <= {"passed", "noted"}, found


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
    assert checks["contract: reset"]().status == checks["contract: requests"]().status == "skipped"


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
