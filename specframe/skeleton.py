"""The skeleton of a drafter: the distribution under ``examples/third_party_drafter``, under the name that its author chose.

Knows files and names. What is written is what the examples show and the tests run, so it cannot fall behind.
"""

from __future__ import annotations

import keyword
import re
import shutil
from pathlib import Path

from specframe import plugins
from specframe.errors import InvalidRequest, SpecframeError
from specframe.files import data_folder
from specframe.strategy import shipped

_NAME = re.compile(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*")
_WRITTEN = ("pyproject.toml", "README.md", "*.py")


def write_skeleton(name: str, parent: Path) -> Path:
    """Write the distribution ``specframe-NAME`` into a new folder of that name under ``parent``, and return the folder.

    Raises ``InvalidRequest`` for a name that is none or is taken, a folder that is there already, or one that cannot be
    written; then nothing is left behind.
    """
    _check_name(name)
    source = data_folder("_skeleton", "examples/third_party_drafter")
    if source is None:
        raise SpecframeError("this installation lacks the skeleton; install specframe from a wheel or a whole checkout")
    folder = parent / f"specframe-{_dashed(name)}"
    try:
        folder.mkdir()
    except FileExistsError:
        raise InvalidRequest(
            "name", "must be that of a folder that is not there yet", str(folder), "nothing was written"
        ) from None
    except OSError as error:
        raise InvalidRequest(
            "output", "must be a folder that can be written", str(parent), str(error.strerror)
        ) from error
    try:
        for file in (path for pattern in _WRITTEN for path in sorted(source.glob(pattern))):
            text = _renamed(file.read_text(encoding="utf-8"), name)
            (folder / _renamed(file.name, name)).write_text(text, encoding="utf-8")
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InvalidRequest(
            "output", "must be a folder that can be written", str(parent), str(error.strerror)
        ) from error
    return folder


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidRequest("name", "must be lower-case words of letters and digits, joined by - or _", name)
    taken = {who: str(plugin) for plugin in plugins.load().all for who in (plugin.name, *plugin.drafters)}
    taken |= dict.fromkeys(("none", *shipped()), "a strategy that comes with specframe")
    owner = taken.get(_underscored(name))
    if owner is not None:
        raise InvalidRequest("name", f"must not be taken: it is {owner}", name)
    if keyword.iskeyword(_camel(name)):
        raise InvalidRequest("name", f"must not make the class '{_camel(name)}', a word of Python's own", name)


def _renamed(text: str, name: str) -> str:
    spellings = {"repeat_last": _underscored(name), "repeat-last": _dashed(name), "RepeatLast": _camel(name)}
    for old, new in spellings.items():
        text = text.replace(old, new)
    return text


def _underscored(name: str) -> str:
    return name.replace("-", "_")


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in _underscored(name).split("_"))
