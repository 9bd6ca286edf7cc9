"""The file of results of a comparison, as JSON lines that a run appends and a report reads.

Knows neither engines nor statistics. A file begins with one ``header`` line; an ``arm`` line for each arm and a ``request``
line for each finished request follow, in the order in which they were measured. Each line is an object whose key ``line``
names its kind; its other keys are the fields of its class in ``lines.py``. A line is written whole or not at all, but for
the last one of a run that was killed, which a reader leaves out.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.identities import broken
from specframe.bench.lines import FORMAT, ArmRecord, Header, RequestRecord
from specframe.errors import InvalidResults, InvalidStrategy, ResultsNotWritten
from specframe.strategy import structure


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
    if problem := next(broken(structured), None):
        raise InvalidResults(f"{where}: {problem}")
    return structured


def _refuse(constant: str) -> None:
    raise ValueError(f"it has no {constant}")


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
