"""Regular expressions as trees: the part of Python's syntax that a state machine over characters can honour.

``re`` is asked first, so that what is parsed here is valid. Every other construct is refused with its offset: none is
dropped, and none means anything else than in ``re.fullmatch``.
"""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from specframe import InvalidGrammar
from specframe_grammar.characters import Ranges, matching, matching_literal

MOST_REPEATS = 10_000
MOST_NESTED = 100


class Characters(NamedTuple):
    """One character of a set."""

    ranges: Ranges


class Sequence(NamedTuple):
    """Parts, one after the other."""

    parts: tuple[Node, ...]


class Alternatives(NamedTuple):
    """One of several branches."""

    branches: tuple[Node, ...]


class Repeat(NamedTuple):
    """A part, at least ``low`` and at most ``high`` times; None for any number."""

    part: Node
    low: int
    high: int | None


Node = Characters | Sequence | Alternatives | Repeat

_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\\\]])*\]", re.DOTALL)
_ESCAPE = re.compile(
    r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|0[0-7]{0,2}|[1-3][0-7]{2}|[1-9][0-9]?|.)",
    re.DOTALL,
)
_QUANTIFIER = re.compile(r"[*+?]|\{(?:(?P<exact>[0-9]+)|(?P<low>[0-9]*),(?P<high>[0-9]*))\}")
_COMMENT = re.compile(r"(?:\(\?#[^)]*\))*")
_GROUP = re.compile(r"\((?:\?P<[^>]+>|\?(?P<on>[aiLmsux]*)(?:-(?P<off>[imsx]+))?:|(?!\?))")
_GLOBAL_FLAGS = re.compile(r"\(\?(?P<flags>[aiLmsux]+)\)")
_REFUSED_GROUPS = (
    ("(?=", "a look-ahead"),
    ("(?!", "a look-ahead"),
    ("(?<", "a look-behind"),
    ("(?(", "a conditional"),
    ("(?>", "an atomic group"),
    ("(?P=", "a back-reference"),
)
_TYPE_FLAGS = {"a": re.ASCII, "u": re.UNICODE}


def parse(source: str) -> Node:
    """Return the tree of a regular expression. Raises ``InvalidGrammar`` with the offset of what is not supported."""
    try:
        re.compile(source)
    except re.error as error:
        raise InvalidGrammar("regex", error.msg, offset=error.pos) from error
    except (OverflowError, RecursionError, ValueError) as error:  # numbers, depth, flags that exclude others
        raise InvalidGrammar("regex", str(error)) from error
    return _Parser(source).parse()


