"""Every exception that specframe raises on purpose.

One base class; a child is also the builtin that it refines, where there is one, so that ``except ValueError`` in a caller's
code keeps working. A message says what was wrong, the rule, what was got, and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any


class SpecframeError(Exception):
    """Base of all specframe errors. They pickle with their attributes, so that they pass between processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[SpecframeError], args: tuple[Any, ...], state: dict[str, Any]) -> SpecframeError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


def described(error: BaseException) -> str:
    """Return the kind of an error and its message, where it has one that can be read."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose message cannot be read"


class InvalidRequest(SpecframeError, ValueError):
    """A generation request breaks a rule; nothing was emitted.

    ``field``, ``rule`` and ``value`` carry the parts of the message.
    """

    def __init__(self, field: str, rule: str, value: Any, way_out: str = "") -> None:
        self.field, self.rule, self.value = field, rule, value
        hint = f"; {way_out}" if way_out else ""
        super().__init__(f"'{field}' {rule} (got {value!r}){hint}")


class InvalidGrammar(SpecframeError, ValueError):
    """A grammar cannot be compiled, or no text of this tokenizer satisfies it; nothing was emitted.

    ``language``, ``problem``, ``offset`` (of the character in the source, or None) carry the parts of the message.
    """

    def __init__(self, language: str, problem: str, *, offset: int | None = None, way_out: str = "") -> None:
        self.language, self.problem, self.offset = language, problem, offset
        where = f" at offset {offset}" if offset is not None else ""
        hint = f"; {way_out}" if way_out else ""
        super().__init__(f"{language} grammar: {problem}{where}{hint}")


class InvalidStrategy(SpecframeError, ValueError):
    """A strategy or a drafter's options are not valid."""


class InvalidPlan(SpecframeError, ValueError):
    """A comparison's plan is not valid: corrupt, changed after it was fixed, or of a newer format."""


class InvalidResults(SpecframeError, ValueError):
    """A file of a comparison's results is not valid: corrupt, of another format or of another plan."""


class ResultsNotWritten(SpecframeError, OSError):
    """A file of results cannot be written, or its disk is full; what was written before is kept."""


class InvalidWorkload(SpecframeError, ValueError):
    """A corpus of prompts is not valid: a source that is not there, a line that is none, a prompt that stands twice."""


class InvalidManifest(SpecframeError, ValueError):
    """A manifest file is not valid: corrupt, cut off, changed by hand, or of a newer format."""


class InvalidReceipt(SpecframeError, ValueError):
    """A receipt is not valid: corrupt, cut off, changed by hand, or of a later version.

    Or a coarse one is to be replayed, or one asked for that a result was passed on without.
    """


class IncompatibleManifest(SpecframeError, ValueError):
    """A drafter does not fit the target, or a run is not the one that its strategy pins; raised before weights load.

    Or a receipt was asked for after the files of its model had changed.

    ``findings`` holds what refuses: ``Finding`` records of rules, or ``Difference`` records of a pin.
    """

    def __init__(self, message: str, *, findings: Iterable[Any] = ()) -> None:
        self.findings = tuple(findings)
        super().__init__(message)


class UnknownName(SpecframeError, LookupError):
    """A drafter, grammar or strategy that nothing registers was named."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        self.kind, self.name, self.known = kind, name, sorted(known)
        close = difflib.get_close_matches(name, self.known, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ";"
        installed = ", ".join(self.known) if self.known else "none"
        super().__init__(f"unknown {kind} '{name}'{hint} installed: {installed}")


class PluginError(SpecframeError, RuntimeError):
    """A plugin is broken, or two plugins claim one name; names plugin, distribution and version."""


class ProposalError(SpecframeError, ValueError):
    """A drafter broke the proposal contract; raised inside the drafter's own code."""


class DrafterExhausted(SpecframeError):
    """Raised by a drafter that can propose nothing more in this request, as is expected: it is off, and not broken."""


class OverBudget(SpecframeError, TimeoutError):
    """A drafter took longer over a proposal than the strategy's ``budget_ms``; it is off for the rest of the request."""


class WorkerError(SpecframeError, RuntimeError):
    """A drafter's worker process ended, failed, or sent what is no answer."""


class WorkerRestarting(DrafterExhausted):
    """A drafter's worker process failed in an earlier request and is not back yet."""


class UnsupportedModel(SpecframeError, TypeError):
    """The model cannot be decoded exactly by this engine; raised at load, naming the property."""


class MissingPackage(SpecframeError, ImportError):
    """An optional package is needed; the message holds the install command."""


class LoadError(SpecframeError, OSError):
    """A model or its tokenizer could not be loaded; the message holds the cause."""


class CacheFolderError(SpecframeError, OSError):
    """The cache folder cannot be written, or its disk is full; nothing half-made is left there."""


class CacheError(SpecframeError, RuntimeError):
    """The cache was misused; nothing has changed."""


class StaleEpoch(SpecframeError, RuntimeError):
    """A call carried the epoch of a request that was cancelled or replaced; nothing has changed."""


class EngineBusy(SpecframeError, RuntimeError):
    """The target or the stream is in use: waiting would never end, or the call ended before its turn. Nothing of it ran."""


class StreamNotFinished(SpecframeError, RuntimeError):
    """The result or the receipt of a stream was asked for before its end."""


class TargetError(SpecframeError, RuntimeError):
    """The target failed: its forward raised, or a row that counts is not a distribution.

    ``round_id`` and ``row`` say where (row i predicts proposal i; the last row predicts the extra token).
    """

    def __init__(self, message: str, *, round_id: int | None = None, row: int | None = None) -> None:
        self.round_id, self.row = round_id, row
        where = f" in round {round_id}" if round_id is not None else ""
        where += f", row {row}" if row is not None else ""
        super().__init__(f"{message}{where}" if where else message)


class GrammarError(TargetError):
    """The grammar failed; its mask is part of the target's distribution, so this is a failure of the target."""


class GenerationError(SpecframeError, RuntimeError):
    """Generation ended early; what was already emitted is kept.

    ``token_ids`` and ``text`` hold everything that was emitted before the failure, ``results`` the finished ones of several
    generations; the cause is chained.
    """

    def __init__(self, message: str, *, token_ids: Sequence[int], text: str, results: Sequence[Any] = ()) -> None:
        self.token_ids, self.text, self.results = tuple(token_ids), text, tuple(results)
        super().__init__(
            f"{message} ({len(self.token_ids)} tokens were emitted before; they are in .token_ids and .text)"
        )
