"""Streams: who may use the target, and what is left of a generation that ended early."""

from __future__ import annotations

import copy
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import attrs
import pytest
import torch
from models import engine_on, random_table, tiny_model
from transformers import LogitsProcessor

from specframe import (
    Engine,
    GenerationError,
    GrammarError,
    InvalidReceipt,
    InvalidRequest,
    StreamNotFinished,
    TargetError,
    TransformersTarget,
    pure,
)
from specframe.stream import Hold
from specframe.testing import Fault, Oracle, RandomOffers, RecordedSession, TableTarget, failing


def test_a_closed_stream_keeps_what_was_emitted():
    """Closing a stream early must not lose the tokens, nor call them a finished text."""
    engine = engine_on(random_table())
    full = engine.generate([1, 2], max_new_tokens=8)
    stream = engine.stream([1, 2], max_new_tokens=8)
    emitted = [*next(stream).token_ids, *next(stream).token_ids]
    stream.close()
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.token_ids == tuple(emitted) == full.token_ids[: len(emitted)]
    assert next(stream, None) is None
    assert engine.generate([1, 2], max_new_tokens=8).token_ids == full.token_ids


def test_a_stream_that_never_began_has_no_result():
    """A stream that was closed before its first piece ran nothing, and says so."""
    stream = engine_on(random_table()).stream([1, 2])
    stream.close()
    with pytest.raises(StreamNotFinished, match="no result yet"):
        _ = stream.result


def test_a_stream_may_be_closed_from_another_thread():
    """A server closes a stream from another thread than the one that reads it; the round that runs is the last."""
    inside, closed = threading.Event(), threading.Event()
    table = random_table()

    class Waiting(RandomOffers):
        def _proposer(self, request):
            inner = super()._proposer(request)

            def propose(round):
                inside.set()
                closed.wait(5)
                inner(round)

            return propose

    engine = engine_on(table, Waiting(seed=1))
    stream = engine.stream([1, 2], max_new_tokens=40)
    thread = threading.Thread(target=lambda: list(stream))
    thread.start()
    assert inside.wait(5)
    stream.close()
    closed.set()
    thread.join(5)
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.token_ids == tuple(table.greedy([1, 2], 40))[: len(stream.result.token_ids)]


def test_a_stream_may_move_between_threads():
    """A thread that gave a stream away waits for it like any other, instead of being told that it holds it."""
    engine = engine_on(random_table())
    stream = engine.stream([1, 2], max_new_tokens=3)
    next(stream)
    moved = threading.Event()

    def read_on():
        next(stream)
        moved.set()
        list(stream)

    thread = threading.Thread(target=read_on)
    thread.start()
    assert moved.wait(5)
    assert len(engine.generate([1, 2], max_new_tokens=3).token_ids) == 3  # waits for the stream's end
    thread.join(5)


def test_a_target_that_is_given_back_between_two_looks_is_free():
    """Another thread may end its generation at any line of one that finds out whose turn it is."""

    class Ending(Hold):
        """A hold whose owner is another thread when it is first looked at, and nobody from then on."""

        looks = 0

        @property
        def _owner(self):
            self.looks += 1
            if self.looks > 1:
                self._lock.release() if self._lock.locked() else None
                return None
            return os.getpid(), -1

        @_owner.setter
        def _owner(self, owner):
            pass

    hold = Ending()
    hold._lock.acquire()
    threading.Timer(0.05, lambda: hold._owner).start()
    with hold.taken():
        pass


