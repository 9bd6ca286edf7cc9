"""The round that drafters are handed: what it takes, what it refuses, and when it is closed."""

import threading

import numpy as np
import pytest
import torch

from specframe.distribution import Distribution
from specframe.errors import ProposalError
from specframe.proposal import DraftRequest, Drawn, Needs, Proposal, Round, TargetFacts, TokenView, lend
from specframe.testing import Adversary, Faulty, LogitsDrafter, Oracle, RandomOffers

V = 8


class Context:
    """The core's side, as little as it takes: draws the argmax and logs what it was asked."""

    def __init__(self, ids, forbidden=()):
        self.ids, self.forbidden, self.draws = list(ids), set(forbidden), []

    def is_exhausted(self):
        return False

    def is_allowed(self, token):
        return token not in self.forbidden

    def draw(self, logits, ids, node):
        if torch.isnan(logits).any():
            raise ProposalError("the row has a NaN")
        self.draws.append((node, tuple(self.ids), None if ids is None else tuple(ids)))
        column = int(logits.argmax())
        law = Distribution.from_probs(logits.softmax(-1).numpy())
        return Drawn(column if ids is None else int(ids[column]), law)

    def push(self, token):
        self.ids.append(token)


def make(ids=(1, 2), room=4, stop_ids=(), forbidden=()):
    context, proposal = Context(ids, forbidden), Proposal()
    made = Round(context, proposal, index=3, room=room, vocab_size=V, stop_ids=frozenset(stop_ids))
    return made, proposal, context


def lend_one(propose, **options):
    made, proposal, context = make(**options)
    lend(made, "mine", propose)
    return proposal, context


def row(token):
    return torch.nn.functional.one_hot(torch.tensor(token), V).double()


def test_offers_are_point_masses_in_order():
    """Prevents a token from losing its law, its parent or its drafter."""

    def propose(round):
        assert round.index == 3
        assert round.offer(5)
        assert round.offer(np.int64(6))
        assert round.offer(torch.tensor(7))
        assert round.draw(row(4)) == 4

    proposal, _ = lend_one(propose)
    assert proposal.ids == [5, 6, 7, 4]
    assert all(type(token) is int for token in proposal.ids)
    assert proposal.parents == [-1, 0, 1, 2]
    assert proposal.drafters == ["mine"] * 4
    assert proposal.laws[:3] == [None] * 3
    assert isinstance(proposal.laws[3], Distribution)


@pytest.mark.parametrize("token", [-1, V, 10**12, -(10**12)])
def test_ids_outside_the_vocabulary_raise_in_the_drafter(token):
    """Prevents an id that the target lacks from reaching its forward, or from being dropped silently."""

    def propose(round):
        with pytest.raises(ProposalError, match=rf"in \[0, {V}\).*got {token}"):
            round.offer(token)

    assert lend_one(propose)[0].ids == []


@pytest.mark.parametrize(
    "token", [1.0, "1", None, True, False, [1], np.float32(1), torch.tensor(1.0), torch.tensor([1, 2])]
)
def test_tokens_that_are_no_ids_are_refused(token):
    """Prevents a bool, float or string from being taken for an id."""

    def propose(round):
        with pytest.raises(ProposalError, match="integer id"):
            round.offer(token)

    assert lend_one(propose)[0].ids == []


def test_room_is_never_exceeded():
    """Prevents a drafter from pushing the extra token out of the budget (case C7)."""

    def propose(round):
        for left in (2, 1):
            assert round.room == left
            assert round.offer(left)
        assert round.room == 0
        assert not round.offer(3)
        assert round.draw(row(3)) is None
        assert round.draw_rows(torch.stack([row(3)])) == []

    proposal, context = lend_one(propose, room=2)
    assert proposal.ids == [2, 1]
    assert context.draws == []  # nothing is drawn for what has no room
    assert lend_one(lambda round: round.offer(1), room=0)[0].ids == []


def test_an_id_is_checked_even_when_the_round_is_full():
    """Prevents a drafter's bug from showing only in rounds that happen to have room."""

    def propose(round):
        with pytest.raises(ProposalError):
            round.offer(V)

    lend_one(propose, room=0)


