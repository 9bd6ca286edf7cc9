"""The shipped test tools themselves: the table target's honesty, the tokenizers, the scripts."""

import pytest
import torch

from specframe.errors import CacheError, StaleEpoch, TargetError
from specframe.random import Purpose
from specframe.target import Ticket
from specframe.testing import (
    GumbelKey,
    ScriptedRandom,
    ScriptEnded,
    TableTarget,
    UniformKey,
    byte_tokenizer,
    sentencepiece_tokenizer,
)
from specframe.testing.tokenizers import BYTE_PIECES


def counting_target(**options):
    """Make a target whose next token is the last one plus 1, modulo 5."""
    return TableTarget(lambda ids: [float(x == (ids[-1] + 1) % 5) for x in range(5)], vocab_size=5, **options)


def open_session(target, request_id=1, max_tokens=20):
    session = target.open(request_id, max_tokens=max_tokens)
    return session, Ticket(request_id, 0, session.epoch)


def test_a_round_trip():
    """Prevents tests above from resting on a target that feeds, counts or keeps the wrong ids."""
    target = counting_target()
    session, ticket = open_session(target)
    assert session.prefill(ticket, [0, 1]).logits.argmax(-1).tolist() == [2]
    assert session.num_committed == 2
    assert session.verify_linear(ticket, 2, [3, 0]).logits.argmax(-1).tolist() == [3, 4, 1]
    assert (session.num_committed, session.num_provisional) == (2, 3)
    session.commit(ticket, 2)
    assert target.cached_ids == [0, 1, 2, 3]
    assert session.num_committed == 4
    session.close()
    assert target.num_forwards == 2
    assert target.calls == [
        ("prefill", (0, 1), (0, 1)),
        ("verify", (2, 3, 0), (2, 3, 4)),
        ("commit", (2, 3), (2, 3)),
        ("close", (), ()),
    ]


def test_a_prefix_is_reused_between_sessions():
    """Prevents prefix reuse from being untested because the table target starts afresh each time."""
    target = counting_target()
    session, ticket = open_session(target)
    session.prefill(ticket, [0, 1, 2, 3])
    session.close()
    session, ticket = open_session(target, 2)
    assert session.num_committed == 0
    session.prefill(ticket, [0, 1, 4])
    assert target.calls[-1] == ("prefill", (4,), (2,))
    assert target.cached_ids == [0, 1, 4]
    target.reset()
    assert target.cached_ids == []


def test_misuse_raises_before_anything_changes():
    """Prevents an engine's fault from passing unseen on the table target."""
    target = counting_target(context_limit=6)
    session, ticket = open_session(target)
    with pytest.raises(CacheError, match="before prefill"):
        session.verify_linear(ticket, 1, [])
    with pytest.raises(CacheError, match="at least one id"):
        session.prefill(ticket, [])
    session.prefill(ticket, [0, 1, 2])
    for call, message in (
        (lambda: session.prefill(ticket, [0]), "twice"),
        (lambda: session.commit(ticket, 1), "cannot commit 1 of 0"),
        (lambda: session.verify_linear(ticket, 1, [2, 3, 4]), "pass the limit of 6"),
        (lambda: session.verify_linear(ticket, 5, []), "must be an int"),
        (lambda: session.verify_linear(ticket, True, []), "must be an int"),
    ):
        with pytest.raises(CacheError, match=message):
            call()
    session.verify_linear(ticket, 3, [4])
    with pytest.raises(CacheError, match="2 provisional"):
        session.verify_linear(ticket, 3, [])
    with pytest.raises(CacheError, match="cannot commit 3 of 2"):
        session.commit(ticket, 3)
    assert target.cached_ids == [0, 1, 2, 3, 4]
    session.commit(ticket, 0)
    assert target.cached_ids == [0, 1, 2]


