"""Running the drafters of a generation: opening, lending the round, telling commits, and switching off what fails.

A drafter's failure costs speed only: what it already put into the round stays and is verified, it adds no more, and is off
for the rest of the request. Knows nothing about verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from specframe.errors import GrammarError
from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Round, lend
from specframe.records import Event

_logger = logging.getLogger("specframe")


class Drafting:
    """The draft sessions of one generation, in the strategy's order.

    ``seconds``: what each drafter took since ``start_round``, commits included.
    """

    def __init__(self, *, round_id: int, mode: str) -> None:
        self.events: list[Event] = []
        self.seconds: dict[str, float] = {}
        self._round_id = round_id
        self._is_first_wins = mode == "first"
        self._sessions: dict[str, DraftSession] = {}

    def open(self, drafters: Mapping[str, Drafter], request: DraftRequest) -> None:
        """Open a session of each drafter."""
        for name, drafter in drafters.items():
            with self._guarded(name, "open"):
                self._sessions[name] = drafter.open(request)

    def start_round(self, round_id: int) -> None:
        """Begin to count the seconds of another round."""
        self._round_id, self.seconds = round_id, {}

    def propose(self, round: Round) -> None:
        """Let each drafter add to the round while there is room, or until one has added (mode ``first``)."""
        room = round.room
        for name, session in list(self._sessions.items()):
            if round.room <= 0 or (self._is_first_wins and round.room < room):
                return
            with self._guarded(name, "propose"):
                lend(round, name, session.propose)

    def commit(self, commit: Commit) -> None:
        """Tell every session the new authoritative ids."""
        for name, session in list(self._sessions.items()):
            with self._guarded(name, "commit"):
                session.commit(commit)

    def close(self) -> None:
        """End every session."""
        for name in list(self._sessions):
            session = self._sessions.pop(name)
            with self._guarded(name, "close"):
                session.close()

    @contextmanager
    def _guarded(self, name: str, call: str) -> Iterator[None]:
        """Time a call into a drafter; whatever it raises switches the drafter off.

        Except the grammar's failure, which only ends the draft: it is the target's, where the target comes to it. And an
        interrupt, which is the user's. Exceptions that are no ``Exception``, such as a panic in an extension module, are the
        drafter's too.
        """
        start = time.perf_counter()
        try:
            yield
        except GrammarError:
            pass
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            _logger.warning("drafter '%s' is off for this request: %s failed", name, call, exc_info=error)
            # An event may be kept or shared, so it holds the type only: a message could quote the prompt.
            self.events.append(Event(self._round_id, name, f"switched off: {call} raised {type(error).__name__}"))
            session = self._sessions.pop(name, None)
            if session is not None:
                with self._guarded(name, "close"):
                    session.close()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
