"""Running the drafters of a generation: opening, lending the round, telling commits, and switching off what fails.

A drafter's failure costs speed only: what it already put into the round stays and is verified, it adds no more, and is off
for the rest of the request. Knows nothing about verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Round
from specframe.records import Event

_logger = logging.getLogger("specframe")


class Drafting:
    """The draft sessions of one generation, in the strategy's order."""

    def __init__(self, drafters: Mapping[str, Drafter], request: DraftRequest, *, mode: str) -> None:
        self.events: list[Event] = []
        self.seconds: dict[str, float] = {}
        self._is_first_wins = mode == "first"
        self._sessions: dict[str, DraftSession] = {}
        for name, drafter in drafters.items():
            try:
                self._sessions[name] = drafter.open(request)
            except Exception as error:
                self._note(0, name, "open", error)

    def propose(self, round: Round) -> None:
        """Let each drafter add to the round while there is room, or until one has added (mode ``first``)."""
        self.seconds = {}
        room = round.room
        for name, session in list(self._sessions.items()):
            if round.room <= 0 or (self._is_first_wins and round.room < room):
                return
            start = time.perf_counter()
            try:
                round.lend(name, session.propose)
            except Exception as error:
                self._switch_off(round.index, name, "propose", error)
            self.seconds[name] = time.perf_counter() - start

    def commit(self, round_id: int, commit: Commit) -> None:
        """Tell every session the new authoritative ids."""
        for name, session in list(self._sessions.items()):
            try:
                session.commit(commit)
            except Exception as error:
                self._switch_off(round_id, name, "commit", error)

    def close(self, round_id: int) -> None:
        """End every session."""
        for name in list(self._sessions):
            self._close(round_id, name)

    def _switch_off(self, round_id: int, name: str, call: str, error: Exception) -> None:
        self._note(round_id, name, call, error)
        self._close(round_id, name)

    def _close(self, round_id: int, name: str) -> None:
        session = self._sessions.pop(name)
        try:
            session.close()
        except Exception as error:
            self._note(round_id, name, "close", error)

    def _note(self, round_id: int, name: str, call: str, error: Exception) -> None:
        _logger.warning("drafter '%s' is off for this request: %s failed", name, call, exc_info=error)
        # An event may be kept or shared, so it holds the type only: a message could quote the prompt.
        self.events.append(Event(round_id, name, f"switched off: {call} raised {type(error).__name__}"))
