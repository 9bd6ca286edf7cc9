"""Messages of workers: whatever bytes arrive, there is an answer or an error of ours, and no waiting beyond the time."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specframe.errors import WorkerError
from specframe.messages import Answer, Channel, Tag, parse, read_answer, read_greeting

MOST_BYTES = 4096
ANSWER = {"request": 1, "sequence": 7, "epoch": 0, "ids": [3, 4]}
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


def framed(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_a_message_arrives_as_it_was_sent(ends):
    """Text of any kind, long ones, several at once, and numbers of numpy's, which a policy may hold."""
    sender, receiver = map(Channel, ends)
    messages = [
        {"ids": list(range(5000))},
        {},
        {"text": "é\n\u2028\U0001f600"},
        {"a": np.int64(3), "b": np.float32(0.5)},
    ]
    for message in messages:
        sender.send(message, timeout_s=5)
    assert [receiver.receive(timeout_s=5) for _ in messages] == [*messages[:3], {"a": 3, "b": 0.5}]


def test_what_is_no_data_is_not_sent(ends):
    """An object that json spells somehow would arrive as something else."""
    with pytest.raises(TypeError, match="plain data"):
        Channel(ends[0]).send({"a": object()})


@given(st.lists(anything.map(lambda value: {"value": value}), max_size=4), st.data())
@settings(max_examples=30)
def test_frames_may_be_cut_anywhere(messages, data):
    """A socket delivers bytes, not messages; what is cut must wait for its rest, and lose nothing."""
    whole = b"".join(framed(json.dumps(message).encode()) for message in messages)
    left, right = socket.socketpair()
    with left, right:
        channel, got = Channel(right), []
        while whole:
            cut = data.draw(st.integers(1, len(whole)))
            left.sendall(whole[:cut])
            whole = whole[cut:]
            try:
                while True:
                    got.append(channel.receive(timeout_s=0))
            except TimeoutError:
                pass
        assert json.dumps(got) == json.dumps(messages)


@given(
    st.lists(
        st.binary(max_size=64)
        | st.binary(max_size=64).map(framed)
        | anything.map(json.dumps).map(str.encode).map(framed)
    )
)
@settings(max_examples=80)
def test_no_bytes_make_a_reader_fail_otherwise(chunks):
    """The core reads what a broken or hostile plugin writes: objects, an error of ours, or the end."""
    left, right = socket.socketpair()
    with left, right:
        right.settimeout(5)
        left.sendall(b"".join(chunks))
        left.close()
        channel = Channel(right, most_bytes=MOST_BYTES)
        for _ in range(len(chunks) + 1):
            try:
                message = channel.receive(timeout_s=5)
            except (WorkerError, EOFError):
                break
            assert isinstance(message, dict)
            with contextlib.suppress(WorkerError):
                assert isinstance(read_answer(message), Answer)
            with contextlib.suppress(WorkerError):
                read_greeting(message)


@given(st.dictionaries(st.sampled_from([*ANSWER, "error", "is_exhausted", "other"]), anything, max_size=7))
@settings(max_examples=100)
def test_an_answer_is_one_or_is_refused(message):
    """A wrong type that slips through would fail somewhere else, or be proposed."""
    try:
        answer = read_answer(message)
    except WorkerError:
        return
    assert all(type(value) is int for value in (*answer.tag, *answer.ids))
    assert answer.error is None or type(answer.error) is str
    assert type(answer.is_exhausted) is bool


def test_answers():
    """What a worker says, and nothing beside it."""
    assert read_answer(ANSWER) == Answer(Tag(1, 7, 0), (3, 4))
    failed = read_answer({**ANSWER, "ids": [], "error": "ValueError: " + "x" * 5000, "is_exhausted": True})
    assert (len(failed.error), failed.is_exhausted) == (2000, True)
    for wrong in (
        {"ids": [True]},
        {"ids": [1.0]},
        {"ids": None},
        {"epoch": "0"},
        {"error": 1},
        {"is_exhausted": 1},
        {"law": 0},
    ):
        with pytest.raises(WorkerError, match="answer"):
            read_answer({**ANSWER, **wrong})


def test_greetings():
    """A worker is ready, or says why not."""
    assert read_greeting({"is_ready": True}) is None
    assert read_greeting({"failure": "ImportError: no"}) == "ImportError: no"
    for wrong in ({}, {"is_ready": False}, {"failure": 3}, {"is_ready": True, "failure": "x"}):
        with pytest.raises(WorkerError, match="ready"):
            read_greeting(wrong)


@pytest.mark.parametrize("frame", [b"", b"{", b"[1]", b"3", b"\xff\xfe", b"nul", b"[" * 100_000, b"1" * 5000])
def test_frames_that_are_no_objects_are_refused(frame):
    """JSON's own limits, of depth and of digits, are errors of ours too."""
    with pytest.raises(WorkerError, match="must be"):
        parse(frame)


def test_a_frame_that_claims_too_much_is_refused_unread(ends):
    """A length of 4 GiB must not be waited for, nor reserved."""
    left, right = ends
    left.sendall(struct.pack(">I", 2**32 - 1))
    with pytest.raises(WorkerError, match="at most 4,096 bytes"):
        Channel(right, most_bytes=MOST_BYTES).receive(timeout_s=5)


def test_nobody_waits_longer_than_was_said(ends):
    """Neither for a message that does not come, nor for one that comes in drops, nor for a reader that does not read."""
    left, right = ends
    with pytest.raises(TimeoutError):
        Channel(right).receive(timeout_s=0.01)
    left.sendall(framed(b"{}")[:5])
    with pytest.raises(TimeoutError):
        Channel(right).receive(timeout_s=0.01)
    with pytest.raises(TimeoutError):
        Channel(left).send({"text": "x" * 10_000_000}, timeout_s=0.01)


def test_a_message_without_an_end_is_not_waited_for(ends):
    """There is always something to read of it, so that no single look times out."""
    left, right = ends

    def pour():
        with contextlib.suppress(OSError):
            left.sendall(struct.pack(">I", 2**31))
            while True:
                left.sendall(bytes(65536))

    thread = threading.Thread(target=pour)
    thread.start()
    try:
        with pytest.raises(TimeoutError):
            Channel(right).receive(timeout_s=0.1)
    finally:
        right.close()
        thread.join()


def test_the_end_is_told(ends):
    """A reader that waits is woken by the other side's death."""
    left, right = ends
    thread = threading.Timer(0.01, left.close)
    thread.start()
    with pytest.raises(EOFError):
        Channel(right).receive(timeout_s=5)
    thread.join()