def test_a_stop_token_ends_the_round():
    """Prevents proposals after a stop token, which are never used."""

    def propose(round):
        assert round.offer(5)
        assert round.offer(2)
        assert round.room == 0
        assert not round.offer(1)
        assert round.draw(row(1)) is None

    assert lend_one(propose, stop_ids=[2])[0].ids == [5, 2]
    assert lend_one(lambda round: round.draw_rows(torch.stack([row(5), row(2), row(1)])), stop_ids=[2])[0].ids == [5, 2]


def test_the_next_drafter_cannot_go_on_after_a_stop_token():
    """Prevents the end of a round from being forgotten between drafters."""
    made, proposal, _ = make(stop_ids=[2])
    lend(made, "first", lambda round: round.offer(2))
    lend(made, "second", lambda round: round.offer(3))
    assert proposal.ids == [2]


def test_a_drafter_may_be_allowed_less_than_the_room():
    """Prevents a limit of one drafter from binding the next one, or from being more than the room."""
    made, proposal, _ = make(room=4)
    rooms = []

    def propose(round):
        rooms.append(round.room)
        while round.offer(5):
            pass

    lend(made, "first", propose, 1)
    lend(made, "second", propose, 2)
    lend(made, "third", propose, 9)
    assert rooms == [1, 2, 1]
    assert proposal.drafters == ["first", "second", "second", "third"]
    assert made.room == 0


def test_forbidden_offers_add_nothing():
    """Prevents a token that the grammar forbids from costing a rejection; a later offer may still fit."""

    def propose(round):
        assert not round.offer(3)
        assert round.offer(4)

    assert lend_one(propose, forbidden=[3])[0].ids == [4]


def test_draws_see_what_was_proposed_before():
    """Prevents a row from being processed in a stale context, and two draws from sharing a node."""

    def propose(round):
        round.offer(5)
        round.draw(row(6))
        round.draw(row(0), ids=[7, 6, 5, 4, 3, 2, 1, 0])
        assert round.context[:] == (1, 2, 5, 6, 7)

    _, context = lend_one(propose)
    assert context.draws == [(1, (1, 2, 5), None), (2, (1, 2, 5, 6), (7, 6, 5, 4, 3, 2, 1, 0))]


def test_draw_rows_is_draw_row_by_row():
    """Prevents parallel heads from being drawn in another order, or beyond the room."""
    rows = torch.stack([row(token) for token in (3, 1, 4, 1, 5)])
    proposal, context = lend_one(lambda round: round.draw_rows(rows), room=3)
    assert proposal.ids == [3, 1, 4]
    assert [node for node, _, _ in context.draws] == [0, 1, 2]
    assert [ids for _, ids, _ in context.draws] == [(1, 2), (1, 2, 3), (1, 2, 3, 1)]


@pytest.mark.parametrize("shape", [(V,), (1, 1, V)])
def test_draw_rows_wants_rows(shape):
    """Prevents a single row from being read as rows of one column."""

    def propose(round):
        with pytest.raises(ProposalError, match="draw_rows takes"):
            round.draw_rows(torch.zeros(shape))

    lend_one(propose)


def test_a_bad_row_adds_nothing_and_keeps_what_stands():
    """Prevents tokens that were drawn before a failure from being taken back, which would bias the output."""

    def propose(round):
        round.draw(row(3))
        round.draw(torch.full((V,), float("nan")))

    made, proposal, _ = make()
    with pytest.raises(ProposalError):
        lend(made, "mine", propose)
    assert proposal.ids == [3]


def test_a_closed_round_takes_nothing():
    """Prevents a late callback from adding to a round that is already verified (case M1)."""
    made, proposal, _ = make()
    kept = []
    lend(made, "mine", kept.append)
    for call in (lambda: kept[0].offer(1), lambda: kept[0].draw(row(1)), lambda: kept[0].draw_rows(row(1)[None])):
        with pytest.raises(ProposalError, match="closed"):
            call()
    assert proposal.ids == []


def test_a_round_is_closed_after_a_failure_too():
    """Prevents a drafter that failed from adding more to the round."""
    made, proposal, _ = make()
    with pytest.raises(ZeroDivisionError):
        lend(made, "mine", lambda round: 1 / 0)
    with pytest.raises(ProposalError, match="closed"):
        made.offer(1)
    lend(made, "other", lambda round: round.offer(1))
    assert proposal.drafters == ["other"]


