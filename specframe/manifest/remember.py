"""Results that were computed once, in the cache folder; losing them costs time and nothing else.

An entry's name is a digest of its key: no path is written down.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specframe.demo import cache_folder
from specframe.files import write_whole
from specframe.manifest.digest import canonical

MOST_ENTRIES = 1000


def remember(kind: str, key: Any, make: Callable[[], Any]) -> Any:
    """Return the JSON value that was made for this key before, else make it and keep it."""
    path = _folder() / f"{kind}-{hashlib.sha256(canonical(key)).hexdigest()[:40]}.json"
    with contextlib.suppress(_Unreadable):
        kept = _read(path)
        with contextlib.suppress(OSError):
            os.utime(path)  # what is asked for is not the oldest
        return kept
    value = make()
    with contextlib.suppress(OSError):  # a cache folder that cannot be written makes things slow, not wrong
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps({"sum": _sum(value), "value": value}))
        _forget_oldest(path.parent)
    return value


def remembered(kind: str) -> list[Any]:
    """Return every value of a kind that is kept, whatever its key; what cannot be read is left out."""
    values = []
    for path in sorted(_folder().glob(f"{kind}-*.json")):
        with contextlib.suppress(_Unreadable):
            values.append(_read(path))
    return values


class _Unreadable(Exception):
    """An entry is not there, or not whole."""


def _folder() -> Path:
    return cache_folder() / "manifests"


def _read(path: Path) -> Any:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["sum"] == _sum(kept["value"]):
            return kept["value"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _Unreadable from error
    raise _Unreadable


def _forget_oldest(folder: Path) -> None:
    """Keep the folder from growing for ever: of too many entries the older half goes."""
    entries = list(folder.iterdir())
    if len(entries) > MOST_ENTRIES:
        by_age = sorted(entries, key=lambda entry: entry.stat().st_mtime)
        for entry in by_age[: len(entries) // 2]:
            entry.unlink(missing_ok=True)


def stamp(file: Path) -> list[Any]:
    """Return path, size in bytes and time of a file: what a file that was not touched keeps."""
    status = file.stat()
    return [str(file.resolve()), status.st_size, status.st_mtime_ns]


def _sum(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
