"""The options of prompt lookup: pure data, checked when made.

Knows nothing about tokens or files: phrases are tokenised, and files read, when an engine makes the drafter.
"""

from __future__ import annotations

from typing import Any

import attrs

from specframe import InvalidStrategy

LENGTHS = ("trust", "fixed")


def _at_least_1(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStrategy(f"'{attribute.name}' must be an integer (got {value!r})")
    if value < 1:
        raise InvalidStrategy(f"'{attribute.name}' must be >= 1 (got {value!r})")


def _is_length(instance: Any, attribute: attrs.Attribute[str], value: str) -> None:
    if value not in LENGTHS:
        raise InvalidStrategy(f"'{attribute.name}' must be one of {', '.join(LENGTHS)} (got {value!r})")


def _are_strings(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    # A lone string would pass as a sequence of letters.
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) for item in value):
        raise InvalidStrategy(f"'{attribute.name}' must be a list of strings (got {value!r})")


@attrs.frozen
class PromptLookupOptions:
    """What prompt lookup matches, and how much it proposes.

    ``max_ngram``, ``min_ngram``: how many tokens must agree, longest tried first; ``max_tokens``: at most so many tokens
    per proposal, None for the round's room; ``length``: ``trust`` (a match of n tokens is followed for n - 1, for up to four
    times that after success, for half after failure) or ``fixed`` (always ``max_tokens``); ``phrases``: texts to look in when
    the context has no match; ``phrase_files``: UTF-8 files with one such text each, relative to the working directory. Raises
    ``InvalidStrategy``.
    """

    max_ngram: int = attrs.field(default=4, validator=_at_least_1)
    min_ngram: int = attrs.field(default=2, validator=_at_least_1)
    max_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least_1))
    length: str = attrs.field(default="trust", validator=_is_length)
    phrases: tuple[str, ...] = attrs.field(default=(), validator=_are_strings)
    phrase_files: tuple[str, ...] = attrs.field(default=(), validator=_are_strings)

    def __attrs_post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidStrategy(f"'min_ngram' must be <= 'max_ngram' (got {self.min_ngram} and {self.max_ngram})")
