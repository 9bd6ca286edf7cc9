"""Lark grammars: what is refused before one is compiled, because the parser would take it and not honour it, or not survive.

Looks at lines only; the grammar itself is the parser's to read.
"""

from __future__ import annotations

import re

import specframe

MOST_RULES = 1_000
"""The parser follows a chain of rules on the thread's stack, which 2,500 overflow."""

_REFUSED = (
    (re.compile(r"^[ \t]*(?P<it>%llguidance)\b", re.MULTILINE), "options would change the declared tokenisation"),
    (
        re.compile(r"^[ \t]*[?!]*\w+[ \t]*\[[^\]\n]*?\b(?P<it>max_tokens|stop|temperature)[ \t]*=", re.MULTILINE),
        "of a rule is not supported, for a text does not tell it",
    ),
    (re.compile("(?P<it>[\ud800-\udfff])"), "is no text"),
)
_RULE = re.compile(r"^[ \t]*[?!]*\w+[^:\n]*:|\"\$ref\"", re.MULTILINE)


def check(source: str) -> None:
    """Raise ``InvalidGrammar`` for what is refused, with its offset."""
    for pattern, problem in _REFUSED:
        found = pattern.search(source)
        if found is not None:
            what = ascii(found["it"])
            raise specframe.InvalidGrammar(
                "lark", f"{what} {problem}", offset=found.start("it"), way_out="leave it out"
            )
    if len(_RULE.findall(source)) > MOST_RULES:
        raise specframe.InvalidGrammar("lark", f"more than {MOST_RULES:,} rules and references are not supported")
