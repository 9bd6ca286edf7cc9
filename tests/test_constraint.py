"""Constraints: what a request may name, how it is compiled and kept, and every error with its way out."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from grammars import FACTS, STOP_IDS, TOKENIZER, ending_target

from specframe import (
    Engine,
    Grammar,
    InvalidGrammar,
    InvalidRequest,
    MissingPackage,
    PluginError,
    Strategy,
    TargetFacts,
    UnknownName,
)
from specframe.canonical import Canonical
from specframe.constraint import MOST_COMPILED, Constraint, Grammars, read_constraint
from specframe.marker import AfterMarker
from specframe.plugins import GrammarEntry, Plugin, Plugins
from specframe.testing import TableTarget


class Stub:
    """A grammar that allows everything and remembers what it was compiled from."""

    start = 0

    def __init__(self, source, facts):
        self.source, self.facts = source, facts

    def mask(self, state):
        return np.ones(len(TOKENIZER), dtype=bool)

    def advance(self, state, token):
        return state

    def is_final(self, state):
        return True


class Compiler:
    def __init__(self, error=None):
        self.sources, self.error = [], error

    def __call__(self, source, facts):
        self.sources.append(source)
        if self.error is not None:
            raise self.error
        return Stub(source, facts)


def plugins_with(compile, *names):
    plugin = Plugin("stub", "stub-dist", "1.0")
    plugin.grammars = {name: GrammarEntry(name, compile, str(plugin)) for name in names or ("regex",)}
    return Plugins([plugin])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"regex": "a", "choice": ["b"]}, "'choice' excludes 'regex' .*at most one grammar"),
        ({"grammar": Stub("", FACTS), "lark": "start: /a/"}, "'lark' excludes 'grammar'"),
        ({"regex": 5}, "'regex' must be a text"),
        ({"lark": b"x"}, "'lark' must be a text"),
        ({"choice": "yes"}, "'choice' must be a list of texts"),
        ({"choice": []}, "'choice' must hold at least one text"),
        ({"choice": ["a", 1]}, "'choice' must be a list of texts"),
        ({"json_schema": "{"}, "'json_schema' must be a JSON Schema"),
        ({"json_schema": {"a": {1, 2}}}, "'json_schema' must be a JSON Schema"),
        ({"regex": "a", "grammar_tokenization": "best"}, "must be one of any, canonical"),
        ({"grammar_tokenization": "canonical"}, "needs a grammar .*give one of regex"),
        ({"grammar_after": "x"}, "needs a grammar"),
        ({"regex": "a", "grammar_after": ""}, "must be a text or an id"),
        ({"regex": "a", "grammar_after": 10_000}, "must be a text or an id"),
        ({"regex": "a", "grammar_after": min(STOP_IDS)}, "must not be a stop id"),
        ({"regex": "a", "grammar_after": 7, "stop_ids": [7]}, "must not be a stop id"),
        ({"regex": "a", "grammar_after": "</s>"}, "must not be a stop id"),
        ({"regex": "a", "grammar_after": "\ud800"}, "must be text without lone surrogates"),
        ({"grammar": Stub("", FACTS), "grammar_tokenization": "canonical"}, "no TextGrammar"),
        ({"grammar": 5}, "must be a Grammar"),
    ],
)
def test_wrong_arguments_are_told_by_name(arguments, message):
    """Before anything is compiled or emitted."""
    engine = Engine(ending_target(), strategy="none")
    with pytest.raises(InvalidRequest, match=message):
        engine.generate([1], **arguments)
    assert engine.target.num_forwards == 0


def test_a_target_without_a_tokenizer_is_told():
    target = TableTarget({}, vocab_size=4, default=[0.0] * 4)
    with pytest.raises(InvalidRequest, match="'regex' needs a target with a tokenizer"):
        Engine(target, strategy="none").generate([1], regex="a")
    with pytest.raises(InvalidRequest, match="as text needs a target with a tokenizer"):
        Engine(target, strategy="none").generate([1], grammar=Stub("", FACTS), grammar_after="x")


def test_schemas_keep_the_order_of_their_keys():
    """It is the order of properties in the output, and part of the identity."""
    schema = {"properties": {"b": {}, "a": {}}, "type": "object"}
    read = [read_constraint({"json_schema": given}, FACTS) for given in (schema, json.dumps(schema, indent=4))]
    assert read[0] == read[1] == Constraint("json_schema", json.dumps(schema))
    assert read_constraint({}, FACTS) is read_constraint({"regex": None}, FACTS) is None


def test_digests_tell_languages_sources_and_how_they_are_in_force():
    """All of it is part of the target's declared distribution."""
    made = [
        Constraint("regex", "a"), Constraint("lark", "a"), Constraint("regex", "b"), Constraint("regex", "a", "canonical"),
        Constraint("regex", "a", after="x"), Constraint("regex", "a", after=7),
    ]  # fmt: skip
    assert len({constraint.digest for constraint in made}) == len(made)
    assert all(constraint.digest.startswith("grammar-v1:sha256:") for constraint in made)