def test_stale_tickets_change_nothing():
    """Prevents a late call of a cancelled or replaced request from touching the cache (case M1)."""
    target = counting_target()
    session, ticket = open_session(target)
    session.prefill(ticket, [0, 1])
    session.verify_linear(ticket, 2, [3])
    session.cancel()
    for call in (lambda: session.commit(ticket, 1), lambda: session.verify_linear(ticket, 2, [])):
        with pytest.raises(StaleEpoch, match="epoch 0"):
            call()
    with pytest.raises(StaleEpoch):
        session.commit(Ticket(9, 0, session.epoch), 1)
    assert (session.num_committed, session.num_provisional) == (2, 2)
    other, fresh = open_session(target, 2)
    assert target.cached_ids == [0, 1]  # the open round was rolled back
    other.prefill(fresh, [0, 1, 2])
    session.close()
    with pytest.raises(CacheError, match="closed"):
        session.commit(Ticket(1, 0, session.epoch), 0)
    assert target.cached_ids == [0, 1, 2]


def test_a_failing_row_is_a_failing_forward():
    """Prevents target failures from being untestable: the tail is gone, the committed prefix stays."""

    def rows(ids):
        if ids[-1] == 3:
            raise ZeroDivisionError("no row")
        return [0.0] * 5

    target = TableTarget(rows, vocab_size=5)
    session, ticket = open_session(target)
    session.prefill(ticket, [0, 1])
    with pytest.raises(TargetError, match="no row") as caught:
        session.verify_linear(ticket, 2, [3])
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert target.cached_ids == [0, 1]
    session.verify_linear(ticket, 2, [])


def test_tables_and_probabilities():
    """Prevents a row of another context, or of another dtype, from being returned."""
    table = {(1, 2): [0.5, 0.25, 0.25], (2,): [1.0, 0, 0]}
    target = TableTarget.from_probs(table, vocab_size=3, order=2, default=[0, 0, 1.0])
    assert target.row([0, 1, 2]).exp().tolist() == [0.5, 0.25, 0.25]
    assert target.row([2]).tolist() == [0.0, -torch.inf, -torch.inf]
    assert target.row([2, 2]).argmax() == 2
    assert target.facts.dtype == "float64"
    assert TableTarget(table, vocab_size=3, order=2, dtype=torch.bfloat16).row([1, 2]).dtype == torch.bfloat16
    with pytest.raises(KeyError, match="no default row"):
        TableTarget(table, vocab_size=3).row([0])


def test_greedy_continuation():
    """Prevents an oracle that replays something other than plain decoding: lowest id of equals, stop id included."""
    assert counting_target().greedy([0], 6) == [1, 2, 3, 4, 0, 1]
    assert counting_target(stop_ids=[3]).greedy([0], 6) == [1, 2, 3]
    assert TableTarget({}, vocab_size=3, default=[0.0, 1.0, 1.0]).greedy([0], 2) == [1, 1]


def test_scripts_log_and_end():
    """Prevents a test from passing on draws that nothing scripted."""
    random = ScriptedRandom([0.5], [[0.0, 1.0, 2.0]])
    assert random.uniform(Purpose.ACCEPT_UNIFORM, 3, 1) == 0.5
    assert random.gumbel(7, torch.tensor([0, 2]).numpy()).tolist() == [0.0, 2.0]
    assert random.keys == [UniformKey(Purpose.ACCEPT_UNIFORM, 3, 1), GumbelKey(7, (0, 2))]
    with pytest.raises(ScriptEnded, match="no uniform for"):
        random.uniform(Purpose.ACCEPT_UNIFORM, 3, 2)
    with pytest.raises(ScriptEnded, match="no Gumbel noise for"):
        random.gumbel(8, torch.tensor([0]).numpy())


def test_tokenizers_hold_what_they_promise():
    """Prevents a change of these fixtures from emptying the tests that rest on them."""
    made = byte_tokenizer()
    assert [made.decode([i]) for i in (ord("b"), 256)] == ["b", "ab"]
    assert made.convert_tokens_to_ids(["</s>", "<eot>"]) == [256 + len(BYTE_PIECES) + 1, 256 + len(BYTE_PIECES) + 2]
    assert len(made) == 256 + len(BYTE_PIECES) + 3
    for tokenizer in (made, sentencepiece_tokenizer()):
        text = "A 世🙂ď  ab\n\nPizza >"
        assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
