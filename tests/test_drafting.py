"""Drafters that fail, draw and fail, keep the round, or lie: slower, never different."""

from __future__ import annotations

import logging
import threading

import attrs
import pytest
import torch
from models import engine_on, random_table

from specframe import DrafterExhausted, DrafterUse, Engine, Length, Needs, OverBudget, ProposalError, Strategy
from specframe.plugins import Plugin, Plugins, register_drafter
from specframe.testing import Adversary, Faulty, LogitsDrafter, Oracle, RandomOffers

SAMPLINGS = [{}, {"temperature": 0.9, "seed": 5}]


def expected_ids(sampling, num_tokens=14):
    return engine_on(random_table()).generate([1, 2], max_new_tokens=num_tokens, **sampling).token_ids


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("at_call", [0, 1, 2])
@pytest.mark.parametrize("method", ["open", "propose", "commit", "close"])
def test_a_failing_drafter_changes_nothing_but_is_told(method, at_call, sampling, caplog):
    """A drafter's exception that ends the request, or loses what was proposed, changes the output."""
    expected = expected_ids(sampling)
    drafter = Faulty(method, at_call, inner=Oracle(expected, wrong_at=1))
    engine = engine_on(random_table(), drafter)
    all_events = []
    with caplog.at_level(logging.WARNING, logger="specframe"):
        for _ in range(at_call + 1):
            result = engine.generate([1, 2], max_new_tokens=14, **sampling)
            assert result.token_ids == expected
            all_events += result.events
    (event,) = all_events
    assert event.drafter == "d0"
    assert event.message == f"switched off: {method} raised RuntimeError"
    assert "drafter 'd0' is off for this request" in caplog.text


@pytest.mark.parametrize("method", ["open", "propose", "commit"])
def test_a_drafter_that_is_at_its_end_is_no_failure(method, caplog):
    """A trace in the log for what is expected teaches people to read neither."""
    expected = expected_ids({})
    engine = engine_on(random_table(), Faulty(method, 0, inner=Oracle(expected), error=DrafterExhausted("full")))
    with caplog.at_level(logging.INFO, logger="specframe"):
        result = engine.generate([1, 2], max_new_tokens=14)
    assert result.token_ids == expected
    assert [event.message for event in result.events] == ["off for the rest of the request: DrafterExhausted"]
    assert [(record.levelname, record.exc_info) for record in caplog.records] == [("INFO", None)]


def test_a_failed_drafter_is_off_for_the_request_and_back_for_the_next():
    """A drafter that failed once and is asked again may fail forever; one that never comes back was lost."""
    expected = expected_ids({})
    inner = Oracle(expected, wrong_at=1)
    engine = engine_on(random_table(), Faulty("propose", 1, inner=inner))
    first = engine.generate([1, 2], max_new_tokens=14)
    assert inner.sessions[0].num_rounds == 2
    assert inner.sessions[0].is_closed
    second = engine.generate([1, 2], max_new_tokens=14)
    assert first.token_ids == second.token_ids == expected
    assert second.stats.num_proposed > first.stats.num_proposed
    assert not second.events


def test_what_a_failing_drafter_had_put_in_stays_and_is_verified():
    """Dropping tokens because the drafter failed after them biases the output under residual sampling."""
    expected = expected_ids({})
    engine = engine_on(random_table(), Faulty("propose", 0, inner=Oracle(expected)))
    result = engine.generate([1, 2], max_new_tokens=14)
    assert [(record.num_proposed, record.num_accepted) for record in result.records[:3]] == [(0, 0), (4, 4), (0, 0)]
    assert result.token_ids == expected


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
def test_a_drafter_that_draws_and_then_fails_gives_what_it_would_have_given(verifier):
    """A failure that depends on what was drawn must not choose which draws count."""
    table = random_table(seed=1)
    sampling = {"temperature": 1.0, "seed": 3}

    class FailsOnEven(LogitsDrafter):
        """Draw one token; then stop, or fail, if it is even."""

        def __init__(self, fails):
            super().__init__(table.row, num_tokens=1)
            self.fails = fails

        def _proposer(self, request):
            def propose(round):
                token = round.draw(table.row(round.context[:]))
                if token % 2 == 0 and self.fails:
                    raise RuntimeError("even")

            return propose

    failing = engine_on(random_table(), FailsOnEven(True), verifier=verifier)
    quiet = engine_on(random_table(), FailsOnEven(False), verifier=verifier)
    failed = failing.generate([1, 2], max_new_tokens=20, **sampling)
    index = next(record.round_id for record in failed.records if record.round_id == failed.events[0].round_id)
    good = quiet.generate([1, 2], max_new_tokens=20, **sampling)
    num_common = sum(record.num_emitted for record in failed.records[: index + 1])
    assert failed.records[index].num_proposed == 1
    assert failed.token_ids[:num_common] == good.token_ids[:num_common]
    if verifier == "coupled":
        assert failed.token_ids == good.token_ids


