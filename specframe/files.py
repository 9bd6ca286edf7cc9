"""Writing files so that a reader, or a crash, never meets half of one; and finding the data that comes with specframe."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from specframe.errors import InvalidRequest

_WRITABLE = "must be a file that can be written"


def data_folder(in_wheel: str, in_checkout: str) -> Path | None:
    """Return a folder of data that comes with specframe: where a wheel has it in the package, else a checkout beside it."""
    package = Path(__file__).resolve().parent
    return next((path for path in (package / in_wheel, package.parent / in_checkout) if path.is_dir()), None)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under its name only once it is complete; an older file of the name stays until then. Text is UTF-8.

    What is not a regular file, such as a pipe, is written directly. Raises ``OSError``; nothing half-made is left.
    """
    data = content.encode() if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()  # a link's file is replaced, not the link
    handle, making = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".making", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(making, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(making, path)
    except BaseException:
        Path(making).unlink(missing_ok=True)
        raise


def save(path: Path, content: str, *, field: str = "output") -> None:
    """Write a file that a user asked for, as a whole. Raises ``InvalidRequest`` naming ``field`` where it cannot be written."""
    try:
        write_whole(path, content)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise InvalidRequest(field, _WRITABLE, str(path), getattr(error, "strerror", None) or str(error)) from error


def check_writable(path: Path, *, field: str = "output") -> None:
    """Raise ``InvalidRequest`` where a file could not be written, before the work of making what it is to hold."""
    if os.path.isdir(path) or not os.access(path.parent, os.W_OK):
        reason = "it is a folder" if os.path.isdir(path) else "its folder is not there or cannot be written"
        raise InvalidRequest(field, _WRITABLE, str(path), reason)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