class _Parser:
    """Recursive descent over a pattern that ``re`` accepts."""

    def __init__(self, source: str) -> None:
        self._source, self._pos, self._depth = source, 0, 0

    def parse(self) -> Node:
        flags = re.UNICODE.value
        self._skip_comments()
        while (opening := _GLOBAL_FLAGS.match(self._source, self._pos)) is not None:
            flags = self._changed(flags, opening["flags"], "")
            self._pos = opening.end()
            self._skip_comments()
        node = self._alternatives(flags)
        assert self._pos == len(self._source), "re has accepted the pattern"
        return node

    def _alternatives(self, flags: int) -> Node:
        branches = [self._sequence(flags)]
        while self._peek() == "|":
            self._pos += 1
            branches.append(self._sequence(flags))
        return branches[0] if len(branches) == 1 else Alternatives(tuple(branches))

    def _sequence(self, flags: int) -> Node:
        parts: list[Node] = []
        while True:
            self._skip_comments()
            if self._peek() in ("", "|", ")"):
                return Sequence(tuple(parts))
            part = self._part(flags, is_first=not parts)
            self._skip_comments()
            parts.append(self._quantified(part))

    def _part(self, flags: int, *, is_first: bool) -> Node:
        character = self._peek()
        if character == "(":
            return self._group(flags)
        if character == "[":
            return Characters(matching(self._take(_CLASS), flags))
        if character == "\\":
            return self._escape(flags, is_first=is_first)
        if character == ".":
            self._pos += 1
            return Characters(matching(".", flags))
        self._pos += 1
        if character in "^$":
            return self._anchor(character, is_first=is_first)
        return Characters(matching_literal(character, flags))

    def _anchor(self, anchor: str, *, is_first: bool) -> Node:
        """Return nothing for an anchor at its end of the whole pattern, where it says nothing; refuse any other."""
        is_outer = is_first if anchor in ("^", r"\A") else self._peek() in ("", "|")
        if self._depth or anchor in (r"\b", r"\B") or not is_outer:
            way_out = "the whole text is matched; leave anchors out"
            self._refuse(f"the anchor '{anchor}' here", way_out, self._pos - len(anchor))
        return Sequence(())

    def _escape(self, flags: int, *, is_first: bool) -> Node:
        start = self._pos
        escape = self._take(_ESCAPE)
        kind = escape[1]
        if kind in "AZzbB":
            return self._anchor(escape, is_first=is_first)
        if kind in "123456789" and len(escape) < 4:
            self._refuse("a back-reference", "write the alternatives out", start)
        if not kind.isalnum():
            return Characters(matching_literal(kind, flags))
        return Characters(matching(escape, flags))

    def _group(self, flags: int) -> Node:
        for opening, what in _REFUSED_GROUPS:
            if self._source.startswith(opening, self._pos):
                self._refuse(what, "write the alternatives out")
        opened = _GROUP.match(self._source, self._pos)
        assert opened is not None, "re has accepted the pattern"
        flags = self._changed(flags, opened["on"] or "", opened["off"] or "")
        if self._depth == MOST_NESTED:
            self._refuse(f"a group nested deeper than {MOST_NESTED}", "write it flatter")
        self._pos, self._depth = opened.end(), self._depth + 1
        node = self._alternatives(flags)
        assert self._peek() == ")", "re has accepted the pattern"
        self._pos, self._depth = self._pos + 1, self._depth - 1
        return node

    def _quantified(self, part: Node) -> Node:
        start = self._pos
        found = _QUANTIFIER.match(self._source, start)
        if found is None:
            return part
        self._pos = found.end()
        if self._peek() == "+":
            self._refuse("a possessive quantifier", "leave the '+' out", self._pos)
        if self._peek() == "?":  # the same texts, found in another order
            self._pos += 1
        low, high = _bounds(found)
        if max(low, high or 0) > MOST_REPEATS:
            self._refuse(f"a repeat of more than {MOST_REPEATS:,}", "use * or a smaller bound", start)
        return Repeat(part, low, high) if high != 0 else Sequence(())

    def _changed(self, flags: int, on: str, off: str) -> int:
        if "x" in on:
            self._refuse("the flag 'x'", "write the pattern without white space and comments")
        for name, flag in _TYPE_FLAGS.items():
            if name in on:
                flags = flags & ~(re.ASCII | re.UNICODE) | flag
        for name, flag in (("i", re.IGNORECASE), ("s", re.DOTALL)):
            if name in on:
                flags |= flag
            if name in off:
                flags &= ~flag
        return int(flags)

    def _skip_comments(self) -> None:
        found = _COMMENT.match(self._source, self._pos)
        assert found is not None
        self._pos = found.end()

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._source, self._pos)
        assert found is not None, "re has accepted the pattern"
        self._pos = found.end()
        return found[0]

    def _peek(self) -> str:
        return self._source[self._pos : self._pos + 1]

    def _refuse(self, what: str, way_out: str, offset: int | None = None) -> NoReturn:
        raise InvalidGrammar(
            "regex", f"{what} is not supported", offset=self._pos if offset is None else offset, way_out=way_out
        )


def _bounds(found: re.Match[str]) -> tuple[int, int | None]:
    if found[0] in "*+?":
        return {"*": (0, None), "+": (1, None), "?": (0, 1)}[found[0]]
    if found["exact"] is not None:
        return int(found["exact"]), int(found["exact"])
    return int(found["low"] or 0), int(found["high"]) if found["high"] else None
