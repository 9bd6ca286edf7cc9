"""The worker process: a drafter apart from the core, which asks for its proposals by messages.

Started by ``remote.py`` as ``python -m specframe.worker SOCKET LIFE``, with the numbers of two inherited file descriptors.
Imports neither torch nor numpy, whatever the drafter does. What it is told comes from the core and is trusted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specframe.errors import DrafterExhausted, ProposalError, described
from specframe.messages import Channel, Tag
from specframe.plugins import load_only
from specframe.proposal import Commit, Drafter, DraftRequest, DraftSession, Drawn, Proposal, Round, TargetFacts, lend
from specframe.sampling import SamplingPolicy
from specframe.strategy import structure

if TYPE_CHECKING:
    import torch

_logger = logging.getLogger("specframe")


def main() -> None:
    """Serve the core until it closes the connection, or dies."""
    connection, life = map(int, sys.argv[1:])
    end_with(life)
    with contextlib.suppress(OSError):
        os.dup2(2, 1)  # what a plugin prints must not stand in the output of the core
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # where memory ends, this process goes before the one that decodes
    with socket.socket(fileno=connection) as core:
        serve(Channel(core))


def end_with(life: int) -> None:
    """Let this process group end when the other end of a pipe closes, whatever it is doing.

    The kernel sends SIGIO, whose default is to end a process, or SIGKILL where it can, which nobody may block or ignore. A
    thread that reads the pipe would not do: it needs the interpreter's lock, which a drafter that hangs in an extension
    module may never give back.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGIO})
    fcntl.fcntl(life, fcntl.F_SETOWN, -os.getpgrp())
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(life, fcntl.F_SETFL, fcntl.fcntl(life, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([life], [], [], 0)[0]:  # it had closed before
        sys.exit(0)


def serve(channel: Channel) -> None:
    """Start the drafter that the first message names, and answer for it until the connection ends."""
    with contextlib.suppress(EOFError, ConnectionError):
        start = channel.receive()
        try:
            desk = Desk(start)
        except BaseException as error:
            channel.send({"failure": described(error)})
            return
        channel.send({"is_ready": True})
        try:
            while True:
                answer = desk.take(channel.receive())
                if answer is not None:
                    channel.send(answer)
        finally:
            desk.close()


class Desk:
    """One drafter, its session of the current request, and the ids that it knows of. ``start``: the core's first message."""

    def __init__(self, start: Mapping[str, Any]) -> None:
        entry = load_only(start["plugin"], start["distribution"]).drafter(start["drafter"])
        options = structure(start["options"], entry.options, f"options of drafter '{entry.name}'")
        facts = start["facts"]
        self._name = entry.name
        self._facts = TargetFacts(**{**facts, "stop_ids": frozenset(facts["stop_ids"])})
        self._drafter: Drafter = entry.factory(options, self._facts)
        self._session: DraftSession | None = None
        self._request = -1
        self._stop_ids: frozenset[int] = frozenset()
        self._ids: list[int] = []
        self._failure: BaseException | None = None  # of this session; told with the next answer

    def take(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Do what a message says; return the answer to one that waits for it."""
        match message["kind"]:
            case "open":
                self._open(message)
            case "commit":
                self._commit(message)
            case "propose":
                return self._propose(message)
            case "close":
                self._end_session()
            case "reset":
                self._drafter.reset()  # if it fails the process ends, and another one remembers nothing
        return None

    def close(self) -> None:
        """End the session and the drafter."""
        self._end_session()
        self._drafter.close()

    def _open(self, message: Mapping[str, Any]) -> None:
        self._end_session()
        self._request, self._failure, self._ids = message["request"], None, []
        self._stop_ids = frozenset(message["stop_ids"])
        request = DraftRequest(
            prompt_ids=tuple(message["prompt_ids"]),
            facts=self._facts,
            policy=_policy(message["policy"]),
            stop_ids=self._stop_ids,
        )
        with self._guarded():
            self._session = self._drafter.open(request)

    def _commit(self, message: Mapping[str, Any]) -> None:
        session = self._current(message)
        if session is None:
            return
        ids = tuple(message["ids"])
        self._ids += ids
        with self._guarded():
            session.commit(Commit(ids, message["start_pos"], message["num_proposed"], message["num_accepted"]))

    def _propose(self, message: Mapping[str, Any]) -> dict[str, Any]:
        proposal = Proposal()
        session = self._current(message)
        if session is not None:
            round = Round(
                _Offers([*self._ids, *message["provisional"]]),
                proposal,
                index=message["index"],
                room=message["room"],
                vocab_size=self._facts.vocab_size,
                stop_ids=self._stop_ids,
            )
            with self._guarded():
                lend(round, self._name, session.propose, may_draw=False)
        answer = {name: message[name] for name in Tag._fields} | {"ids": proposal.ids}
        if self._failure is not None:  # what was offered before it stays
            answer |= {"error": described(self._failure), "is_exhausted": isinstance(self._failure, DrafterExhausted)}
        return answer

    def _current(self, message: Mapping[str, Any]) -> DraftSession | None:
        """Return the session that a message is for, or None where it ended or failed."""
        return self._session if message["request"] == self._request and self._failure is None else None

    def _end_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with self._guarded():
                session.close()

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        """Keep what the drafter raises, whatever it is: it ends the session, and the process goes on."""
        try:
            yield
        except DrafterExhausted as error:
            self._failure = error
        except BaseException as error:
            _logger.warning("drafter '%s' failed in its worker", self._name, exc_info=error)
            self._failure = error


class _Offers:
    """A worker's side of a round; see ``proposal.RoundContext``. What a grammar forbids is cut by the core."""

    def __init__(self, ids: list[int]) -> None:
        self.ids: list[int] = ids

    def is_allowed(self, token: int) -> bool:
        return True

    def is_exhausted(self) -> bool:
        return False

    def draw(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None, node: int) -> Drawn:
        raise ProposalError("a drafter in a worker only offers")  # the round has said so before

    def push(self, token: int) -> None:
        self.ids.append(token)


def _policy(fields: Mapping[str, Any]) -> SamplingPolicy:
    """Return a policy from its fields as JSON holds them: pairs have become lists."""
    return SamplingPolicy(**{**fields, "logit_bias": tuple(map(tuple, fields["logit_bias"]))})


if __name__ == "__main__":
    main()
