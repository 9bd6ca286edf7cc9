"""Writing files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write a text file under its name only once it is complete on disk; an older file of the name stays until then.

    What is not a regular file, such as a pipe, is written directly. Raises ``OSError``; nothing half-made is left.
    """
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8", newline="\n")
        return
    path = path.resolve()  # a link's file is replaced, not the link
    handle, making = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".making", dir=path.parent)
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(making, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(making, path)
    except BaseException:
        Path(making).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
