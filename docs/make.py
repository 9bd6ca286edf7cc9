"""Write the parts of the pages that are made: ``make pages``. A test asserts that they are current.

A part stands between ``<!-- table: NAME -->``, from a stored result, or ``<!-- made: NAME -->``, from the code, and
``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import picture
import reference
import tables

DOCS = Path(__file__).parent
PAGES = (*DOCS.glob("*.md"), DOCS.parent / "README.md")
MAKERS: dict[str, Callable[[str], str]] = {
    "table": tables.table,
    "made": lambda name: picture.link() if name == "picture" else reference.part(name),
}
_PART = re.compile(r"(<!-- (table|made): (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def current(text: str) -> str:
    """Return a page with its made parts as they should be."""
    return _PART.sub(lambda match: f"{match[1]}{MAKERS[match[2]](match[3])}{match[4]}", text)


if __name__ == "__main__":
    if (drawn := picture.speed()) is not None:
        picture.FILE.write_text(drawn, encoding="utf-8")
    for page in PAGES:
        page.write_text(current(page.read_text(encoding="utf-8")), encoding="utf-8")