def test_a_grammar_is_compiled_once_for_a_source_and_stop_ids():
    """And forgotten beyond a bound, the least recently used first."""
    compile = Compiler()
    grammars = Grammars(plugins_with(compile), FACTS)
    first = grammars.compile(Constraint("regex", "0"), STOP_IDS)
    for n in range(1, MOST_COMPILED):
        grammars.compile(Constraint("regex", str(n)), STOP_IDS)
    assert grammars.compile(Constraint("regex", "0"), STOP_IDS) is first
    grammars.compile(Constraint("regex", "new"), STOP_IDS)
    assert grammars.compile(Constraint("regex", "0"), STOP_IDS) is first
    assert len(compile.sources) == MOST_COMPILED + 1
    grammars.compile(Constraint("regex", "1"), STOP_IDS)
    assert len(compile.sources) == MOST_COMPILED + 2
    other = grammars.compile(Constraint("regex", "0"), frozenset({5}))
    assert other is not first
    assert other.facts.stop_ids == {5}


def test_the_requests_own_stop_ids_end_the_text():
    engine = Engine(ending_target(), strategy="none", plugins=plugins_with(Compiler()))
    request = engine._request([1], {"regex": "a", "stop_ids": [7]})
    assert request.grammar.facts.stop_ids == {7}
    assert request.constraint == Constraint("regex", "a")


def test_tokenisation_and_marker_are_put_around_the_compiled_grammar():
    engine = Engine(ending_target(), strategy="none")
    arguments = {"regex": "abc", "grammar_tokenization": "canonical", "grammar_after": "x"}
    assert isinstance(engine._request([1], arguments).grammar, AfterMarker)
    assert isinstance(engine._request([1], {**arguments, "grammar_after": None}).grammar, Canonical)


def test_missing_languages_and_broken_plugins_are_told():
    """With what is installed, and with the cause."""
    engine = Engine(ending_target(), strategy="none", plugins=Plugins([]))
    with pytest.raises(UnknownName, match="unknown grammar 'regex'; installed: none"):
        engine.generate([1], regex="a")
    for error, kind, message in (
        (KeyError("x"), PluginError, "grammar language 'regex' of plugin 'stub' of stub-dist 1.0 failed to compile"),
        (InvalidGrammar("regex", "bad", offset=3), InvalidGrammar, "regex grammar: bad at offset 3"),
        (MissingPackage("pip install it"), MissingPackage, "pip install it"),
    ):
        engine = Engine(ending_target(), strategy="none", plugins=plugins_with(Compiler(error)))
        with pytest.raises(kind, match=message):
            engine.stream([1], regex="a")
        assert engine.target.num_forwards == 0


def test_what_is_no_grammar_is_told_with_its_plugin():
    """Prevents a plugin's mistake from surfacing as an attribute error in a round."""
    engine = Engine(ending_target(), strategy="none", plugins=plugins_with(lambda source, facts: None))
    with pytest.raises(PluginError, match=r"of plugin 'stub' of stub-dist 1.0 must return a Grammar .got NoneType"):
        engine.generate([1], regex="a")


def test_a_grammar_is_compiled_once_for_all_threads():
    """Prevents a request from another thread from compiling it again, or from finding it forgotten half-way."""
    compiler = Compiler()

    def compile_slowly(source, facts):
        time.sleep(0.05)
        return compiler(source, facts)

    grammars = Grammars(plugins_with(compile_slowly), FACTS)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: grammars.compile(Constraint("regex", "a"), STOP_IDS), range(4)))
    assert compiler.sources == ["a"]
    assert all(grammar is made[0] for grammar in made)


def test_a_disabled_plugin_is_told():
    """A strategy that disables the plugin leaves no languages."""
    engine = Engine(ending_target(), strategy=Strategy(disable=("grammar",)))
    with pytest.raises(UnknownName, match="unknown grammar 'regex'"):
        engine.generate([1], regex="a")


def test_the_protocol_is_what_a_stub_satisfies():
    grammar: Grammar = Stub("", TargetFacts(vocab_size=4))
    assert grammar.is_final(0)
