"""A drafter in a process of its own, as the core sees it: asked by messages, ended when it is late, started again.

Whatever the process does costs speed only. Knows sockets and processes; what runs on the other side is ``worker.py``'s.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import attrs

from specframe.errors import (
    DrafterExhausted,
    InvalidStrategy,
    OverBudget,
    PluginError,
    WorkerError,
    WorkerRestarting,
)
from specframe.messages import MOST_ANSWER_BYTES, Answer, Channel, Tag, read_answer, read_greeting
from specframe.plugins import Plugin
from specframe.proposal import Commit, DraftRequest, Needs, Round, TargetFacts
from specframe.sampling import SamplingPolicy
from specframe.strategy import DrafterUse

BUDGET_S = 1.0  # for a proposal, where the strategy gives none
START_S = 60.0  # for a process to import its plugin and make its drafter
CLOSE_S = 1.0  # for a drafter to close
_STATUS_S = 0.5  # between the end of a connection, or a kill, and that of the process
FIRST_DELAY_S, MOST_DELAY_S = 1.0, 60.0  # before a process is started again; doubled with each failure in a row

_FACTS = ("vocab_size", "context_limit", "speculation_limit", "dtype", "device")


def check_worker(use: DrafterUse, needs: Needs) -> None:
    """Raise ``InvalidStrategy`` for a drafter that cannot run in a worker, with the reason."""
    reasons = {
        "it draws, and what it would draw from does not pass between processes": needs.draws,
        "it reads the target's weights": bool(needs.views),
        "it reads the target's hidden states": needs.features is not None,
        "it reads the request's grammar": needs.grammar,
        "it needs the target's tokenizer": needs.tokenizer != "none" and needs.model is None,
        "this system has no process groups and sockets to inherit": os.name != "posix",
    }
    for reason, is_so in reasons.items():
        if is_so:
            raise InvalidStrategy(f"drafter '{use.use}' cannot run in a worker: {reason}; leave 'worker' out")


def start_worker(name: str, use: DrafterUse, plugin: Plugin, facts: TargetFacts) -> WorkerDrafter:
    """Return a drafter of a plugin in a process of its own, once it is ready.

    Raises ``PluginError`` where it does not start, ``InvalidStrategy`` for options that are no plain data.
    """
    try:
        json.dumps(dict(use.options))
    except (TypeError, ValueError) as error:
        raise InvalidStrategy(f"options of drafter '{use.use}' in a worker must be plain data: {error}") from error
    start = {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "drafter": use.use,
        "options": dict(use.options),
        "facts": {field: getattr(facts, field) for field in _FACTS} | {"stop_ids": sorted(facts.stop_ids)},
    }
    budget_s = BUDGET_S if use.budget_ms is None else use.budget_ms / 1e3
    drafter = WorkerDrafter(name, start, budget_s=budget_s)
    try:
        drafter.start()
    except WorkerError as error:
        raise PluginError(f"drafter '{use.use}' of {plugin} did not start in its worker: {error}") from error
    return drafter


class Process:
    """One worker process, from its start to its end. ``start``: the first message.

    When this object goes, or the interpreter ends, the process and those that it started are killed. A process that is
    forked from this one has no part in it.
    """

    def __init__(self, start: Mapping[str, Any]) -> None:
        ours, theirs = socket.socketpair()
        life, self._life = os.pipe()
        inherited = (theirs.fileno(), life)
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "specframe.worker", *map(str, inherited)],
                pass_fds=inherited,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(str(path) or os.getcwd() for path in sys.path)},
                # Ctrl-C is the core's, and what it starts can be killed with it. No session of its own: Linux shares the
                # processor by session, and would let every answer wait for its turn on a machine that is busy.
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(self._life)
            raise
        finally:
            theirs.close()
            os.close(life)
        self._socket = ours
        self._end = weakref.finalize(self, _kill, self._popen, ours, self._life)
        _running.add(self)
        self.is_ready = False
        self.channel = Channel(ours, most_bytes=MOST_ANSWER_BYTES)
        self.channel.send(start, timeout_s=START_S)

    @property
    def pid(self) -> int:
        """The operating system's number of the process."""
        return self._popen.pid

    @property
    def is_ours(self) -> bool:
        """Whether it was started by this process, and not by one that this one was forked from."""
        return self._end.alive

    def status(self, within_s: float) -> int | None:
        """Return its exit status, negative for a signal, or None where it is running still."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(within_s)
        return self._popen.returncode

    def kill(self) -> None:
        """End the process and those that it started, at once."""
        self._end()

    def close(self) -> None:
        """Let the process close its drafter, then end it."""
        if self._end.alive:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)
            self.status(CLOSE_S)
            self._end()

    def let_go(self) -> None:
        """Have no part in it any more: it belongs to the process that this one was forked from."""
        if self._end.detach() is not None:
            self._socket.close()
            os.close(self._life)
            self._popen.returncode = 0  # not this process's child, so that nobody waits for it


_running: weakref.WeakSet[Process] = weakref.WeakSet()


def _let_go_of_all() -> None:
    for process in list(_running):
        process.let_go()


if os.name == "posix":
    os.register_at_fork(after_in_child=_let_go_of_all)


def _kill(popen: subprocess.Popen[bytes], connection: socket.socket, life: int) -> None:
    connection.close()
    os.close(life)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)  # also where it has ended: what it started may be there
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(_STATUS_S)


class WorkerDrafter:
    """A drafter whose work is done in a process; see ``start_worker``.

    ``budget_s``: seconds for a proposal, the way there and back and what was left to do before it included; a process that is
    late is killed. One that ended is started again for a later request, after a while that doubles with every failure in
    a row. ``clock`` tells the seconds of that.
    """

    def __init__(
        self,
        name: str,
        start: Mapping[str, Any],
        *,
        budget_s: float = BUDGET_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self._start, self.budget_s, self._clock = name, start, budget_s, clock
        self.process: Process | None = None
        self._started_at = self._retry_at = 0.0
        self._delay_s = FIRST_DELAY_S
        self._num_requests = self._num_messages = self._epoch = 0

    def start(self) -> None:
        """Start the process and wait until it is ready. Raises ``WorkerError``."""
        self._spawn()
        self._greet(START_S)

    def open(self, request: DraftRequest) -> WorkerSession:
        """Start a session. Raises ``WorkerRestarting`` while the process is not back."""
        self._revive()
        self._num_requests += 1
        self.tell(
            "open",
            prompt_ids=request.prompt_ids,
            stop_ids=sorted(request.stop_ids),
            policy=_plain_policy(request.policy),
        )
        return WorkerSession(self)

    def reset(self) -> None:
        """Let the drafter forget everything learned from requests; a process that is not there has forgotten it."""
        if self.process is not None and self.process.is_ready:
            with contextlib.suppress(WorkerError):
                self.tell("reset")

    def close(self) -> None:
        """Close the drafter and end its process."""
        process, self.process = self.process, None
        if process is not None:
            process.close()

    def tell(self, kind: str, **fields: Any) -> Tag:
        """Send a message of the current request, and return what it is answered under."""
        process = self._living()
        self._num_messages += 1
        tag = Tag(self._num_requests, self._num_messages, self._epoch)
        try:
            process.channel.send({"kind": kind, **tag._asdict(), **fields}, timeout_s=self.budget_s)
        except TimeoutError:
            self.fail("it takes no more messages")
        except OSError:
            self.fail(self._ended())
        return tag

    def ask(self, kind: str, **fields: Any) -> Answer:
        """Send a message and return its answer; those to earlier messages that nobody waits for any more are dropped.

        Raises ``OverBudget`` for an answer that is late, and ``WorkerError``.
        """
        until = time.monotonic() + self.budget_s
        tag = self.tell(kind, **fields)
        channel = self._living().channel
        try:
            while (answer := read_answer(channel.receive(timeout_s=max(0.0, until - time.monotonic())))).tag != tag:
                if answer.tag > tag:
                    raise WorkerError("it answered what was not asked")
                if time.monotonic() > until:  # a flood of old answers is no answer
                    raise TimeoutError
        except TimeoutError:
            self._drop()
            raise OverBudget(
                f"its worker gave no answer within the {self.budget_s * 1e3:g} ms that 'budget_ms' allows, and was ended"
            ) from None
        except (EOFError, OSError):
            self.fail(self._ended())
        except WorkerError as error:
            self.fail(str(error))
        except BaseException:  # an interrupt: the answer will come, and nobody waits for it
            self._epoch += 1
            raise
        return answer

    def end_well(self) -> None:
        """Note that a request ended without a failure of the process."""
        self._delay_s = FIRST_DELAY_S

    def fail(self, reason: str) -> NoReturn:
        """Give the process up. Raises ``WorkerError``."""
        self._drop()
        raise WorkerError(f"the worker process of drafter '{self.name}' failed: {reason}")

    def _living(self) -> Process:
        if self.process is None:
            raise WorkerError(f"the worker process of drafter '{self.name}' is not there any more")
        if not self.process.is_ours:
            raise WorkerError(f"the worker process of drafter '{self.name}' belongs to another process")
        return self.process

    def _ended(self) -> str:
        """Say how the process ended, which closed the connection."""
        status = self._living().status(_STATUS_S)
        return f"it ended (exit status {status})" if status is not None else "it closed the connection"

    def _drop(self) -> None:
        """End the process; another one is started after a while."""
        process, self.process = self.process, None
        self._retry_at = self._clock() + self._delay_s
        self._delay_s = min(2 * self._delay_s, MOST_DELAY_S)
        if process is not None:
            process.kill()

    def _spawn(self) -> None:
        self._started_at = self._clock()
        try:
            self.process = Process(self._start)
        except OSError as error:
            self.fail(f"it could not be started ({error})")

    def _greet(self, timeout_s: float) -> None:
        """Wait for the process's first message."""
        process = self._living()
        try:
            failure = read_greeting(process.channel.receive(timeout_s=timeout_s))
        except TimeoutError:
            if self._clock() - self._started_at < START_S:
                raise
            self.fail(f"it was not ready within {START_S:g} s")
        except (EOFError, OSError):
            self.fail(f"{self._ended()} before it was ready")
        except WorkerError as error:
            self.fail(str(error))
        if failure is not None:
            self.fail(failure)
        process.is_ready = True

    def _revive(self) -> None:
        """Raise ``WorkerRestarting`` unless the process is ready; begin to start it where it is time."""
        if self.process is not None and not self.process.is_ours:
            self.process = None  # this process was forked, and gets one of its own
        if self.process is None:
            if self._clock() < self._retry_at:
                raise WorkerRestarting(f"its worker failed and starts again in {self._retry_at - self._clock():.0f} s")
            self._spawn()
        if not self._living().is_ready:
            try:
                self._greet(0.0)
            except TimeoutError:
                raise WorkerRestarting("its worker is starting") from None


