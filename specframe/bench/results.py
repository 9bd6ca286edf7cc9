"""The raw results of a comparison: what each request gave and cost, as JSON lines that a run appends and a report reads.

Knows neither engines nor statistics. A file begins with one ``header`` line; an ``arm`` line for each arm and a ``request``
line for each finished request follow, in the order in which they were measured. Each line is an object whose key ``line``
names its kind; its other keys are the fields of the class below. A line is written whole or not at all, but for the last
one of a run that was killed, which a reader leaves out.

Seconds are wall time, bytes are bytes, energy is in joules. None stands for what was not measured or cannot be.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from specframe.errors import InvalidResults, InvalidStrategy, ResultsNotWritten
from specframe.positions import PositionStats
from specframe.records import DrafterStats
from specframe.strategy import structure

FORMAT = 1
PLAIN, ACCEPTED, CORRECTION, EXTRA = "plain", "accepted", "correction", "extra"
PHASES = ("prefill", "draft", "verify", "decide", "commit", "emit", "other")


@attrs.frozen
class Header:
    """What a file of results belongs to.

    ``plan``: the plan as data (``Plan.as_data()``), ``plan_digest`` its digest; ``machine``: the class of machine of the run
    (``machine_class()``); ``versions`` by library; ``energy``: where joules are read from, or "not available".
    """

    plan_digest: str
    plan: Mapping[str, Any]
    machine: Mapping[str, str]
    versions: Mapping[str, str]
    energy: str
    format: int = FORMAT


@attrs.frozen
class ByteCounts:
    """What an arm holds, each number counted by its own rule (see ``memory.py``).

    ``artifact``: weight files on disk; ``logical``: of every part as if it stood alone, by name; ``deduplicated``: storages
    counted once; ``incremental``: of those, what is added to plain decoding; ``peak_resident``: of a process that loads
    the arm and generates once; ``unknown``: drafters that do not tell what they hold.
    """

    artifact: int
    logical: Mapping[str, int]
    deduplicated: int
    incremental: int
    peak_resident: int
    unknown: tuple[str, ...] = ()


@attrs.frozen
class ArmRecord:
    """What an arm costs once, measured in a process of its own.

    ``target_load_s``: L_t, until the target can be asked; ``drafters_load_s``: L_d, what making the drafters took after it.
    All are None where the plan asks for no such measurement.
    """

    arm: str
    target_load_s: float | None = None
    drafters_load_s: float | None = None
    bytes: ByteCounts | None = None


@attrs.frozen
class Rounds:
    """The rounds of a request, in columns: entry i of each is round i's, and round 0 is the prefill.

    ``after_s``: seconds after the forward: judging, correction, commit and rollback; ``draft_s``, ``forward_s`` as in
    ``RoundRecord``. Empty where an arm does not tell of rounds.
    """

    num_proposed: tuple[int, ...] = ()
    num_emitted: tuple[int, ...] = ()
    draft_s: tuple[float, ...] = ()
    forward_s: tuple[float, ...] = ()
    after_s: tuple[float, ...] = ()


class Origin(NamedTuple):
    """Where a token of the output comes from.

    ``how``: ``plain``, the target's own where nothing was proposed; ``accepted``, proposed by ``drafter``; ``correction``,
    the target's own in place of ``drafter``'s rejected one; ``extra``, the target's own after a fully accepted proposal.
    """

    how: str
    drafter: str | None = None

    @classmethod
    def parse(cls, text: str) -> Origin:
        """Read one as it is stored: ``how``, or ``how:drafter``."""
        how, _, drafter = text.partition(":")
        return cls(how, drafter or None)

    def __str__(self) -> str:
        return f"{self.how}:{self.drafter}" if self.drafter else self.how


@attrs.frozen
class RequestRecord:
    """One finished request.

    - Which: ``arm``; ``index``, ``kind`` (its stratum) and ``name`` of the plan's item; ``repeat``, from 0; ``seed``, None when
      greedy; ``session``: which start of the run measured it, from 0, and ``order``: when among its pair's arms.
    - Output: ``token_ids``, a stop id included; ``pieces``: the text that each of them adds, which make up ``text``;
      ``finish_reason``: ``stop``, ``length`` or None where an arm does not tell; ``origins``: of each token (``Origin``, as
      text), empty where an arm does not tell; ``judged``: whether the item's judge accepts ``text``, None without one;
      ``error``: what ended the request early, None for nothing. A failed request counts as no time.
    - Time: ``end_to_end_s``: from the call to its return; ``first_token_s``: until the first tokens were there, of which there
      were ``num_first``; ``decode_s``: the rest; ``phases``: seconds by ``PHASES``, of which ``other`` is all else of
      ``end_to_end_s``.
    - Counts: ``num_prompt``, ``num_target_calls``, ``num_rounds``; ``positions``: what became of the first, second, ...
      token of a proposal, whoever made it; ``drafters``: each one's own counts, seconds and (entropy in nats, whether
      accepted) pairs; ``rounds``.
    - What it ran under: ``exactness``, ``kernel``, ``length_policy`` as in ``Result``, None for a reference arm; ``events``: a
      text each, which begins with its code (``records.EVENT_CODES``).
    - ``peak_resident_bytes``: of the process during the request, all arms' models included; ``energy_j``.
    """

    arm: str
    index: int
    kind: str
    name: str
    repeat: int
    session: int
    order: int
    num_prompt: int
    seed: int | None = None
    token_ids: tuple[int, ...] = ()
    pieces: tuple[str, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    origins: tuple[str, ...] = ()
    judged: bool | None = None
    error: str | None = None
    end_to_end_s: float | None = None
    first_token_s: float | None = None
    num_first: int = 0
    decode_s: float | None = None
    phases: Mapping[str, float] = attrs.field(factory=dict)
    num_target_calls: int | None = None
    num_rounds: int | None = None
    positions: tuple[PositionStats, ...] = ()
    drafters: Mapping[str, DrafterStats] = attrs.field(factory=dict)
    rounds: Rounds = Rounds()
    exactness: str | None = None
    kernel: str | None = None
    length_policy: str | None = None
    events: tuple[str, ...] = ()
    peak_resident_bytes: int | None = None
    energy_j: float | None = None

    @property
    def event_codes(self) -> set[str]:
        """What kinds of events there were."""
        return {event.partition(":")[0] for event in self.events}

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from every other of the file: arm, index and repeat."""
        return self.arm, self.index, self.repeat