def test_the_others_go_on_when_one_drafter_fails():
    """One broken plugin must not switch off the one that works."""
    expected = expected_ids({})
    for mode in ("extend", "first"):
        good = Oracle(expected)
        engine = engine_on(random_table(), Faulty("propose", 0), good, mode=mode)
        result = engine.generate([1, 2], max_new_tokens=14)
        assert result.token_ids == expected
        assert result.stats.drafters["d1"].num_accepted > 8
        assert [event.drafter for event in result.events] == ["d0"]


def refusals(round):
    """Return what a round says to each way of adding a token."""
    errors = []
    for add in (round.offer, lambda _: round.draw(torch.zeros(12)), lambda _: round.draw_rows(torch.zeros(1, 12))):
        try:
            add(1)
        except ProposalError as error:
            errors.append(str(error))
    return errors


class Keeper(RandomOffers):
    """Keep every round, and use an old one, in ``propose`` or ``commit``."""

    def __init__(self, use_in):
        super().__init__(seed=0)
        self.use_in, self.kept, self.errors = use_in, [], []

    def open(self, request):
        session = super().open(request)
        inner = session.commit

        def commit(commit):
            inner(commit)
            if self.use_in == "commit":
                self.use()

        session.commit = commit
        return session

    def use(self):
        for round in self.kept:
            self.errors += refusals(round)

    def _proposer(self, request):
        inner = super()._proposer(request)

        def propose(round):
            if self.use_in == "propose":
                self.use()
            self.kept.append(round)
            inner(round)

        return propose


@pytest.mark.parametrize("use_in", ["propose", "commit"])
def test_a_round_that_was_kept_takes_nothing_more(use_in):
    """A token added after verification would be emitted unverified, or shift the next round."""
    expected = expected_ids({})
    drafter = Keeper(use_in)
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=14)
    assert result.token_ids == expected
    assert drafter.errors
    assert all("the round is closed" in error for error in drafter.errors)


def test_a_round_takes_nothing_from_another_thread():
    """A token that arrives from a worker at some moment makes the proposal depend on timing."""
    expected = expected_ids({})
    errors = []

    class Threaded(RandomOffers):
        def _proposer(self, request):
            def propose(round):
                thread = threading.Thread(target=lambda: errors.extend(refusals(round)))
                thread.start()
                thread.join()

            return propose

    result = engine_on(random_table(), Threaded(seed=0)).generate([1, 2], max_new_tokens=6)
    assert result.token_ids == expected[:6]
    assert result.stats.num_proposed == 0
    assert len(errors) == 3 * 4
    assert all("belongs to the thread" in error for error in errors)


def test_a_full_round_and_a_stop_token_end_the_proposal():
    """Tokens behind a stop token, or beyond the room, belong to a text that ends before them."""
    answers = []

    class Greedyish(RandomOffers):
        def _proposer(self, request):
            def propose(round):
                answers.append([round.offer(token) for token in (1, 11, 2)])
                assert round.room == 0
                assert round.draw(torch.zeros(12)) is None
                assert round.draw_rows(torch.zeros(2, 12)) == []

            return propose

    target = random_table(stop_ids=[11])
    plain = engine_on(target).generate([1, 2], max_new_tokens=8)
    result = engine_on(target, Greedyish(seed=0)).generate([1, 2], max_new_tokens=8)
    assert result.token_ids == plain.token_ids
    assert not result.events
    assert answers[0] == [True, True, False]
    answers.clear()
    result = engine_on(target, Greedyish(seed=0), length=1).generate([1, 2], max_new_tokens=8)
    assert result.token_ids == plain.token_ids
    assert answers[0] == [True, False, False]


