"""Messages between the core and a worker process: JSON objects in frames on a socket, and what an answer must be.

Nothing is ever unpickled, and the core trusts nothing that a worker sends: what is no answer raises ``WorkerError``. Imports
neither torch nor numpy; knows sockets and plain data, nothing about drafters.
"""

from __future__ import annotations

import json
import numbers
import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from specframe.errors import WorkerError

_LENGTH = struct.Struct(">I")  # before each frame, in bytes
_CHUNK_BYTES = 65536
_MOST_TEXT = 2000  # characters of what a worker says about itself
MOST_ANSWER_BYTES = 1 << 20


class Tag(NamedTuple):
    """What a message belongs to.

    ``sequence``: the message's own number; ``epoch``: a new one begins when an answer is not waited for any more.
    """

    request: int
    sequence: int
    epoch: int


class Answer(NamedTuple):
    """What a worker proposes. ``error``: how the drafter failed, with the ids before it; ``is_exhausted``: at its end."""

    tag: Tag
    ids: tuple[int, ...]
    error: str | None = None
    is_exhausted: bool = False


class Channel:
    """One end of a connected socket. Frames longer than ``most_bytes`` are refused, not read; None takes any."""

    def __init__(self, connection: socket.socket, *, most_bytes: int | None = None) -> None:
        self._socket, self._most_bytes = connection, most_bytes
        self._buffer = bytearray()

    def send(self, message: Mapping[str, Any], *, timeout_s: float | None = None) -> None:
        """Send a message. Raises ``TimeoutError`` where the other side does not read, ``ConnectionError`` where it is gone."""
        data = json.dumps(message, separators=(",", ":"), default=_plain).encode()
        self._socket.settimeout(timeout_s)
        self._socket.sendall(_LENGTH.pack(len(data)) + data)

    def receive(self, *, timeout_s: float | None = None) -> dict[str, Any]:
        """Return the next message; with 0 seconds, one that is here.

        Raises ``TimeoutError``, ``EOFError`` or ``ConnectionError`` at the end, and ``WorkerError`` for a frame that is none.
        """
        start, left_s = time.monotonic(), timeout_s
        while (frame := self._take_frame()) is None:
            if left_s is not None and left_s < 0:  # a message in many pieces is as late as one that does not come
                raise TimeoutError("timed out")
            self._socket.settimeout(left_s)
            try:
                data = self._socket.recv(_CHUNK_BYTES)
            except BlockingIOError:  # what a socket with a timeout of 0 raises
                raise TimeoutError("timed out") from None
            if not data:
                raise EOFError("the other side closed the connection")
            self._buffer += data
            if timeout_s is not None:
                left_s = start + timeout_s - time.monotonic()
        return parse(frame)

    def _take_frame(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (num_bytes,) = _LENGTH.unpack_from(self._buffer)
        if self._most_bytes is not None and num_bytes > self._most_bytes:
            raise WorkerError(f"a message must have at most {self._most_bytes:,} bytes (got {num_bytes:,})")
        end = _LENGTH.size + num_bytes
        if len(self._buffer) < end:
            return None
        frame = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return frame


def parse(frame: bytes) -> dict[str, Any]:
    """Return the object of a frame. Raises ``WorkerError``."""
    try:
        message = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise WorkerError(f"a message must be JSON ({type(error).__name__})") from error
    if not isinstance(message, dict):
        raise WorkerError(f"a message must be a JSON object (got {type(message).__name__})")
    return message


def read_answer(message: Mapping[str, Any]) -> Answer:
    """Return a message as an answer. Raises ``WorkerError`` for one that is none."""
    unknown = message.keys() - {*Tag._fields, "ids", "error", "is_exhausted"}
    if unknown:
        raise WorkerError(f"an answer must have no other fields (got {', '.join(sorted(map(repr, unknown)))})")
    tag = Tag(*(_integer(name, message.get(name)) for name in Tag._fields))
    ids = message.get("ids")
    if not isinstance(ids, list):
        raise WorkerError(f"'ids' of an answer must be a list (got {type(ids).__name__})")
    error, is_exhausted = message.get("error"), message.get("is_exhausted", False)
    if error is not None and not isinstance(error, str):
        raise WorkerError(f"'error' of an answer must be a text (got {type(error).__name__})")
    if not isinstance(is_exhausted, bool):
        raise WorkerError(f"'is_exhausted' of an answer must be true or false (got {type(is_exhausted).__name__})")
    return Answer(tag, tuple(_integer("ids", token) for token in ids), error and error[:_MOST_TEXT], is_exhausted)


def read_greeting(message: Mapping[str, Any]) -> str | None:
    """Return why a worker could not start, or None for one that is ready. Raises ``WorkerError`` for what is neither."""
    if message == {"is_ready": True}:
        return None
    failure = message.get("failure")
    if message.keys() != {"failure"} or not isinstance(failure, str):
        raise WorkerError("a worker must say first that it is ready, or why it is not")
    return failure[:_MOST_TEXT]


def _plain(value: Any) -> int | float:
    """Return a number of numpy's as one of Python's."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    raise TypeError(f"a message holds plain data (got {type(value).__name__})")


def _integer(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise WorkerError(f"'{name}' of an answer must hold integers (got {type(value).__name__})")
    return value
