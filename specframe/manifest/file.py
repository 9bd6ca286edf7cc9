"""Manifests on disk: TOML, written the same way every time, checked as a whole when read.

Knows the format and its versions, and nothing about models.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specframe.errors import InvalidManifest, InvalidStrategy
from specframe.files import save
from specframe.manifest.digest import problem
from specframe.manifest.identity import FORMAT, Manifest, plain
from specframe.strategy import structure

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_REMAKE = "make it again with 'specframe manifest create'"
_HEAD = (
    "# A compatibility manifest: which target this is, and under which decoding identity.\n"
    "# Made by `specframe manifest create`; `specframe manifest show` says what each digest covers.\n\n"
)


def dumps(manifest: Manifest) -> str:
    """Return the manifest as TOML."""
    tables = {"format": FORMAT, "digest": manifest.digest, **plain(manifest)}
    return _HEAD + "\n".join(_lines(tables)) + "\n"


def loads(text: str, where: str = "manifest") -> Manifest:
    """Return the manifest that a TOML text holds.

    Raises ``InvalidManifest``, naming ``where`` and the key, for a text that is not valid, of another format, with a digest
    of an unknown scheme, or changed since it was made.
    """
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidManifest(f"{where} is not valid TOML: {error}; {_REMAKE}") from error
    try:
        return from_plain(data, where)
    except TypeError as error:
        raise InvalidManifest(f"{where} holds what no manifest has: {error}; {_REMAKE}") from error


def from_plain(data: dict[str, Any], where: str) -> Manifest:
    """Return the manifest that plain data with ``format`` and ``digest`` holds; raises like ``loads``."""
    form = data.pop("format", None)
    if not isinstance(form, int) or isinstance(form, bool):
        raise InvalidManifest(f"{where} is not a manifest: it has no 'format' number; {_REMAKE}")
    if form != FORMAT:
        raise InvalidManifest(f"{where} has format {form}; this specframe reads format {FORMAT}: upgrade specframe")
    stated = data.pop("digest", None)
    if (told := _digest_problem(data)) is not None:
        raise InvalidManifest(f"{where}: {told}; upgrade specframe, or {_REMAKE}")
    try:
        manifest = structure(data, Manifest, where)
    except InvalidStrategy as error:
        raise InvalidManifest(f"{error}; {_REMAKE}") from error
    if stated != manifest.digest:
        raise InvalidManifest(
            f"{where} was changed or cut off after it was made: it states {stated}, its fields give {manifest.digest}; "
            f"{_REMAKE}"
        )
    return manifest


def to_plain(manifest: Manifest) -> dict[str, Any]:
    """Return plain data that ``from_plain`` reads and JSON can hold."""
    return {"format": FORMAT, "digest": manifest.digest, **plain(manifest)}


def read(path: str | Path) -> Manifest:
    """Read a manifest file. Raises ``InvalidManifest`` naming the file and the key."""
    path = Path(path)
    where = f"manifest '{path.name}'"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidManifest(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidManifest(f"{where} is not a text file: {error}; {_REMAKE}") from error
    return loads(text, where)


def write(manifest: Manifest, path: str | Path) -> None:
    """Write a manifest file; equal manifests give equal bytes. Raises ``InvalidRequest`` where it cannot be written."""
    save(Path(path), dumps(manifest))


def _digest_problem(data: Mapping[str, Any], path: str = "") -> str | None:
    for key, value in data.items():
        here = f"{path}{key}"
        if isinstance(value, Mapping):
            told = _digest_problem(value, f"{here}.")
        elif isinstance(value, str) and re.match(r"[a-z-]+-v\d+:", value):
            told = problem(value) and f"'{here}' {problem(value)}"
        else:
            told = None
        if told:
            return told
    return None


def _lines(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key in sorted(tables):
        name = f"{path}{_key(key)}"
        yield from ("", f"[{name}]")
        yield from _lines(dict(sorted(tables[key].items())), f"{name}.")


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):  # in a list
        return "{" + ", ".join(f"{_key(key)} = {_value(item)}" for key, item in sorted(value.items())) + "}"
    assert isinstance(value, int | float), value
    return repr(value)


def _string(text: str) -> str:
    # JSON's escapes are TOML's, but for the one control character that JSON leaves as it is.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
