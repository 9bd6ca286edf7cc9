"""Ending a generation early: by token, by deadline, by closing; in its round, and while it waits for its turn."""

from __future__ import annotations

import threading

import pytest
from models import PROMPT, engine_on, random_table, tiny_model

from specframe import CancelToken, Engine, EngineBusy, InvalidRequest, TransformersTarget, pure
from specframe.testing import Oracle, RandomOffers, TableTarget, byte_tokenizer

SAMPLINGS = [{}, {"temperature": 0.9, "seed": 5}]


def expected(num_tokens=20, **sampling):
    return engine_on(random_table()).generate([1, 2], max_new_tokens=num_tokens, **sampling).token_ids


class Cancelling(RandomOffers):
    """Cancels at one call of a method, and proposes at random."""

    def __init__(self, token, method, at_call):
        super().__init__(seed=3)
        self.token, self.method, self.num_left = token, method, at_call

    def open(self, request):
        session = super().open(request)
        inner = getattr(session, self.method)

        def cancelling(argument):
            if self.num_left == 0:
                self.token.cancel()
            self.num_left -= 1
            return inner(argument)

        setattr(session, self.method, cancelling)
        return session


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("at_call", [0, 1, 3])
@pytest.mark.parametrize("method", ["propose", "commit"])
def test_a_cancelled_generation_ends_with_its_round(method, at_call, sampling):
    """What was emitted is a prefix of the whole, no round follows, and the engine goes on as if nothing had been."""
    token = CancelToken()
    drafter = Cancelling(token, method, at_call)
    engine = engine_on(random_table(), drafter)
    result = engine.generate([1, 2], max_new_tokens=20, cancel=token, **sampling)
    whole = expected(**sampling)
    assert result.finish_reason == "cancelled"
    assert result.stop_match is None
    assert 0 < len(result.token_ids) < 20
    assert result.token_ids == whole[: len(result.token_ids)]
    session = drafter.sessions[0]
    calls = {"propose": session.num_rounds, "commit": len(session.commits)}
    assert calls[method] == max(at_call + 1, 3 * (method == "commit"))  # a session opens with two commits, in a round
    assert session.is_closed
    assert engine.generate([1, 2], max_new_tokens=20, **sampling).token_ids == whole


def test_a_generation_is_cancelled_in_every_part_of_a_round():
    """A token is cancelled while the target computes a row, and the cache stands for the text that was emitted."""
    for at_row in range(12):
        token, rows = CancelToken(), iter(range(10_000))
        target = random_table()
        inner = target._rows

        def row(ids, token=token, rows=rows, inner=inner, at_row=at_row):
            if next(rows) == at_row:
                token.cancel()
            return inner(ids)

        target._rows = row
        engine = engine_on(target, Oracle(expected(), wrong_at=2))
        result = engine.generate([1, 2], max_new_tokens=20, cancel=token)
        assert result.finish_reason == "cancelled"
        assert result.token_ids == expected()[: len(result.token_ids)]
        assert target.cached_ids == [1, 2, *result.token_ids[:-1]]
        assert target._session.num_provisional == 0


def test_a_cancelled_token_stays_cancelled():
    """A request that comes too late runs nothing, and its empty result says why."""
    token = CancelToken()
    token.cancel()
    token.cancel()
    target = random_table()
    result = engine_on(target).generate([1, 2], cancel=token)
    assert (result.token_ids, result.text, result.finish_reason) == ((), "", "cancelled")
    assert target.num_forwards == 0
    several = engine_on(target).generate([1, 2], n=3, cancel=token)
    assert [each.finish_reason for each in several] == ["cancelled"] * 3


def test_a_text_that_ended_is_not_cancelled():
    """A token that is cancelled in the last round changes nothing of a result that is whole."""
    token = CancelToken()
    engine = engine_on(random_table(), Cancelling(token, "commit", at_call=21))
    assert engine.generate([1, 2], max_new_tokens=20, cancel=token).finish_reason == "length"


def test_another_thread_cancels():
    """A server cancels from the thread that noticed that nobody listens any more; the engine is free at once."""
    token, inside, cancelled = CancelToken(), threading.Event(), threading.Event()

    class Waiting(RandomOffers):
        def _proposer(self, request):
            def propose(round):
                inside.set()
                assert cancelled.wait(5)

            return propose

    engine, results = engine_on(random_table(), Waiting(seed=0)), []
    thread = threading.Thread(
        target=lambda: results.append(engine.generate([1, 2], max_new_tokens=20, cancel=token)), daemon=True
    )
    thread.start()
    assert inside.wait(5)
    token.cancel()
    cancelled.set()
    thread.join(5)
    assert results[0].finish_reason == "cancelled"
    assert results[0].token_ids == expected()[:2]  # the prefill's, and that of the round that was running
    assert engine.generate([1, 2], max_new_tokens=20).token_ids == expected()


