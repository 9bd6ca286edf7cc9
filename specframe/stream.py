"""A generation in pieces: who may use the target, how a generation ends, and what is left of one that failed.

Knows generations from outside, one step at a time.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import attrs

from specframe.cancel import Ending
from specframe.errors import EngineBusy, GenerationError, InvalidReceipt, SpecframeError, StreamNotFinished, described
from specframe.generation import Generation, Piece
from specframe.provenance import Trace, failure_code
from specframe.receipt import Receipt
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
    _receipt: LazyReceipt = attrs.field(kw_only=True, repr=False, eq=False)

    @property
    def receipt(self) -> Receipt:
        """What the generation did, without what it said; made when first asked for, which weighs the model's files once.

        Raises ``IncompatibleManifest`` where they have changed since they were loaded, and ``InvalidReceipt`` where the result
        was passed to another process before it was asked for.
        """
        return self._receipt.get()


class LazyReceipt:
    """The receipt of a run, made by ``keep`` of its trace when it is first asked for; then it is always that one.

    Another process gets what was made: to make one takes the engine.
    """

    def __init__(self, keep: Callable[[Trace], Receipt], trace: Trace) -> None:
        self._make: Callable[[], Receipt] | None = lambda: keep(trace)
        self._made: Receipt | None = None
        self._lock = threading.Lock()

    def get(self) -> Receipt:
        """Return the receipt."""
        with self._lock:
            if self._made is None:
                if self._make is None:
                    raise InvalidReceipt(
                        "this result was passed on without its receipt; ask for it where the engine is, before"
                    )
                self._made = self._make()
            return self._made

    def __deepcopy__(self, memo: dict[int, Any]) -> LazyReceipt:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _passed_on, (self._made,)


def _passed_on(made: Receipt | None) -> LazyReceipt:
    receipt = LazyReceipt.__new__(LazyReceipt)
    receipt._make, receipt._made, receipt._lock = None, made, threading.Lock()
    return receipt


_POLL_S = 0.02  # between two looks at whether it is the turn of a call that may end while it waits


class Hold:
    """The right to use a target: one generation at a time, the others wait. One for each target, whatever its engines."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner: tuple[int, int] | None = None

    @contextmanager
    def taken(self, ending: Ending | None = None) -> Iterator[None]:
        """Hold the target inside a ``with`` block.

        Raises ``EngineBusy`` where waiting for it would never end, and for a call that ends before its turn comes.
        """
        owner = self._owner  # once: another thread may give the target back between two looks
        if self._lock.locked() and owner is not None:
            if owner == _here():
                raise EngineBusy("this thread has an open stream on the target; read it to its end or close it first")
            if owner[0] != os.getpid():
                raise EngineBusy(
                    "this process was forked while a generation ran on the target; fork between generations, or load the "
                    "model in the new process"
                )
        while ending is not None and ending.may_come and self._lock.locked():
            if ending.reason is not None:
                raise EngineBusy(f"the target was in use until this call ended ({ending.reason}); nothing of it ran")
            time.sleep(_POLL_S)
        with self._lock:  # the lock's own `with`: no interrupt comes between taking it and being bound to free it
            try:
                self.renew()
                yield
            finally:
                self._owner = None

    def renew(self) -> None:
        """Note that the calling thread goes on with the generation; a stream may move between threads."""
        self._owner = _here()


def _here() -> tuple[int, int]:
    """Return the process and the thread that run."""
    return os.getpid(), threading.get_ident()


_holds: dict[int, Hold] = {}  # by identity: a target may be equal to another one, or have no hash


def hold_of(target: Target) -> Hold:
    """Return the hold of a target."""
    new = Hold()
    hold = _holds.setdefault(id(target), new)
    if hold is new:
        weakref.finalize(target, _holds.pop, id(target))
    return hold


@attrs.define
class _Progress:
    """What a stream shares with its generator, which holds no reference to the stream: one that is dropped ends at once."""

    ending: Ending
    has_begun: bool = False
    is_closed: bool = False
    result: Result | None = None
    receipt: LazyReceipt | None = None

    @property
    def early(self) -> str | None:
        """Why the generation is to end before its text does, or None."""
        return "cancelled" if self.is_closed else self.ending.reason