def test_the_context_is_read_only():
    """A drafter that could write into the context would rewrite the text."""
    expected = expected_ids({})

    class Writer(RandomOffers):
        def _proposer(self, request):
            def propose(round):
                context = round.context
                with pytest.raises(TypeError):
                    context[0] = 5
                with pytest.raises(IndexError):
                    context[len(context)]
                assert isinstance(context[:], tuple)
                assert context[-1] == context[len(context) - 1] == list(context)[-1]
                assert context[::-1] == tuple(reversed(list(context)))

            return propose

    result = engine_on(random_table(), Writer(seed=0)).generate([1, 2], max_new_tokens=6)
    assert result.token_ids == expected[:6]
    assert not result.events


def test_a_row_that_a_drafter_writes_into_later_is_not_the_law():
    """A drafter that reuses one buffer for its rows would change the law of a token that was already drawn."""
    table = random_table(seed=1)
    sampling = {"temperature": 1.0, "seed": 3}

    class Reusing(LogitsDrafter):
        def _proposer(self, request):
            buffer = torch.zeros(12, dtype=torch.float64)

            def propose(round):
                for _ in range(3):
                    buffer.copy_(table.row(round.context[:]))
                    if round.draw(buffer) is None:
                        return
                    buffer.fill_(0.0)

            return propose

    texts = []
    for drafter in (Reusing(table.row), LogitsDrafter(table.row, num_tokens=3)):
        engine = engine_on(random_table(), drafter, verifier="residual")
        texts.append(engine.generate([1, 2], max_new_tokens=20, **sampling).token_ids)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_session_that_is_no_session_is_switched_off(sampling):
    """A drafter that returns nothing from ``open`` is a mistake of its own, and no reason to end."""
    drafter = Adversary(lambda context, index: 1)
    drafter.open = lambda request: None
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=14, **sampling)
    assert result.token_ids == expected_ids(sampling)
    assert result.events[0].message == "switched off: commit raised AttributeError"


def test_an_event_never_quotes_what_a_drafter_says():
    """An event may be stored or shared, and an exception's text may hold the prompt."""
    engine = engine_on(random_table(), Faulty("propose", 0, error=ValueError("secret prompt")))
    result = engine.generate([1, 2], max_new_tokens=6)
    assert "secret" not in repr(result.events)


class Slow(Oracle):
    """Takes seconds of a clock for every proposal, more from one round on, and for other calls if told so."""

    def __init__(self, continuation, slow_round, seconds=0.03, commit_s=0.0):
        super().__init__(continuation)
        self.now, self.slow_round, self.seconds, self.commit_s = 0.0, slow_round, seconds, commit_s

    def clock(self):
        return self.now

    def open(self, request):
        session = super().open(request)
        propose, commit = session.propose, session.commit

        def slowly(round):
            propose(round)
            self.now += self.seconds if session.num_rounds > self.slow_round else 0.01

        def take(taken):
            commit(taken)
            self.now += self.commit_s

        session.propose, session.commit = slowly, take
        return session


def on_budget(drafter, budget_ms, *others):
    uses = (DrafterUse("slow", budget_ms=budget_ms), *(DrafterUse(f"d{index}") for index in range(len(others))))
    given = {"slow": drafter, **{f"d{index}": other for index, other in enumerate(others)}}
    strategy = Strategy(drafters=uses, length=Length(max_tokens=3))
    return Engine(random_table(), given, strategy=strategy, clock=drafter.clock, debug=True)


def test_a_drafter_over_its_budget_is_off_for_the_request(caplog):
    """A drafter that became slow would slow every round; what it proposed before it was seen is verified all the same."""
    expected = expected_ids({})
    drafter = Slow(expected, slow_round=2)
    engine = on_budget(drafter, 20)
    with caplog.at_level(logging.WARNING, logger="specframe"):
        result = engine.generate([1, 2], max_new_tokens=14)
    assert result.token_ids == expected
    assert [record.num_accepted for record in result.records] == [0, 3, 3, 3, 0]
    assert [event[:3] for event in result.events] == [(3, "slow", "switched off: propose took longer than its budget")]
    assert drafter.sessions[0].is_closed
    assert "a proposal took 30 ms, of the 20 ms that 'budget_ms' allows" in caplog.text
    assert caplog.records[0].exc_info is None
    drafter.slow_round = 99
    assert engine.generate([1, 2], max_new_tokens=14).events == ()