def test_another_thread_is_refused():
    """Prevents a race between a drafter's thread and the verification."""
    caught = []

    def propose(round):
        def work():
            try:
                round.offer(1)
            except ProposalError as error:
                caught.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    proposal, _ = lend_one(propose)
    assert proposal.ids == []
    assert "thread" in caught[0]


def test_nothing_takes_a_token_back():
    """Prevents an interface by which a drawn token could be dropped for its value."""
    public = {name for name in dir(Round) if not name.startswith("_")}
    assert public == {"context", "draw", "draw_rows", "index", "offer", "room"}
    assert {name for name in dir(Proposal) if not name.startswith("_")} == {
        "append",
        "drafters",
        "ids",
        "laws",
        "parents",
    }


def test_token_view_is_fixed_and_read_only():
    """Prevents a view from growing under its reader, or from letting a drafter write the core's list."""
    ids = [1, 2, 3]
    view = TokenView(ids, 3)
    ids.append(4)
    assert list(view) == [1, 2, 3]
    assert len(view) == 3
    assert (view[0], view[-1], view[2]) == (1, 3, 3)
    assert view[:] == (1, 2, 3)
    assert view[-2:] == (2, 3)
    assert view[::-1] == (3, 2, 1)
    assert view[5:] == ()
    assert 4 not in view
    assert view.index(2) == 1
    assert view.count(3) == 1
    for index in (3, -4):
        with pytest.raises(IndexError, match="outside a context of 3"):
            view[index]
    with pytest.raises(TypeError):
        view[0] = 9
    assert not hasattr(view, "append")


def test_needs_are_validated():
    """Prevents a misspelt need from passing as none."""
    assert Needs() == Needs(tokenizer="none", draws=False)
    with pytest.raises(ValueError, match="tokenizer"):
        Needs(tokenizer="some")


def request(prompt=(1, 2)):
    from specframe.sampling import SamplingPolicy

    facts = TargetFacts(vocab_size=V, stop_ids=frozenset(), context_limit=None)
    return DraftRequest(tuple(prompt), facts, SamplingPolicy(), frozenset())


def proposed(drafter, ids=(1, 2), room=4):
    proposal, _ = lend_one(drafter.open(request()).propose, ids=ids, room=room)
    return proposal


def test_testing_drafters():
    """Prevents the test drafters from not doing what the tests above the core rely on."""
    assert proposed(Oracle([3, 4, 5])).ids == [3, 4, 5]
    assert proposed(Oracle([3, 4, 5]), ids=(1, 2, 3)).ids == [4, 5]
    assert proposed(Oracle([3, 7, 5], wrong_at=1)).ids == [3, 0, 5]
    assert proposed(Adversary(lambda context, index: len(context)), room=3).ids == [2, 3, 4]
    assert proposed(RandomOffers(1)).ids == proposed(RandomOffers(1)).ids
    drawn = proposed(LogitsDrafter(lambda ids: row(len(ids)), num_tokens=2))
    assert drawn.ids == [2, 3]
    assert None not in drawn.laws
    assert proposed(LogitsDrafter(lambda ids: None if len(ids) > 2 else row(5))).ids == [5]


def test_faulty_drafters_fail_where_they_are_told():
    """Prevents failure tests from passing because nothing failed."""
    drafter = Faulty("propose", at_call=1, inner=Oracle([3, 4]))
    session = drafter.open(request())
    made, proposal, _ = make()
    lend(made, "mine", session.propose)
    made, proposal, _ = make(room=1)
    with pytest.raises(RuntimeError, match="scripted failure of propose"):
        lend(made, "mine", session.propose)
    assert proposal.ids == [3]  # added before it failed
    for method, call in (
        ("open", lambda d: d.open(request())),
        ("commit", lambda d: d.open(request()).commit(None)),
        ("close", lambda d: d.open(request()).close()),
        ("reset", lambda d: d.reset()),
        ("close", lambda d: d.close()),
    ):
        with pytest.raises(KeyError):
            call(Faulty(method, error=KeyError("mine")))