def test_engines_on_one_target_take_turns():
    """Two engines on one target would write into one cache."""
    table = random_table()
    engines = [engine_on(table), engine_on(table, RandomOffers(seed=1))]
    expected = tuple(table.greedy([1, 2], 20))
    results = []
    threads = [
        threading.Thread(target=lambda engine=engine: results.append(engine.generate([1, 2], max_new_tokens=20)))
        for engine in engines * 4
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert [result.token_ids for result in results] == [expected] * 8


class FailsAfter(LogitsProcessor):
    def __init__(self, num_calls):
        self.num_left = num_calls

    def __call__(self, input_ids, scores):
        self.num_left -= 1
        if self.num_left < 0:
            raise ZeroDivisionError("of its own")
        return scores


@pytest.mark.parametrize("kind", ["processor", "grammar", "criterion"])
def test_whatever_fails_late_keeps_what_was_emitted(kind):
    """A failure of the caller's own parts after the first token must carry the tokens that were emitted."""

    class Grammar:
        start = 0

        def mask(self, state):
            if state == 4:
                raise ZeroDivisionError("of its own")
            return torch.ones(12, dtype=torch.bool).numpy()

        def advance(self, state, token):
            return state + 1

        def is_final(self, state):
            return False

    calls = iter(range(4))
    arguments = {
        "processor": {"processors": [pure(FailsAfter(4))]},
        "grammar": {"grammar": Grammar()},
        "criterion": {"criterion": lambda ids: next(calls) < 0},
    }[kind]
    table = random_table()
    engine = engine_on(table)
    with pytest.raises(GenerationError, match=kind) as caught:
        engine.generate([1, 2], max_new_tokens=10, **arguments)
    assert caught.value.token_ids == tuple(table.greedy([1, 2], 4))
    assert engine.generate([1, 2], max_new_tokens=4).token_ids == caught.value.token_ids


@pytest.mark.parametrize("error", [GrammarError("too complex"), ZeroDivisionError(), BaseException("a panic")])
@pytest.mark.parametrize("place", ["mask", "advance"])
def test_a_grammar_that_fails_behind_a_drafted_token_ends_the_draft(place, error):
    """Prevents a draft from ending a generation: the target never comes to where the grammar fails."""
    table = random_table()
    expected = table.greedy([1, 2], 8)
    wrong = next(token for token in range(12) if token not in expected)

    class Fragile:
        start = -1

        def mask(self, state):
            if place == "mask" and state == wrong:
                raise error
            return torch.ones(12, dtype=torch.bool).numpy()

        def advance(self, state, token):
            if place == "advance" and token == wrong:
                raise error
            return token

        def is_final(self, state):
            return False

    class Offers:
        def open(self, request):
            return RecordedSession(request, lambda round: round.offer(wrong))

        def reset(self): ...
        def close(self): ...

    result = engine_on(table, Offers()).generate([1, 2], max_new_tokens=8, grammar=Fragile())
    assert result.token_ids == tuple(expected)
    assert result.stats.num_proposed > 3
    assert not result.events


def test_a_grammars_failure_is_not_the_drafters():
    """A drafter that offers while the grammar breaks must not be blamed and switched off in its place."""

    class Grammar:
        start = 0

        def mask(self, state):
            if state == 3:
                raise ZeroDivisionError
            return torch.ones(12, dtype=torch.bool).numpy()

        def advance(self, state, token):
            return state + 1

        def is_final(self, state):
            return False

    table = random_table()
    with pytest.raises(GenerationError) as caught:
        engine_on(table, Oracle(table.greedy([1, 2], 10))).generate([1, 2], max_new_tokens=10, grammar=Grammar())
    assert isinstance(caught.value.__cause__, GrammarError)


@pytest.mark.parametrize("drafters", [(), (RandomOffers(seed=3),)])
def test_a_complete_grammar_ends_without_a_stop_id(drafters):
    """A model without a stop id cannot say that a complete text ends; the text ends all the same, not with an error."""

    class Three:
        start = 0

        def mask(self, state):
            return torch.full((12,), state < 3).numpy()

        def advance(self, state, token):
            return state + 1

        def is_final(self, state):
            return state == 3

    table = random_table()
    result = engine_on(table, *drafters).generate([1, 2], max_new_tokens=10, grammar=Three())
    assert result.token_ids == tuple(table.greedy([1, 2], 3))
    assert result.finish_reason == "stop"


def test_several_generations_keep_the_finished_ones():
    """A failure in the third generation must not throw the first two away."""
    table = random_table()
    engine = engine_on(table)
    with pytest.raises(GenerationError, match="generation 3 of 3 failed") as caught:
        engine.generate([1, 2], n=3, max_new_tokens=4, processors=[pure(FailsAfter(10))])
    assert [result.token_ids for result in caught.value.results] == [tuple(table.greedy([1, 2], 4))] * 2


def test_text_held_for_a_stop_string_is_not_lost():
    """Text that waits for the rest of a stop string belongs to what was emitted when the generation fails."""
    from specframe.testing import byte_tokenizer

    tokenizer = byte_tokenizer()
    ids = tokenizer("xa", add_special_tokens=False)["input_ids"]
    rows = iter([*ids, None])

    def row(context):
        token = next(rows)
        if token is None:
            raise RuntimeError("device lost")
        return [5.0 if i == token else 0.0 for i in range(len(tokenizer))]

    target = TableTarget(row, vocab_size=len(tokenizer), tokenizer=tokenizer)
    with pytest.raises(GenerationError) as caught:
        Engine(target).generate([ids[0]], max_new_tokens=5, stop=["ab"])
    assert caught.value.text == "xa"


def test_a_stateful_processor_that_can_be_restored_keeps_speculation():
    """Draft draws call it once more than plain decoding does; its state must be that of the emitted tokens (case E3)."""

    class Alternating(LogitsProcessor):
        def __init__(self):
            self.seen = {"calls": [0]}

        def __call__(self, input_ids, scores):
            self.seen["calls"][0] += 1
            return scores.roll(self.seen["calls"][0] % 2, -1)

        def snapshot(self):
            return list(self.seen["calls"])

        def restore(self, state):
            self.seen["calls"] = list(state)

    from specframe.testing import LogitsDrafter

    table = random_table()
    plain, drafted = Alternating(), Alternating()
    expected = engine_on(table).generate([1, 2], max_new_tokens=20, processors=[plain])
    drafter = LogitsDrafter(lambda ids: table.row(ids))
    result = engine_on(table, drafter).generate([1, 2], max_new_tokens=20, processors=[drafted])
    assert result.token_ids == expected.token_ids
    assert result.stats.num_proposed > 0
    assert drafted.seen == plain.seen


def test_a_closed_engine_takes_no_requests():
    """An engine that is closed and goes on would use drafters that have released what they hold."""
    with engine_on(random_table()) as engine:
        engine.generate([1, 2], max_new_tokens=2)
    with pytest.raises(InvalidRequest, match="must be open"):
        engine.generate([1, 2], max_new_tokens=2)


def test_the_budget_does_not_size_the_buffers():
    """A large budget of which little is used must not allocate memory for all of it."""
    target = TransformersTarget(tiny_model("llama"))
    engine_on(target).generate([1, 2, 3], max_new_tokens=10**12, stop_ids=list(range(64)))
    assert target.cache.layers[0].keys.shape[2] <= 64


def test_a_target_failure_before_the_first_token_is_its_own_error():
    """Nothing was emitted, so there is nothing to carry."""
    with pytest.raises(TargetError, match="logits processor FailsAfter failed"):
        engine_on(random_table()).generate([1, 2], processors=[pure(FailsAfter(0))])


def test_a_result_passes_between_processes():
    """A pool's process hands its result over, and with it the receipt if that was asked for."""
    engine = engine_on(random_table(), Oracle([1, 2]))
    result = engine.generate([1, 2], max_new_tokens=4)
    passed = pickle.loads(pickle.dumps(result))
    assert passed == result
    with pytest.raises(InvalidReceipt, match="passed on without its receipt; ask for it where the engine is, before"):
        _ = passed.receipt
    receipt = result.receipt
    passed = pickle.loads(pickle.dumps(result))
    assert passed.receipt == receipt
    assert pickle.loads(pickle.dumps(passed)).receipt == receipt
    assert copy.deepcopy(result).receipt is receipt
    error = pickle.loads(pickle.dumps(GenerationError("failed", token_ids=[1], text="a", results=[result])))
    assert error.results == (result,)


def test_a_receipt_is_one_from_whatever_thread_it_is_asked():
    """Two nonces of one run would be two runs."""
    result = engine_on(random_table()).generate([1, 2], max_new_tokens=4)
    inner, inside = result._receipt._make, threading.Barrier(4)

    def slow():
        time.sleep(0.05)
        return inner()

    result._receipt._make = slow

    def ask(_):
        inside.wait(5)
        return result.receipt

    with ThreadPoolExecutor(4) as pool:
        assert len(set(map(id, pool.map(ask, range(4))))) == 1


def test_a_target_is_itself_and_not_what_it_equals():
    """A target that is a data class has no hash, or that of an equal one; each has its own turn."""

    @attrs.define
    class Wrapped:
        inner: TableTarget = attrs.field(eq=False)

        def __getattr__(self, name):
            return getattr(self.inner, name)

    one, other = (Engine(Wrapped(random_table())) for _ in range(2))
    assert one.target == other.target
    stream = one.stream([1, 2], max_new_tokens=4)
    next(stream)
    assert other.generate([1, 2], max_new_tokens=4).token_ids == tuple(random_table().greedy([1, 2], 4))
    assert list(stream)


class Unreadable(Exception):
    """An error whose message cannot be made, as one that reads an attribute which its constructor did not set."""

    def __str__(self):
        return self.nothing


def test_an_error_without_a_message_loses_no_token():
    """What was emitted is carried by the error, whatever the cause says about itself."""
    engine = engine_on(failing(random_table(), Fault("verify_linear", Unreadable(), at_call=1)))
    with pytest.raises(GenerationError, match="Unreadable, whose message cannot be read") as caught:
        engine.generate([1, 2], max_new_tokens=8)
    assert caught.value.token_ids == tuple(random_table().greedy([1, 2], 8))[:2]
    assert isinstance(caught.value.__cause__, Unreadable)
