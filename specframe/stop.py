"""When an output ends: stop ids, stop strings and budgets, asked of one token at a time.

Knows ids and text, and nothing about rounds: a token of a block is checked exactly as one that came alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import ahocorasick
import attrs

from specframe.errors import InvalidRequest
from specframe.text import TextDecoder


class StopString(NamedTuple):
    """What a chunk of text does to the stop strings.

    ``text``: what is certain to be output now; ``tail``: what is held, since it may begin a stop string; ``match``: the
    stop string that was completed, or None. The earliest end wins, and the longest string at that end.
    """

    text: str
    tail: str
    match: str | None


@attrs.frozen
class StopStrings:
    """Stop strings as an automaton; a search is a pure function of the held tail and the new chunk."""

    strings: tuple[str, ...] = attrs.field()

    @strings.validator
    def _check(self, attribute: attrs.Attribute[tuple[str, ...]], value: tuple[str, ...]) -> None:
        for string in value:
            if not isinstance(string, str) or not string:
                raise InvalidRequest("stop", "must hold non-empty strings", value)

    @cached_property
    def _automaton(self) -> ahocorasick.Automaton:
        automaton = ahocorasick.Automaton(ahocorasick.STORE_LENGTH)
        for string in self.strings:
            automaton.add_word(string)
        automaton.make_automaton()
        return automaton

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.strings))

    def search(self, tail: str, chunk: str) -> StopString:
        """Look for stop strings in ``tail + chunk``, where ``tail`` was held by the search before."""
        text = tail + chunk
        if not self.strings or not chunk:
            return StopString("", text, None) if self.strings else StopString(text, "", None)
        hit = next(self._automaton.iter(text), None)  # by end; the longest first at one end
        if hit is not None:
            end, length = hit[0] + 1, hit[1]
            return StopString(text[: end - length], "", text[end - length : end])
        longest = min(self._longest - 1, len(text))
        num_held = next((n for n in range(longest, 0, -1) if self._automaton.match(text[-n:])), 0)
        return StopString(text[: len(text) - num_held], text[len(text) - num_held :], None)


class Stopper:
    """The stop conditions of one generation; each emitted token is pushed once, in order.

    ``is_done`` holds from the first token that ends the output; ``reason`` is ``stop`` (a stop id, a stop string, or the
    caller's criterion) or ``length`` (the budget or the context limit); ``match`` is what stopped it, where it has a name.
    A stop wins over the budget at the same token.
    """

    def __init__(
        self,
        *,
        budget: int,
        stop_ids: frozenset[int],
        stop_strings: StopStrings,
        decoder: TextDecoder | None,
        criterion: Callable[[int], bool] | None = None,
    ) -> None:
        self.remaining = budget
        self.stop_ids = stop_ids
        self.reason: str | None = None
        self.match: int | str | None = None
        self._strings, self._decoder, self._criterion = stop_strings, decoder, criterion
        self._tail = ""
        self._ready: list[str] = []

    @property
    def is_done(self) -> bool:
        return self.reason is not None

    def push(self, token: int) -> bool:
        """Take note of one more token of the output; return whether it is the last."""
        assert not self.is_done
        self.remaining -= 1
        if self._push_text(token) is not None or token in self.stop_ids:
            self.reason = "stop"
            self.match = self.match if self.match is not None else token
        elif self._criterion is not None and self._criterion(token):
            self.reason = "stop"
        elif self.remaining == 0:
            self.reason = "length"
        return self.is_done

    def end(self, reason: str) -> None:
        """End the output for a reason of the engine's."""
        self.reason = self.reason or reason

    def take_text(self) -> str:
        """Return the text that became certain since the last call; with what was held once the output is done."""
        if self.is_done and not isinstance(self.match, str):
            self._ready += [self._tail, self._decoder.flush() if self._decoder else ""]
            self._tail, self._decoder = "", None
        text = "".join(self._ready)
        self._ready.clear()
        return text

    def _push_text(self, token: int) -> str | None:
        if self._decoder is None:
            return None
        found = self._strings.search(self._tail, self._decoder.push(token))
        self._tail = found.tail
        self._ready.append(found.text)
        self.match = found.match
        return found.match


def as_stop_strings(stop: str | Sequence[str] | None) -> StopStrings:
    """Return stop strings from what a caller may pass. Raises ``InvalidRequest`` for an empty string."""
    if stop is not None and not isinstance(stop, Iterable):
        raise InvalidRequest("stop", "must be a string or a list of strings", stop)
    return StopStrings(() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop))
