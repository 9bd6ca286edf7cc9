"""What is certified, and one generation of it on a target: the product's own round loop, with what it leaves behind.

Knows no check. A wrong engine is a subclass of ``Generation``, so that every check can be shown to see it.
"""

from __future__ import annotations

import itertools
import logging
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from specframe.constraint import Grammars
from specframe.drafting import Terms
from specframe.errors import DrafterExhausted, GrammarError, described
from specframe.generation import Generation
from specframe.plugins import Plugins
from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Round
from specframe.random import Random
from specframe.records import Event, RoundRecord
from specframe.request import Request, make_request
from specframe.strategy import Length, Strategy
from specframe.target import SINGLE, Kernel, Target

_CORE = Path(__file__).parents[1]
_request_ids = itertools.count(1)


@attrs.frozen
class Subject:
    """What is certified: ``make(target)`` returns its drafters by name, new ones at every call.

    ``strategy``: the mode and length of its rounds; ``generation``: the round loop that it runs in; ``terms``: what rounds are
    lent on to drafters that were registered.
    """

    name: str
    make: Callable[[Target], Mapping[str, Drafter]]
    strategy: Strategy = attrs.field(factory=Strategy)
    generation: type[Generation] = Generation
    terms: Mapping[str, Terms] = {}

    def rounds(self, *, max_tokens: int | None = None, verifier: str = "coupled") -> Strategy:
        """Return the strategy with a length (its own if not given) and a verifier."""
        length = self.strategy.length if max_tokens is None else Length(max_tokens=max_tokens)
        return attrs.evolve(self.strategy, drafters=(), length=length, verifier=verifier)


class Run(NamedTuple):
    """What a generation left: its output, why it ended, its rounds, and what happened beside tokens."""

    token_ids: tuple[int, ...]
    finish_reason: str | None
    records: tuple[RoundRecord, ...]
    events: tuple[Event, ...]

    @property
    def output(self) -> tuple[tuple[int, ...], str | None]:
        """What must be equal: ids and reason."""
        return self.token_ids, self.finish_reason

    @property
    def num_proposed(self) -> int:
        """How many tokens were proposed."""
        return sum(record.num_proposed for record in self.records)

    @property
    def num_accepted(self) -> int:
        """How many of them were accepted."""
        return sum(record.num_accepted for record in self.records)


def request_of(target: Target, prompt: Sequence[int], arguments: Mapping[str, Any]) -> Request:
    """Return the checked request of a prompt of ids and ``Engine.generate``'s arguments."""
    return make_request(prompt, arguments, target.facts, Grammars(Plugins([]), target.facts).compile)


def run(
    target: Target,
    drafters: Mapping[str, Drafter],
    strategy: Strategy,
    request: Request,
    *,
    kernel: Kernel = SINGLE,
    generation: type[Generation] = Generation,
    terms: Mapping[str, Terms] = {},
    random: Random | None = None,
) -> Run:
    """Generate to the end on a target that has forgotten everything; drafters keep what they learned.

    Time goes on by one at each look at it, so that adaptive lengths repeat themselves and can be enumerated.
    """
    target.reset()
    made = generation(
        target,
        drafters,
        strategy,
        request,
        kernel=kernel,
        request_id=next(_request_ids),
        table=None,
        terms=terms,
        random=random,
        clock=itertools.count().__next__,
        debug=True,
    )
    try:
        while not made.is_done:
            made.step()
    finally:
        made.close()
    return Run(tuple(made.token_ids), made.stopper.reason, tuple(made.records), made.events)


class Proposed(NamedTuple):
    """One call of ``propose``: the context, of which ``num_authoritative`` ids count, the room, and the ids that were added."""

    context: tuple[int, ...]
    num_authoritative: int
    room: int
    ids: tuple[int, ...]


class Watched:
    """A drafter that keeps what another proposed, and how it failed; one that is at its end has not."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.proposals: list[Proposed] = []
        self.failures: list[str] = []

    @property
    def num_offered(self) -> int:
        """How many tokens it proposed."""
        return sum(len(proposed.ids) for proposed in self.proposals)

    def open(self, request: DraftRequest) -> WatchedSession:
        with self._noting("open"):
            return WatchedSession(self, self.inner.open(request))

    def reset(self) -> None:
        self.inner.reset()

    def close(self) -> None:
        self.inner.close()

    @contextmanager
    def _noting(self, call: str) -> Iterator[None]:
        try:
            yield
        except (DrafterExhausted, GrammarError):
            raise
        except BaseException as error:
            self.failures.append(f"{call} raised {described(error)}{_place_of(error)}")
            raise


class WatchedSession:
    """A session of ``Watched``."""

    def __init__(self, drafter: Watched, inner: DraftSession) -> None:
        self._drafter, self._inner = drafter, inner
        self._num_authoritative = 0

    def propose(self, round: Round) -> None:
        before, room = round.context[:], round.room
        try:
            with self._drafter._noting("propose"):
                self._inner.propose(round)
        finally:
            ids = round.context[len(before) :]
            self._drafter.proposals.append(Proposed(before, self._num_authoritative, room, ids))

    def commit(self, commit: Commit) -> None:
        self._num_authoritative = commit.start_pos + len(commit.ids)
        with self._drafter._noting("commit"):
            self._inner.commit(commit)

    def close(self) -> None:
        with self._drafter._noting("close"):
            self._inner.close()


def _place_of(error: BaseException) -> str:
    """Return where in the drafter's own files an error came up, or nothing; their folder is nobody's business."""
    frames = [
        (Path(frame.filename), frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if _CORE not in Path(frame.filename).parents
    ]
    own = [(file.name, line) for file, line in frames if file.parent == frames[0][0].parent]
    return f" ({own[-1][0]}, line {own[-1][1]})" if own else ""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep tracebacks of drafters that fail, some of them on purpose, out of the log: there would be thousands."""
    logger = logging.getLogger("specframe")

    def refuse(record: logging.LogRecord) -> bool:
        return False

    logger.addFilter(refuse)
    try:
        yield
    finally:
        logger.removeFilter(refuse)
