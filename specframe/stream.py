"""A generation in pieces: who may use the target, how a generation ends, and what is left of one that failed.

Knows generations from outside, one step at a time.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterator
from types import TracebackType
from weakref import WeakKeyDictionary

import attrs

from specframe.errors import EngineBusy, GenerationError, StreamNotFinished
from specframe.generation import Generation, Piece
from specframe.provenance import Trace, failure_code
from specframe.receipt import Receipt
from specframe.records import Event, RoundRecord, Stats, summarise
from specframe.target import Target


@attrs.frozen
class Result:
    """A finished generation.

    ``token_ids``: the generated ids, a stop id included; ``text``: without stop strings and special tokens;
    ``finish_reason``: ``stop``, ``length``, or ``cancelled`` for a stream that was closed early; ``stop_match``: the stop id
    or string that ended it; ``seed``: what repeats it (None when greedy); ``exactness``: ``bitwise``, ``token-exact`` or
    ``distribution-exact``; ``kernel``: ``single`` or ``block:W``; ``length_policy``: what decided how much was proposed, with
    its version; ``log_probs``: natural logarithms of the model's probabilities of ``token_ids``, before any processing, if
    asked for.
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
    _make_receipt: Callable[[], Receipt] = attrs.field(kw_only=True, repr=False, eq=False)

    @property
    def receipt(self) -> Receipt:
        """What the generation did, without what it said; made when first asked for, which weighs the model's files once.

        Raises ``IncompatibleManifest`` where they have changed since they were loaded.
        """
        return self._make_receipt()


class Hold:
    """The right to use a target: one generation at a time, the others wait. One for each target, whatever its engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread_id: int | None = None

    def __enter__(self) -> Hold:
        if not self._lock.acquire(blocking=False):
            if self._thread_id == threading.get_ident():
                raise EngineBusy("this thread has an open stream on the target; read it to its end or close it first")
            self._lock.acquire()
        self.renew()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread_id = None
        self._lock.release()

    def renew(self) -> None:
        """Note that the calling thread goes on with the generation; a stream may move between threads."""
        self._thread_id = threading.get_ident()


_holds: WeakKeyDictionary[Target, Hold] = WeakKeyDictionary()


def hold_of(target: Target) -> Hold:
    """Return the hold of a target."""
    return _holds.setdefault(target, Hold())


class Stream(Iterator[Piece]):
    """A generation in pieces, one a round; the target is taken at the first and free again after the last.

    ``close`` ends it early, between rounds, from any thread; ``result`` is there after the last piece, or after ``close``
    with ``finish_reason`` ``cancelled``. ``keep`` makes the receipt of a trace.
    """

    def __init__(self, begin: Callable[[], Generation], hold: Hold, keep: Callable[[Trace], Receipt]) -> None:
        self._begin, self._hold, self._keep = begin, hold, keep
        self._is_cancelled = False
        self._make_receipt: Callable[[], Receipt] | None = None
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

    @property
    def receipt(self) -> Receipt:
        """The receipt of the generation, also of one that failed. Raises ``StreamNotFinished`` before its end."""
        if self._make_receipt is None:
            raise StreamNotFinished(
                "the stream has no receipt yet; read it to its end, or close it after its first piece"
            )
        return self._make_receipt()

    def close(self) -> None:
        """End the generation and free the target; nothing more is emitted."""
        self._is_cancelled = True
        try:
            self._pieces.close()
        except ValueError:  # a round is running in another thread, and will be the last
            return

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self) -> Generator[Piece, None, None]:
        with self._hold:
            generation = self._begin()
            failure: str | None = None
            try:
                while not generation.is_done and not self._is_cancelled:
                    self._hold.renew()
                    piece = _step(generation)
                    try:
                        yield piece
                    except GeneratorExit:
                        self._is_cancelled = True
            except BaseException as error:
                failure = failure_code(error)
                raise
            finally:
                generation.close()
                self._make_receipt = functools.cache(functools.partial(self._keep, _trace(generation, failure)))
            self._result = _finish(generation, self._make_receipt)


def _step(generation: Generation) -> Piece:
    try:
        return generation.step()
    except Exception as error:
        if not generation.token_ids:
            raise
        raise GenerationError(
            f"generation ended early: {error}", token_ids=generation.token_ids, text=generation.emitted_text()
        ) from error


def _trace(generation: Generation, failure: str | None) -> Trace:
    return Trace(
        request=generation.request,
        token_ids=tuple(generation.token_ids),
        records=tuple(generation.records),
        events=generation.events,
        emit_s=generation.emit_s,
        finish_reason="failed" if failure is not None else generation.stopper.reason or "cancelled",
        failure=failure,
        exactness=generation.exactness,
        kernel=str(generation.kernel),
        length_policy=generation.length_policy,
        held=generation.held,
    )


def _finish(generation: Generation, make_receipt: Callable[[], Receipt]) -> Result:
    generation.stopper.end("cancelled")  # changes nothing where it has ended already
    request, stopper = generation.request, generation.stopper
    return Result(
        token_ids=tuple(generation.token_ids),
        text=generation.text + stopper.take_text(),
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
        make_receipt=make_receipt,
    )