class WorkerSession:
    """One generation's part in a worker. Commits are sent and not waited for; a failure comes with the next answer."""

    def __init__(self, drafter: WorkerDrafter) -> None:
        self._drafter, self._process = drafter, drafter.process
        self._num_known = 0
        self._was_answered = False

    def propose(self, round: Round) -> None:
        """Offer what the worker answers. Raises ``OverBudget``, ``WorkerError`` or ``DrafterExhausted``."""
        provisional = round.context[self._num_known :]
        answer = self._drafter.ask("propose", index=round.index, room=round.room, provisional=provisional)
        self._was_answered = True
        for token in answer.ids:
            if not round.offer(token):
                break
        if answer.error is not None:
            raise DrafterExhausted(answer.error) if answer.is_exhausted else WorkerError(answer.error)

    def commit(self, commit: Commit) -> None:
        """Tell the worker the new ids."""
        self._num_known = commit.start_pos + len(commit.ids)
        self._drafter.tell("commit", **attrs.asdict(commit))

    def close(self) -> None:
        """End the session in the worker, if that is there still."""
        if self._process is self._drafter.process is not None:
            self._drafter.tell("close")
            if self._was_answered:
                self._drafter.end_well()


def _plain_policy(policy: SamplingPolicy) -> dict[str, Any]:
    fields = attrs.asdict(policy, recurse=False)
    del fields["processors"]  # functions of this process
    return fields
