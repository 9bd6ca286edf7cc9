"""Constraints: a grammar as a caller names it, and the compiled grammars of an engine.

Languages come from plugins, by name; knows none of them. What is in force is the language's grammar, its declared
tokenisation and where it begins; all three are part of the target's distribution and of the constraint's digest.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import attrs

from specframe.canonical import Canonical
from specframe.errors import InvalidRequest, PluginError, SpecframeError, described
from specframe.grammar import Grammar, TextGrammar
from specframe.manifest.digest import grammar_digest
from specframe.marker import AfterMarker
from specframe.plugins import Plugins
from specframe.proposal import TargetFacts

LANGUAGES = ("regex", "json_schema", "choice", "lark")
TOKENIZATIONS = ("any", "canonical")
MOST_COMPILED = 32


@attrs.frozen
class Constraint:
    """A grammar by language and source, its tokenisation (``any`` or ``canonical``), and the marker it begins behind."""

    language: str
    source: str
    tokenization: str = "any"
    after: str | int | None = None

    @property
    def digest(self) -> str:
        """The digest that a manifest pins as ``decoding.grammar``."""
        return grammar_digest(self.language, self.source, tokenization=self.tokenization, after=self.after)


def read_constraint(arguments: Mapping[str, Any], facts: TargetFacts) -> Constraint | None:
    """Return the constraint of a request's arguments, or None. Raises ``InvalidRequest``; compiles nothing."""
    given = [name for name in ("grammar", *LANGUAGES) if arguments.get(name) is not None]
    if len(given) > 1:
        raise InvalidRequest(
            given[1], f"excludes '{given[0]}'", arguments[given[1]], "a request takes at most one grammar"
        )
    tokenization, after = arguments.get("grammar_tokenization", "any"), arguments.get("grammar_after")
    if tokenization not in TOKENIZATIONS:
        raise InvalidRequest("grammar_tokenization", f"must be one of {', '.join(TOKENIZATIONS)}", tokenization)
    _check_marker(after, facts)
    if not given:
        for name, value, default in (("grammar_tokenization", tokenization, "any"), ("grammar_after", after, None)):
            if value != default:
                raise InvalidRequest(name, "needs a grammar", value, f"give one of {', '.join(LANGUAGES)}")
        return None
    if given[0] == "grammar":
        return None
    if facts.tokenizer is None:
        raise InvalidRequest(given[0], "needs a target with a tokenizer", arguments[given[0]], "give a 'grammar'")
    return Constraint(given[0], _SOURCES[given[0]](arguments[given[0]]), tokenization, after)


class Grammars:
    """The compiled grammars of an engine, the most recent ones kept."""

    def __init__(self, plugins: Plugins, facts: TargetFacts) -> None:
        self._plugins, self._facts = plugins, facts
        self._lock = threading.Lock()  # requests are checked outside the hold on the target
        self._compiled: OrderedDict[tuple[Constraint, frozenset[int]], Grammar] = OrderedDict()

    def compile(self, constraint: Constraint, stop_ids: frozenset[int]) -> Grammar:
        """Return the grammar in force, which allows ``stop_ids`` where its text is complete.

        Raises ``InvalidGrammar`` for a source that cannot be compiled, ``UnknownName`` for a language without a plugin,
        ``MissingPackage`` for one whose package is not installed, or ``PluginError``.
        """
        key = (constraint, stop_ids)
        with self._lock:
            if key not in self._compiled:
                facts = attrs.evolve(self._facts, stop_ids=stop_ids)
                grammar = self._compile(constraint, facts)
                self._compiled[key] = in_force(grammar, constraint.tokenization, constraint.after, facts)
                if len(self._compiled) > MOST_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(key)
            return self._compiled[key]

    def _compile(self, constraint: Constraint, facts: TargetFacts) -> Grammar:
        entry = self._plugins.grammar(constraint.language)
        try:
            grammar = entry.compile(constraint.source, facts)
        except SpecframeError:
            raise
        except Exception as error:
            cause = described(error)
            raise PluginError(
                f"grammar language '{entry.name}' of {entry.plugin} failed to compile a source: {cause}"
            ) from error
        if not is_grammar(grammar):
            raise PluginError(
                f"grammar language '{entry.name}' of {entry.plugin} must return a Grammar (got {type(grammar).__name__})"
            )
        return grammar


def is_grammar(value: Any) -> bool:
    """Tell whether a value has what a ``Grammar`` has."""
    return all(hasattr(value, name) for name in ("start", "mask", "advance", "is_final"))


def in_force(grammar: Grammar, tokenization: str, after: str | int | None, facts: TargetFacts) -> Grammar:
    """Return a grammar under a tokenisation, behind a marker."""
    if tokenization == "canonical":
        if not isinstance(grammar, TextGrammar):
            raise InvalidRequest(
                "grammar_tokenization", "must be 'any' for a grammar that is no TextGrammar", tokenization
            )
        grammar = Canonical(grammar)
    return AfterMarker(grammar, after, facts) if after is not None else grammar


def _check_marker(after: Any, facts: TargetFacts) -> None:
    if after is None:
        return
    if isinstance(after, str) and after:
        if facts.tokenizer is None:
            raise InvalidRequest("grammar_after", "as text needs a target with a tokenizer", after, "give a token id")
        if any("\ud800" <= character <= "\udfff" for character in after):
            raise InvalidRequest("grammar_after", "must be text without lone surrogates", after)
        return
    if isinstance(after, bool) or not isinstance(after, int) or not 0 <= after < facts.vocab_size:
        raise InvalidRequest("grammar_after", f"must be a text or an id in [0, {facts.vocab_size})", after)


def _text(name: str) -> Any:
    def source(value: Any) -> str:
        if not isinstance(value, str):
            raise InvalidRequest(name, "must be a text", value)
        return value

    return source


def _schema(value: Any) -> str:
    """Return a JSON Schema as JSON text; the order of keys stays, as it is the order of properties in the output."""
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            "json_schema", f"must be a JSON Schema, as an object or as JSON text: {error}", value
        ) from error


def _choices(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, list | tuple) or not all(isinstance(x, str) for x in value):
        raise InvalidRequest("choice", "must be a list of texts", value)
    if not value:
        raise InvalidRequest("choice", "must hold at least one text", value)
    return json.dumps(list(value), ensure_ascii=False)


_SOURCES = {"regex": _text("regex"), "json_schema": _schema, "choice": _choices, "lark": _text("lark")}