class Clock:
    """Each look at it takes a second."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        self.seconds += 1.0
        return self.seconds


def test_a_deadline_ends_a_generation():
    """A caller that has so much time gets what there is then."""
    target = random_table()
    engine = Engine(target, clock=Clock())
    result = engine.generate([1, 2], max_new_tokens=200, deadline_s=100)
    assert result.finish_reason == "deadline"
    assert 0 < len(result.token_ids) < 100
    assert result.token_ids == tuple(target.greedy([1, 2], 200))[: len(result.token_ids)]
    assert engine.generate([1, 2], max_new_tokens=5).finish_reason == "length"


def test_the_deadline_is_the_calls():
    """Several generations share the time of their call; a deadline for each would be n times as long."""
    results = Engine(random_table(), clock=Clock()).generate([1, 2], n=4, max_new_tokens=12, deadline_s=100)
    assert [result.finish_reason for result in results] == ["length", "deadline", "deadline", "deadline"]
    assert results[2].token_ids == ()


def test_no_time_is_no_time():
    """A deadline of zero seconds has passed when the call begins."""
    assert engine_on(random_table()).generate([1, 2], deadline_s=0).token_ids == ()


@pytest.mark.parametrize("how", ["cancel", "deadline"])
def test_a_request_that_waits_for_its_turn_need_not_wait_for_ever(how):
    """Another request may run for minutes; nothing of this one ran, so there is no result, and the error says so."""
    engine = engine_on(random_table())
    holding = engine.stream([1, 2], max_new_tokens=20)
    next(holding)
    token, errors = CancelToken(), []
    arguments = {"cancel": token} if how == "cancel" else {"deadline_s": 0.05}

    def wait():
        try:
            engine.generate([1, 2], **arguments)
        except EngineBusy as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    if how == "cancel":
        token.cancel()
    thread.join(5)
    reason = "cancelled" if how == "cancel" else "deadline"
    assert errors == [f"the target was in use until this call ended ({reason}); nothing of it ran"]
    assert tuple(token for piece in holding for token in piece.token_ids) == expected()[1:]


def test_a_stream_that_waits_for_its_turn_may_be_closed():
    """Closing it is no error of whoever reads it: when its turn comes, there is nothing to do."""
    engine = engine_on(random_table())
    holding = engine.stream([1, 2], max_new_tokens=20)
    next(holding)
    waiting, pieces = engine.stream([1, 2]), []
    thread = threading.Thread(target=lambda: pieces.append(list(waiting)), daemon=True)
    thread.start()
    waiting.close()
    holding.close()
    thread.join(5)
    assert pieces == [[]]


def test_pieces_make_the_text_also_when_cancelled():
    """Text that was held for a stop string that did not come belongs to the result, and to the reader of the stream."""
    tokenizer = byte_tokenizer()
    size = len(tokenizer)
    table = TableTarget(
        lambda ids: [token == ids[-1] + 1 for token in range(size)], vocab_size=size, tokenizer=tokenizer
    )
    for num_pieces in range(1, 7):
        token, pieces = CancelToken(), []
        stream = engine_on(table).stream("A", max_new_tokens=8, stop=["BCDEFGHI"[num_pieces - 1] + "!"], cancel=token)
        for piece in stream:
            pieces.append(piece)
            if len(pieces) == num_pieces:
                token.cancel()
        assert stream.result.finish_reason == "cancelled"
        assert "".join(piece.text for piece in pieces) == stream.result.text == "BCDEFGHI"[:num_pieces]
        assert [len(piece.token_ids) for piece in pieces] == [1] * num_pieces + [0]


def test_a_real_cache_is_left_as_after_the_last_commit():
    """The next request on a transformers target, with the prefix that it keeps, gives what a fresh one gives."""
    model = tiny_model()
    plain = Engine(TransformersTarget(model)).generate(PROMPT, max_new_tokens=12).token_ids
    for at_call in range(4):
        token = CancelToken()
        engine = engine_on(TransformersTarget(model), Cancelling(token, "propose", at_call))
        cut = engine.generate(PROMPT, max_new_tokens=12, cancel=token)
        assert cut.token_ids == plain[: len(cut.token_ids)]
        assert engine.target.cache.num_provisional == 0
        assert engine.generate(PROMPT, max_new_tokens=12).token_ids == plain


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cancel": True}, "'cancel' must be a specframe.CancelToken"),
        ({"cancel": threading.Event()}, "'cancel' must be a specframe.CancelToken"),
        ({"deadline_s": -1}, "'deadline_s' must be a number of seconds >= 0"),
        ({"deadline_s": float("nan")}, "'deadline_s' must be a number of seconds >= 0"),
        ({"deadline_s": "3"}, "'deadline_s' must be a number of seconds >= 0"),
        ({"max_time": 3}, "the time is deadline_s"),
    ],
)
def test_what_ends_early_is_checked(arguments, message):
    """A mistake in an argument must not make a generation run for ever, or end at once."""
    with pytest.raises(InvalidRequest, match=message):
        engine_on(random_table()).generate([1, 2], **arguments)


def test_a_processor_that_cancels_is_no_failure():
    """Between the forward and the commit a cancellation waits for the end of the round."""
    token, calls = CancelToken(), iter(range(100))

    def cancel(ids, scores):
        if next(calls) == 4:
            token.cancel()
        return scores

    result = engine_on(random_table(), Oracle(expected())).generate(
        [1, 2], max_new_tokens=20, cancel=token, processors=[pure(cancel)]
    )
    assert result.finish_reason == "cancelled"
    assert result.token_ids == expected()[: len(result.token_ids)]
