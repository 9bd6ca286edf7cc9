"""A drafter for specframe: propose the last token again. The place for a better idea is ``propose``.

Whatever it adds, the text stays the target's: a drafter can make generation slower, never different.
"""

from __future__ import annotations

from typing import Any

import attrs

import specframe


@attrs.frozen
class RepeatLastOptions:
    """What a strategy may set. ``max_tokens``: how often the last token is proposed again in a round."""

    max_tokens: int = attrs.field(default=2, validator=attrs.validators.ge(1))


class RepeatLast:
    """The drafter, one for an engine; opens a session for each generation."""

    def __init__(self, options: RepeatLastOptions, facts: specframe.TargetFacts) -> None:
        self._options = options

    def open(self, request: specframe.DraftRequest) -> RepeatLastSession:
        """Start a session; the prompt comes with its first commit."""
        return RepeatLastSession(self._options)

    def reset(self) -> None:
        """Forget what was learned from requests; here nothing is."""

    def close(self) -> None:
        """Release what the drafter holds; the engine goes away."""


class RepeatLastSession:
    """The drafter's part in one generation; what it learns from the text belongs here."""

    def __init__(self, options: RepeatLastOptions) -> None:
        self._options = options

    def propose(self, round: specframe.Round) -> None:
        """Add tokens to the round: ids by ``round.offer(id)``, or logits, from which the core draws, by ``round.draw(row)``."""
        for _ in range(self._options.max_tokens):
            if not round.offer(round.context[-1]):
                return

    def commit(self, commit: specframe.Commit) -> None:
        """Take note of what became text: the prompt first, then the ids of every round, whoever proposed them."""

    def close(self) -> None:
        """End the session."""


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register the drafter under its name; ``Needs`` says what it needs of a target."""
    register("repeat_last", RepeatLast, options=RepeatLastOptions, needs=specframe.Needs(cheap=True), api=1)
