"""Running the drafters of a generation: opening, lending the round, telling commits, and switching off what fails.

A drafter's failure costs speed only: what it already put into the round stays and is verified, it adds no more, and is off
for the rest of the request. Knows nothing about verification.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from specframe.errors import DrafterExhausted, GrammarError, OverBudget
from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Proposal, Round, lend
from specframe.records import DrafterShare, Event, EventCode
from specframe.settings import kept_settings

if TYPE_CHECKING:
    from specframe.lengths import LengthPolicy
    from specframe.proposal import Law

_logger = logging.getLogger("specframe")


class Terms(NamedTuple):
    """What a drafter is lent rounds on: the seconds that a proposal may take, or None, whether it may draw, and, for the
    length policy, whether it says that its tokens cost next to nothing.
    """

    budget_s: float | None = None
    may_draw: bool = True
    is_cheap: bool = False


_NO_TERMS = Terms()
_LATE = "switched off: propose took longer than its budget"


class Drafting:
    """The draft sessions of one generation, in the strategy's order, as far as ``lengths`` lets them.

    ``terms``: by drafter; one that has none there may take its time, and may draw; ``clock`` tells seconds;
    ``keep_entropies``: whether shares hold those of the laws that were drawn from.
    """

    def __init__(
        self,
        lengths: LengthPolicy,
        *,
        round_id: int,
        mode: str,
        terms: Mapping[str, Terms] = {},
        clock: Callable[[], float] = time.perf_counter,
        keep_entropies: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self._lengths, self._round_id, self._clock = lengths, round_id, clock
        self._terms = terms
        self._is_first_wins, self._keep_entropies = mode == "first", keep_entropies
        self._sessions: dict[str, DraftSession] = {}
        # Of the round, by drafter; the seconds hold commits too.
        self._seconds: dict[str, float] = {}
        self._propose_s: dict[str, float] = {}
        self._limits: dict[str, int] = {}

    @kept_settings()
    def open(self, drafters: Mapping[str, Drafter], request: DraftRequest) -> None:
        """Open a session of each drafter."""
        for name, drafter in drafters.items():
            with self._timed(name), self._guarded(name, "open"):
                self._sessions[name] = drafter.open(request)

    def start_round(self, round_id: int) -> None:
        """Begin to count the seconds of another round."""
        self._round_id = round_id
        self._seconds, self._propose_s, self._limits = {}, {}, {}

    @kept_settings()
    def propose(self, round: Round, proposal: Proposal) -> None:
        """Let each drafter add to the round as much as it is allowed, or until one has added (mode ``first``)."""
        for name, session in list(self._sessions.items()):
            if round.room <= 0 or (self._is_first_wins and len(proposal)):
                return
            limit = self._limits[name] = self._lengths.limit(name, proposal.drafters, round.room)
            if limit == 0:
                continue
            terms = self._terms.get(name, _NO_TERMS)
            before = self._seconds.get(name, 0.0)
            with self._timed(name), self._guarded(name, "propose"):
                lend(round, name, session.propose, limit, may_draw=terms.may_draw)
            self._propose_s[name] = self._seconds[name] - before
            if name in self._sessions:
                self._hold_to_budget(name, terms.budget_s)

    @kept_settings()
    def commit(self, commit: Commit) -> None:
        """Tell every session the new authoritative ids."""
        for name, session in list(self._sessions.items()):
            with self._timed(name), self._guarded(name, "commit"):
                session.commit(commit)

    def shares(self, proposal: Proposal, *, num_evaluated: int, num_accepted: int, num_kept: int) -> list[DrafterShare]:
        """Return each drafter's part in the round; the counts are the round's, over the whole proposal."""
        shares = []
        for name, seconds in self._seconds.items():
            num_proposed = proposal.drafters.count(name)  # side by side: a round is lent to a drafter once
            start = proposal.drafters.index(name) if num_proposed else len(proposal)
            evaluated, accepted, kept = (
                min(max(count - start, 0), num_proposed) for count in (num_evaluated, num_accepted, num_kept)
            )
            shares.append(
                DrafterShare(
                    name=name,
                    limit=self._limits.get(name, 0),
                    start=start,
                    num_proposed=num_proposed,
                    num_evaluated=evaluated,
                    num_accepted=accepted,
                    num_kept=kept,
                    propose_s=self._propose_s.get(name, 0.0),
                    seconds=seconds,
                    entropies=_entropies(proposal.laws[start : start + evaluated]) if self._keep_entropies else (),
                )
            )
        return shares

    @kept_settings()
    def close(self) -> None:
        """End every session, the others too where an interrupt comes in one."""
        name = next(iter(self._sessions), None)
        if name is None:
            return
        session = self._sessions.pop(name)
        try:
            with self._guarded(name, "close"):
                session.close()
        finally:
            self.close()

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Add the seconds of a call to the drafter's."""
        start = self._clock()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - start

    @contextmanager
    def _guarded(self, name: str, call: str) -> Iterator[None]:
        """Let nothing that a drafter raises out; it switches the drafter off, ``DrafterExhausted`` without a complaint.

        Except the grammar's failure, which only ends the draft: it is the target's, where the target comes to it. And an
        interrupt or an exit, which are the user's: a signal comes wherever it likes. Other exceptions that are no
        ``Exception``, such as a panic in an extension module, are the drafter's too.
        """
        try:
            yield
        except GrammarError:
            pass
        except (KeyboardInterrupt, SystemExit):
            raise
        except DrafterExhausted as error:
            _logger.info("drafter '%s' is off for this request: %s", name, error)
            self._switch_off(name, f"off for the rest of the request: {type(error).__name__}", "drafter-exhausted")
        except OverBudget as error:
            _logger.warning("drafter '%s' is off for this request: %s", name, error)
            self._switch_off(name, _LATE, "drafter-late")
        except BaseException as error:
            _logger.warning("drafter '%s' is off for this request: %s failed", name, call, exc_info=error)
            self._switch_off(name, f"switched off: {call} raised {type(error).__name__}", "drafter-failed")

    def _hold_to_budget(self, name: str, budget_s: float | None) -> None:
        """Switch a drafter off whose proposal came too late. What it has added stays: nothing takes a token back."""
        seconds = self._propose_s[name]
        if budget_s is not None and seconds > budget_s:
            told = f"a proposal took {seconds * 1e3:,.0f} ms, of the {budget_s * 1e3:g} ms that 'budget_ms' allows"
            _logger.warning("drafter '%s' is off for this request: %s", name, told)
            self._switch_off(name, _LATE, "drafter-late")

    def _switch_off(self, name: str, message: str, code: EventCode) -> None:
        """End a drafter's session. An event may be kept or shared, so ``message`` holds no text of an exception's."""
        self.events.append(Event(self._round_id, name, message, code))
        session = self._sessions.pop(name, None)
        if session is not None:
            with self._guarded(name, "close"):
                session.close()


def _entropies(laws: list[Law]) -> tuple[float | None, ...]:
    if not any(laws):
        return ()
    return tuple(law.entropy() if law is not None else None for law in laws)