class Stream(Iterator[Piece]):
    """A generation in pieces, one a round; the target is taken at the first and free again after the last.

    ``close`` ends it early, between rounds, from any thread; so does dropping the last reference to it, and what ``ending``
    tells. ``result`` is there after the last piece, or after ``close``, and its ``finish_reason`` says what ended it. A last
    piece may hold text only: what was held for a stop string that did not come. ``keep`` makes the receipt of a trace.
    """

    def __init__(
        self, begin: Callable[[], Generation], hold: Hold, ending: Ending, keep: Callable[[Trace], Receipt]
    ) -> None:
        self._begin, self._hold, self._keep = begin, hold, keep
        self._progress = _Progress(ending)
        self._pieces = _generate(begin, hold, self._progress, keep)

    def __next__(self) -> Piece:
        try:
            return next(self._pieces)
        except EngineBusy:
            if not self._progress.has_begun:  # and may begin later
                self._pieces = _generate(self._begin, self._hold, self._progress, self._keep)
            raise
        except ValueError as error:
            if not _is_refused(error):
                raise
            raise EngineBusy("another thread is reading this stream; one at a time may") from error

    @property
    def result(self) -> Result:
        """The finished generation. Raises ``StreamNotFinished`` before its end, and for one that failed."""
        if self._progress.result is None:
            raise StreamNotFinished(
                "the stream has no result yet; read it to its end, or close it after its first piece"
            )
        return self._progress.result

    @property
    def receipt(self) -> Receipt:
        """The receipt of the generation, also of one that failed. Raises ``StreamNotFinished`` before its end."""
        if self._progress.receipt is None:
            raise StreamNotFinished(
                "the stream has no receipt yet; read it to its end, or close it after its first piece"
            )
        return self._progress.receipt.get()

    def close(self) -> None:
        """End the generation and free the target; nothing more is emitted."""
        self._progress.is_closed = True
        try:
            self._pieces.close()
        except ValueError as error:
            if not _is_refused(error):
                raise
            # A round is running, in another thread or below this call, and will be the last.

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _is_refused(error: ValueError) -> bool:
    """Whether a generator refused to be entered, since it runs already; what it raises itself comes from another frame."""
    return error.__traceback__ is not None and error.__traceback__.tb_next is None


def _generate(
    begin: Callable[[], Generation], hold: Hold, progress: _Progress, keep: Callable[[Trace], Receipt]
) -> Generator[Piece, None, None]:
    with hold.taken(progress.ending):
        progress.has_begun = True
        generation = begin()
        failure: str | None = None
        try:
            with _ending(generation):
                while not generation.is_done and progress.early is None:
                    hold.renew()
                    piece = generation.step()
                    try:
                        yield piece
                    except GeneratorExit:
                        progress.is_closed = True
        except BaseException as error:
            failure = failure_code(error)
            raise
        finally:
            receipt = progress.receipt = LazyReceipt(keep, _trace(generation, failure, progress.early))
        progress.result, held = _finish(generation, progress.early, receipt)
    if held and not progress.is_closed:
        yield Piece(held, ())


@contextmanager
def _ending(generation: Generation) -> Iterator[None]:
    """End a generation whatever happens. An error after the first token carries what was emitted, and names its cause."""
    try:
        try:
            yield
        except BaseException as error:
            _end_besides(generation, error)
            raise
        generation.close()
    except Exception as error:
        if not generation.token_ids:
            raise
        raise GenerationError(
            f"generation ended early: {_told(error)}", token_ids=generation.token_ids, text=generation.emitted_text()
        ) from error


def _end_besides(generation: Generation, cause: BaseException) -> None:
    """End a generation that failed; what fails now is noted on the cause, and does not replace it.

    An error leaves no prefix to later requests: what made it may stand in the cache, as a NaN does. An interrupt does.
    """
    try:
        generation.close(keeps_prefix=not isinstance(cause, Exception))
    except Exception as error:
        cause.add_note(f"besides, the generation could not be ended ({_told(error)})")


def _told(error: Exception) -> str:
    """Return an error's message, with its type where the message is not written by this project."""
    return str(error) if isinstance(error, SpecframeError) else described(error)


def _trace(generation: Generation, failure: str | None, early: str | None) -> Trace:
    return Trace(
        request=generation.request,
        token_ids=tuple(generation.token_ids),
        records=tuple(generation.records),
        events=generation.events,
        finish_reason="failed" if failure is not None else generation.stopper.reason or early or "cancelled",
        failure=failure,
        exactness=generation.exactness,
        kernel=str(generation.kernel),
        length_policy=generation.length_policy,
        held=generation.held,
    )


def _finish(generation: Generation, early: str | None, receipt: LazyReceipt) -> tuple[Result, str]:
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
        stats=summarise(generation.records),
        records=tuple(generation.records),
        events=generation.events,
        log_probs=tuple(generation.log_probs) if request.log_probs else None,
        receipt=receipt,
    )
    return result, held
