"""Reading a page back: its elements, texts and tables, and everything in it that could ask for something."""

from __future__ import annotations

import re
from html.parser import HTMLParser

FETCHED = ("src", "srcset", "href", "xlink:href", "action", "data", "poster", "background", "ping")
VOID = {"meta", "link", "br", "img", "input", "hr"}


class PageReader(HTMLParser):
    """Reads a page strictly: whatever is opened is closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.styles: list[str] = []
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        assert len(given) == len(attrs), f"<{tag}> says {attrs}"
        self.tags.append((tag, given))
        if tag == "table":
            self.tables.setdefault(self._place(), [])
        elif tag == "tr":
            self.tables[self._place()].append([])
        elif tag in ("td", "th"):
            self.tables[self._place()][-1].append("")
        elif tag == "data":
            self.tables[self._place()][-1][-1] = given["value"] + "="
        if tag not in VOID:
            self._open.append((tag, given.get("id")))

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open, tag
        opened, _ = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"

    def handle_data(self, data):
        inside = [tag for tag, _ in self._open]
        if "style" in inside:
            self.styles.append(data)
            return
        self.text.append(data)
        if "td" in inside or "th" in inside:
            cell = self.tables[self._place()][-1][-1]
            self.tables[self._place()][-1][-1] = cell if cell.endswith("=") else cell + data

    def _place(self) -> str:
        """Return the id of the nearest figure or section, and which of its tables this is."""
        return next(name for tag, name in reversed(self._open) if tag in ("figure", "section") and name)

    @property
    def ids(self) -> list[str]:
        return [given["id"] for _, given in self.tags if given.get("id")]

    def requests(self) -> list[str]:
        """Return everything that a browser would fetch or run."""
        found = []
        for tag, given in self.tags:
            if tag in ("script", "iframe", "object", "embed", "base", "form", "video", "audio", "img", "image"):
                found.append(f"<{tag}>")
            for name, value in given.items():
                if name.startswith("on"):
                    found.append(f"{name}={value}")
                if name in FETCHED and not (value or "").startswith(("#", "data:,")):
                    found.append(f"{name}={value}")
                if name != "title" and re.search(r"url\((?!#)|javascript:|@import", value or ""):
                    found.append(f"{name}={value}")
        for style in self.styles:
            found += re.findall(r"url\([^#].*?\)|@import[^;]*", style)
        return found

    def numbers(self, place: str) -> list[list[float | str]]:
        """Return the rows of a table below its head; numbers in full."""
        _, *rows = self.tables[place]
        return [[float(cell[:-1]) if cell.endswith("=") else cell for cell in row] for row in rows]
