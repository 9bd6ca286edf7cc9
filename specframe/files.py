"""Writing files so that a reader, or a crash, never meets half of one; and finding the data that comes with specframe."""

from __future__ import annotations

import os
import secrets
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
    making = path.with_name(f".{secrets.token_hex(8)}.making")  # not of its name, which may be as long as names get
    try:
        with making.open("xb") as file:
            if path.exists():
                os.chmod(making, path.stat().st_mode & 0o777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # a name that is moved first would stand for an empty file after a loss of power
        os.replace(making, path)
    except BaseException:
        making.unlink(missing_ok=True)
        raise


def save(path: Path, content: str, *, field: str = "output") -> None:
    """Write a file that a user asked for, as a whole. Raises ``InvalidRequest`` naming ``field`` where it cannot be written."""
    try:
        write_whole(path, content)
    except (OSError, ValueError) as error:  # a path with a NUL is a ValueError
        raise InvalidRequest(field, _WRITABLE, str(path), getattr(error, "strerror", None) or str(error)) from error


def check_writable(path: Path, *, field: str = "output") -> None:
    """Raise ``InvalidRequest`` where a file could not be written, before the work of making what it is to hold."""
    if (obstacle := _obstacle(path)) is not None:
        raise InvalidRequest(field, _WRITABLE, str(path), obstacle)


def _obstacle(path: Path) -> str | None:
    if os.path.isdir(path):
        return "it is a folder"
    if path.exists() and not path.is_file():  # a device or a pipe, which is written directly
        return None if os.access(path, os.W_OK) else "it cannot be written"
    return None if os.access(path.parent, os.W_OK) else "its folder is not there or cannot be written"
