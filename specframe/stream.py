"""A generation in pieces: who may use the target, how a generation ends, and what is left of one that failed.

Knows generations from outside, one step at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from weakref import WeakKeyDictionary

import attrs

from specframe.cancel import Ending
from specframe.errors import EngineBusy, GenerationError, StreamNotFinished
from specframe.generation import Generation, Piece
from specframe.records import Event, RoundRecord, Stats, summarise
from specframe.target import Target


@attrs.frozen
class Result:
    """A finished generation.

    ``token_ids``: the generated ids, a stop id included; ``text``: without stop strings and special tokens;
    ``finish_reason``: ``stop``, ``length``, ``cancelled`` (by its token, or a stream that was closed early) or ``deadline``;
    ``stop_match``: the stop id or string that ended it; ``seed``: what repeats it (None when greedy); ``exactness``:
    ``bitwise``, ``token-exact`` or ``distribution-exact``; ``kernel``: ``single`` or ``block:W``; ``length_policy``: what
    decided how much was proposed, with its version; ``log_probs``: natural logarithms of the model's probabilities of
    ``token_ids``, before any processing, if asked for.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stop_match: int | str | None
    seed: int | None
    exactness: str
    kernel: str
    length_policy: str
    stats: Stats
    records: tuple[RoundRecord, ...] = attrs.field(repr=False)
    events: tuple[Event, ...] = ()
    log_probs: tuple[float, ...] | None = attrs.field(default=None, repr=False)


_POLL_S = 0.02  # between two looks at whether it is the turn of a call that may end while it waits


class Hold:
    """The right to use a target: one generation at a time, the others wait. One for each target, whatever its engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread_id: int | None = None

    @contextmanager
    def taken(self, ending: Ending | None = None) -> Iterator[None]:
        """Hold the target inside a ``with`` block. Raises ``EngineBusy`` for a call that ends before its turn comes."""
        if self._lock.locked() and self._thread_id == threading.get_ident():
            raise EngineBusy("this thread has an open stream on the target; read it to its end or close it first")
        while ending is not None and ending.may_come and self._lock.locked():
            if ending.reason is not None:
                raise EngineBusy(f"the target was in use until this call ended ({ending.reason}); nothing of it ran")
            time.sleep(_POLL_S)
        with self._lock:
            try:
                self.renew()
                yield
            finally:
                self._thread_id = None

    def renew(self) -> None:
        """Note that the calling thread goes on with the generation; a stream may move between threads."""
        self._thread_id = threading.get_ident()


_holds: WeakKeyDictionary[Target, Hold] = WeakKeyDictionary()


def hold_of(target: Target) -> Hold:
    """Return the hold of a target."""
    return _holds.setdefault(target, Hold())


class Stream(Iterator[Piece]):
    """A generation in pieces, one a round; the target is taken at the first and free again after the last.

    ``close`` ends it early, between rounds, from any thread, and so does what ``ending`` tells; ``result`` is there after the
    last piece, or after ``close``, and its ``finish_reason`` says what ended it. A last piece may hold text only: what was
    held for a stop string that did not come.
    """

    def __init__(self, begin: Callable[[], Generation], hold: Hold, ending: Ending) -> None:
        self._begin, self._hold, self._ending = begin, hold, ending
        self._is_closed = False
        self._result: Result | None = None
        self._pieces = self._generate()

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except EngineBusy:
            self._pieces = self._generate()  # it never began, and may begin later
            raise
        except ValueError as error:  # "generator already executing"; what a generation raises is wrapped
            raise EngineBusy("another thread is reading this stream; one at a time may") from error

    @property
    def result(self) -> Result:
        """The finished generation. Raises ``StreamNotFinished`` before its end, and for one that failed."""
        if self._result is None:
            raise StreamNotFinished(
                "the stream has no result yet; read it to its end, or close it after its first piece"
            )
        return self._result

    def close(self) -> None:
        """End the generation and free the target; nothing more is emitted."""
        self._is_closed = True
        try:
            self._pieces.close()
        except ValueError:  # it runs in another thread, where this round will be the last
            return

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self) -> Generator[Piece, None, None]:
        with self._hold.taken(self._ending):
            generation = self._begin()
            try:
                while not generation.is_done and self._early is None:
                    self._hold.renew()
                    piece = _step(generation)
                    try:
                        yield piece
                    except GeneratorExit:
                        self._is_closed = True
            finally:
                generation.close()
            self._result, held = _finish(generation, self._early)
        if held and not self._is_closed:
            yield Piece(held, ())

    @property
    def _early(self) -> str | None:
        """Why the generation is to end before its text does, or None."""
        return "cancelled" if self._is_closed else self._ending.reason


def _step(generation: Generation) -> Piece:
    try:
        return generation.step()
    except Exception as error:
        if not generation.token_ids:
            raise
        raise GenerationError(
            f"generation ended early: {error}", token_ids=generation.token_ids, text=generation.emitted_text()
        ) from error


def _finish(generation: Generation, early: str | None) -> tuple[Result, str]:
    """Return the result of a generation that is over, and the text in it that no piece had."""
    request, stopper = generation.request, generation.stopper
    stopper.end(early or "cancelled")  # changes nothing where it has ended already
    held = stopper.take_text()
    result = Result(
        token_ids=tuple(generation.token_ids),
        text=generation.text + held,
        finish_reason=stopper.reason or "cancelled",
        stop_match=stopper.match,
        seed=request.seed,
        exactness=generation.exactness,
        kernel=str(generation.kernel),
        length_policy=generation.length_policy,
        stats=summarise(generation.records, emit_s=generation.emit_s),
        records=tuple(generation.records),
        events=generation.events,
        log_probs=tuple(generation.log_probs) if request.log_probs else None,
    )
    return result, held
