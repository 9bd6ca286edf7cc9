"""What a killed run leaves behind, and whether another may go on with it.

Each stage of a run keeps its work in a folder with ``started.json``: what the work is made from, and the code that had a hand
in it. Knows files and digests; nothing about what a stage does.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from specframe._version import __version__
from specframe.errors import InvalidRequest, LoadError, SpecframeError, described
from specframe.files import write_whole
from specframe.manifest.digest import canonical

_STARTED = "started.json"
_WRITABLE = "must be a folder that can be written, on a disk with room"

Code = dict[str, str]


def code_versions() -> Code:
    """Return the versions of what trains, and the SHA-256 of the training code itself."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return {
        "specframe": __version__,
        "training": hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest(),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }


def short_digest(made_from: dict[str, Any]) -> str:
    """Return a name for work that is made from this and nothing else."""
    return hashlib.sha256(canonical(made_from)).hexdigest()[:12]


def require_writable(output: Path) -> None:
    """Raise ``InvalidRequest`` where a folder could not be made or written, before the work that goes into it."""
    there = next(path for path in (output.absolute(), *output.absolute().parents) if path.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        reason = f"'{there}' is a file" if not there.is_dir() else f"'{there}' is not yours to write"
        raise InvalidRequest("output", _WRITABLE, str(output), reason)


@contextmanager
def writing_to(output: Path) -> Iterator[None]:
    """Turn what a disk refuses into one ``InvalidRequest``; what was written before is whole, and a next run goes on."""
    try:
        yield
    except SpecframeError:
        raise
    except OSError as error:
        raise InvalidRequest(
            "output",
            _WRITABLE,
            str(output),
            f"{error.strerror or error}; what is done is kept",
        ) from error


def damaged(file: Path, error: Exception) -> LoadError:
    """Return the error for a file of work that cannot be read."""
    return LoadError(f"'{file}' is damaged ({described(error)}); remove it, and a next run makes it again")


def take_up(folder: Path, made_from: dict[str, Any], code: Code | None) -> list[Code]:
    """Begin a stage's folder, or go on in one; return the code that had a hand in it, in order.

    ``code``: of this run, or None where it leaves the work as it is. Raises ``InvalidRequest`` for a folder whose work is
    made from something else, naming what differs.
    """
    file = folder / _STARTED
    if file.is_file():
        try:
            started = json.loads(file.read_text(encoding="utf-8"))
            different = _differences(started["made_from"], made_from)
            hands: list[Code] = [dict(code) for code in started["code"]]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise _other_work(folder, f"{_STARTED} is damaged") from error
        if different:
            raise _other_work(folder, ", ".join(different))
    elif folder.is_dir() and any(folder.iterdir()):
        raise _other_work(folder, f"no {_STARTED}")
    else:
        hands = []
        folder.mkdir(parents=True, exist_ok=True)
    if code is not None and hands[-1:] != [code]:
        hands = [*hands, code]
        write_whole(file, json.dumps({"made_from": made_from, "code": hands}, indent=2) + "\n")
    return hands


def changes(hands: list[Code]) -> str:
    """Return in words what is new in the last code, or nothing where it is the first or the same."""
    if len(hands) < 2:
        return ""
    before, now = hands[-2:]
    return ", ".join(f"{name} {before.get(name)} -> {now[name]}" for name in now if before.get(name) != now[name])


def _differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    old, new = _flat(before), _flat(now)
    return sorted(name for name in {**old, **new} if canonical(old.get(name)) != canonical(new.get(name)))


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inner = _flat(value) if isinstance(value, dict) else {"": value}
        flat |= {f"{name}.{part}".rstrip("."): item for part, item in inner.items()}
    return flat


def _other_work(folder: Path, what: str) -> InvalidRequest:
    return InvalidRequest(
        "output",
        "must be a new folder, or one whose text was begun with the same target, prompts, sealed list and settings",
        f"{folder}: {what}",
        f"remove '{folder}' to begin anew",
    )
