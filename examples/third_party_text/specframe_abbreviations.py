"""A drafter that works on text: it spells out abbreviations from a table that its user edits.

Where the text has come to ``HTTP`` it proposes `` (Hypertext Transfer Protocol)``, and where it has come to a part of that, the
rest. The text itself is the target's, which may write something else each time.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import attrs

import specframe

TAIL = 32  # tokens of the text that are looked at


@attrs.frozen
class AbbreviationsOptions:
    """``file``: a TOML file of ``SHORT = "what it stands for"``, relative to the working directory."""

    file: str


class Abbreviations:
    """The drafter; holds the table and the target's tokenizer."""

    def __init__(self, options: AbbreviationsOptions, facts: specframe.TargetFacts) -> None:
        if facts.tokenizer is None:
            raise specframe.InvalidStrategy("abbreviations reads text, and this target has no tokenizer")
        self._tokenizer = facts.tokenizer
        self._forms = {short: f"{short} ({meaning})" for short, meaning in read_table(options.file).items()}

    def open(self, request: specframe.DraftRequest) -> AbbreviationsSession:
        """Start a session; the context of each round is all it needs."""
        return AbbreviationsSession(self._tokenizer, self._forms)

    def reset(self) -> None:
        """Do nothing: nothing is learned."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class AbbreviationsSession:
    """One generation; it keeps nothing."""

    def __init__(self, tokenizer: Any, forms: dict[str, str]) -> None:
        self._tokenizer, self._forms = tokenizer, forms

    def propose(self, round: specframe.Round) -> None:
        """Offer what is missing of the longest form that has begun."""
        text = self._tokenizer.decode(round.context[-TAIL:])
        rest = max((missing(text, short, form) for short, form in self._forms.items()), key=len, default="")
        for token in self._tokenizer.encode(rest, add_special_tokens=False):
            if not round.offer(token):
                return

    def commit(self, commit: specframe.Commit) -> None:
        """Do nothing: the round's context holds the text."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def missing(text: str, short: str, form: str) -> str:
    """Return what is missing of a form at the end of a text, where at least ``short`` stands; else an empty text."""
    ends = range(len(form) - 1, len(short) - 1, -1)
    return next((form[end:] for end in ends if text.endswith(form[:end])), "")


def read_table(file: str) -> dict[str, str]:
    """Read a table. Raises ``InvalidStrategy`` for a file that is none."""
    try:
        table = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # it is not there, or no TOML
        raise specframe.InvalidStrategy(f"the table of abbreviations '{file}' cannot be read: {error}") from error
    if not all(isinstance(meaning, str) for meaning in table.values()):
        raise specframe.InvalidStrategy(f"the table of abbreviations '{file}' must hold texts alone, as HTTP = \"...\"")
    return table


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``abbreviations``, which reads the target's ids as text."""
    needs = specframe.Needs(tokenizer="same", cheap=True)
    register("abbreviations", Abbreviations, options=AbbreviationsOptions, needs=needs, api=1)