@attrs.frozen
class Results:
    """A file of results, read. ``num_bytes``: its length up to the end of the last whole line."""

    header: Header
    arms: Mapping[str, ArmRecord]
    requests: tuple[RequestRecord, ...]
    num_bytes: int


_BEGINNING = b'{"line": "header"'
_KINDS: dict[str, type[Any]] = {"header": Header, "arm": ArmRecord, "request": RequestRecord}


def read_results(path: str | Path) -> Results:
    """Read a file of results, without a line that was not finished.

    Raises ``InvalidResults`` for a file that cannot be read, is of another format, says a thing twice, or breaks an identity
    between its own counters.
    """
    path = Path(path)
    where = f"results '{path.name}'"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidResults(f"{where} cannot be read: {error.strerror}") from error
    whole = data[: data.rfind(b"\n") + 1]
    lines = [
        _read_line(line, f"{where}, line {number}") for number, line in enumerate(whole.split(b"\n")[:-1], start=1)
    ]
    header = lines[0] if lines else None
    if not isinstance(header, Header):
        raise InvalidResults(f"{where} must begin with a line of the kind 'header'; is it a file of 'compare run'?")
    arms: dict[str, ArmRecord] = {}
    requests: dict[tuple[str, int, int], RequestRecord] = {}
    for number, record in enumerate(lines[1:], start=2):
        if isinstance(record, RequestRecord) and record.key not in requests:
            requests[record.key] = record
        elif isinstance(record, ArmRecord) and record.arm not in arms:
            arms[record.arm] = record
        else:
            raise InvalidResults(f"{where}, line {number}: says again what an earlier line says")
    return Results(header, arms, tuple(requests.values()), len(whole))


def is_unbegun(path: Path) -> bool:
    """Tell whether a file holds nothing, or part of its first line only: what is left of a run that was killed at once."""
    with open(path, "rb") as file:
        data = file.read(len(_BEGINNING))
        return _BEGINNING.startswith(data) and b"\n" not in file.read()


def _read_line(line: bytes, where: str) -> Header | ArmRecord | RequestRecord:
    try:
        record = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InvalidResults(f"{where}: is not JSON ({error})") from error
    kind = _KINDS.get(record.pop("line", None)) if isinstance(record, dict) else None
    if kind is None:
        raise InvalidResults(f"{where}: must be an object whose 'line' is one of {', '.join(_KINDS)}")
    if kind is Header and record.get("format") != FORMAT:
        raise InvalidResults(
            f"{where}: has format {record.get('format')!r}; this specframe reads and writes {FORMAT}; "
            "read it with the version that wrote it, or run the plan again into a new file"
        )
    try:
        structured: Header | ArmRecord | RequestRecord = structure(record, kind, where)
    except InvalidStrategy as error:
        raise InvalidResults(str(error)) from error
    if broken := next(_broken(structured), None):
        raise InvalidResults(f"{where}: {broken}")
    return structured


def _refuse(constant: str) -> None:
    raise ValueError(f"it has no {constant}")


def _broken(record: Header | ArmRecord | RequestRecord) -> Iterator[str]:
    """Tell which identities between its fields a line breaks: such a line was not written by a run."""
    if isinstance(record, ArmRecord):
        yield from _not_seconds(record, ("target_load_s", "drafters_load_s"))
        if record.bytes is not None and record.bytes.peak_resident < 1:
            yield f"'bytes.peak_resident' must be >= 1 (got {record.bytes.peak_resident})"
    elif isinstance(record, RequestRecord):
        yield from _not_seconds(record, ("end_to_end_s", "first_token_s", "decode_s"))
        yield from _broken_output(record)
        yield from _broken_counts(record)