@pytest.mark.parametrize("budget_ms", [None, 30, 30.5])
def test_a_drafter_within_its_budget_stays(budget_ms):
    """The budget itself is within it; without one there is none, however long it takes."""
    expected = expected_ids({})
    seconds = 99.0 if budget_ms is None else 0.03
    result = on_budget(Slow(expected, slow_round=0, seconds=seconds), budget_ms).generate([1, 2], max_new_tokens=14)
    assert (result.token_ids, result.events) == (expected, ())


def test_the_budget_is_of_a_proposal():
    """Commits and opening have to be done by whoever follows the text, and are not what is promised to be fast."""
    expected = expected_ids({})
    result = on_budget(Slow(expected, slow_round=99, commit_s=5.0), 20).generate([1, 2], max_new_tokens=14)
    assert (result.token_ids, result.events) == (expected, ())


def test_the_others_go_on_when_one_drafter_is_late():
    """In the very round in which the late one is switched off, too."""
    expected = expected_ids({})
    result = on_budget(Slow([], slow_round=0), 20, Oracle(expected)).generate([1, 2], max_new_tokens=14)
    assert result.token_ids == expected
    assert result.records[1].num_accepted == 3
    assert [event.drafter for event in result.events] == ["slow"]


def test_a_drafter_that_says_itself_that_it_is_late_is_off_in_the_same_way():
    """A worker's answer that does not come is told by whoever waits for it."""
    engine = engine_on(random_table(), Faulty("propose", 1, inner=Oracle(expected_ids({})), error=OverBudget("late")))
    result = engine.generate([1, 2], max_new_tokens=14)
    assert result.token_ids == expected_ids({})
    assert [event.message for event in result.events] == ["switched off: propose took longer than its budget"]


@attrs.frozen
class NoOptions:
    pass


@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("draws", [False, True])
def test_a_drafter_draws_only_if_it_declared_it(draws, rows):
    """What ``needs`` says decides where a drafter may run, so it must be so."""
    table = random_table()

    class Drawing(LogitsDrafter):
        def _proposer(self, request):
            def propose(round):
                row = table.row(round.context[:])
                if rows:
                    round.draw_rows(row[None])
                else:
                    round.draw(row)

            return propose

    plugin = Plugin("mine", "mine-dist", "1")
    register_drafter(
        plugin, "mine", lambda options, facts: Drawing(table.row), options=NoOptions, needs=Needs(draws=draws), api=1
    )
    engine = Engine(table, strategy=Strategy(drafters=(DrafterUse("mine"),)), plugins=Plugins([plugin]), debug=True)
    result = engine.generate([1, 2], max_new_tokens=14, temperature=0.9, seed=5)
    assert result.token_ids == expected_ids(SAMPLINGS[1])
    assert [event.message for event in result.events] == (
        [] if draws else ["switched off: propose raised ProposalError"]
    )
    assert (result.stats.num_proposed > 0) is draws


def test_undeclared_draws_are_told_before_anything_is_drawn():
    """An author must read what is missing, and where."""
    errors = []

    class Drawing(LogitsDrafter):
        def _proposer(self, request):
            def propose(round):
                for add in (lambda: round.draw(torch.zeros(12)), lambda: round.draw_rows(torch.zeros(1, 12))):
                    with pytest.raises(ProposalError) as caught:
                        add()
                    errors.append(str(caught.value))
                assert round.offer(1)

            return propose

    plugin = Plugin("mine", "mine-dist", "1")
    register_drafter(plugin, "mine", lambda options, facts: Drawing(None), options=NoOptions, needs=Needs(), api=1)
    engine = Engine(random_table(), strategy="mine", plugins=Plugins([plugin]))
    assert engine.generate([1, 2], max_new_tokens=3).events == ()
    assert set(errors) == {"drafter 'mine' draws without declaring it; register it with Needs(draws=True)"}