def _not_seconds(record: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 <= value < math.inf:
            yield f"'{name}' must be a number of seconds >= 0 (got {value!r})"


def _broken_output(record: RequestRecord) -> Iterator[str]:
    num_tokens = len(record.token_ids)
    if record.error is None and None in (record.end_to_end_s, record.first_token_s, record.decode_s):
        yield "a request without an error must have its seconds"
    if not 0 <= record.num_first <= num_tokens:
        yield f"'num_first' must be 0 to the number of tokens, {num_tokens} (got {record.num_first})"
    for name in ("pieces", "origins"):
        if len(getattr(record, name)) not in (0, num_tokens):
            yield f"'{name}' must have an entry for each of {num_tokens} tokens, or none"
    if "".join(record.pieces) != record.text:
        yield "'pieces' must make up 'text'"
    for origin in dict.fromkeys(record.origins):
        if Origin.parse(origin).how not in (PLAIN, ACCEPTED, CORRECTION, EXTRA):
            yield f"'origins' must hold {PLAIN}, {ACCEPTED}, {CORRECTION} or {EXTRA} (got {origin!r})"


def _broken_counts(record: RequestRecord) -> Iterator[str]:
    rounds, positions, drafters = record.rounds, record.positions, record.drafters.values()
    columns = attrs.astuple(rounds, recurse=False)
    if len({len(column) for column in columns}) > 1:
        yield "the columns of 'rounds' must be equally long"
    if any(not 0 <= seconds < math.inf for column in columns[2:] for seconds in column):
        yield "'rounds' must hold numbers of seconds >= 0"
    if rounds.num_emitted and sum(rounds.num_emitted) != len(record.token_ids):
        yield "the rounds must have emitted all tokens, and no more"
    for index, (proposed, decided, evaluated, accepted, kept) in enumerate(map(attrs.astuple, positions)):
        before = positions[index - 1].num_accepted if index else proposed
        if not 0 <= kept <= accepted <= evaluated <= min(decided, before) or decided > proposed:
            yield f"the counts of 'positions[{index}]' must not exceed one another"
    reached = [
        sum(count > index for count in rounds.num_proposed) for index in range(max(rounds.num_proposed, default=0))
    ]
    if rounds.num_proposed and reached != [one.num_proposed for one in positions]:
        yield "the rounds must have proposed what 'positions' counts"
    if record.phases and record.phases.keys() != set(PHASES):
        yield f"'phases' must have {', '.join(PHASES)}, or nothing"
    for name in ("num_proposed", "num_evaluated", "num_accepted"):
        if drafters and sum(getattr(one, name) for one in drafters) != sum(getattr(one, name) for one in positions):
            yield f"'{name}' of the drafters must make up that of 'positions'"
    num_kept = sum(one.num_kept for one in positions)
    origins = Counter(record.origins)
    if origins and num_kept != sum(count for text, count in origins.items() if Origin.parse(text).how == ACCEPTED):
        yield "'origins' must hold as many accepted tokens as 'positions' kept"
    if not all(math.isfinite(entropy) for one in drafters for entropy, _ in one.entropies):
        yield "entropies must be finite numbers of nats"


class ResultWriter:
    """Appends lines to a file of results; each is on the disk when the call returns.

    ``num_bytes``: what is kept of the file, so that a line that was not finished is cut off; 0 begins a new one. Raises
    ``ResultsNotWritten``; what was written before stays as it was.
    """

    def __init__(self, path: str | Path, *, num_bytes: int = 0) -> None:
        self._path = Path(path)
        try:
            self._file = open(self._path, "ab", buffering=0)  # noqa: SIM115  # closed by close()
            self._file.truncate(num_bytes)
        except OSError as error:
            raise not_written(self._path, error) from error
        self._num_bytes = num_bytes

    def write(self, record: Header | ArmRecord | RequestRecord) -> None:
        """Append a line."""
        kind = next(name for name, cls in _KINDS.items() if isinstance(record, cls))
        text = json.dumps({"line": kind, **attrs.asdict(record)}, ensure_ascii=False, allow_nan=False)
        data = text.encode(errors="backslashreplace") + b"\n"  # an unpaired surrogate is JSON as an escape only
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):  # a reader leaves half a line out
                self._file.truncate(self._num_bytes)
            raise not_written(self._path, error) from error
        self._num_bytes += len(data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> ResultWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def not_written(path: Path, error: OSError) -> ResultsNotWritten:
    """Return the error of a file that cannot be written, with the way out."""
    return ResultsNotWritten(
        f"results '{path.name}' cannot be written: {error.strerror}; what is finished is in the file, and the same command "
        "goes on from there"
    )
