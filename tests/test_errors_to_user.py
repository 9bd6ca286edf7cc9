"""What a user does wrong, through the public entry points: each one readable error, and the engine as good as before."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from types import ModuleType

import pytest
from models import PROMPT, engine_on, random_table, shared_model, tiny_model

import specframe
from specframe import (
    DrafterUse,
    Engine,
    InvalidRequest,
    InvalidStrategy,
    PluginError,
    Strategy,
    TransformersTarget,
    UnknownName,
    UnsupportedModel,
    plugins,
)


def with_plugins(monkeypatch, **modules):
    """Make entry points that load these modules the only ones, under names of their own."""

    class Point(EntryPoint):
        def load(self):
            module = modules[self.name]
            if isinstance(module, Exception):
                raise module
            return module

    points = [Point(name, f"{name}:plugin", plugins.GROUP) for name in modules]
    monkeypatch.setattr(plugins, "entry_points", lambda group: points)


def plugin(name):
    module = ModuleType(f"plugin_{name}")

    @specframe.hookimpl
    def specframe_register_drafters(register):
        register(name, lambda options, facts: None, options=DrafterUse, needs=specframe.Needs(), api=1)

    module.specframe_register_drafters = specframe_register_drafters
    return module


CASES = {
    "empty prompt": (InvalidRequest, lambda engine: engine.generate([]), "at least one token"),
    "prompt beyond the context": (InvalidRequest, lambda engine: engine.generate([1] * 65), "context of 64 tokens"),
    "ids out of range": (InvalidRequest, lambda engine: engine.generate([1, 64]), r"\[0, 64\)"),
    "negative temperature": (InvalidRequest, lambda engine: engine.generate(PROMPT, temperature=-1), ">= 0"),
    "a stop list with an empty string": (
        InvalidRequest,
        lambda engine: engine.generate(PROMPT, stop=[""]),
        "non-empty",
    ),
    "a batch": (InvalidRequest, lambda engine: engine.generate([[1], [2]]), "one sequence"),
    "an unknown argument": (InvalidRequest, lambda engine: engine.generate(PROMPT, topk=3), "did you mean 'top_k'"),
    "unknown drafter": (
        UnknownName,
        lambda engine: Engine(engine.target, strategy="prompt_lokup"),
        "did you mean 'prompt_lookup'",
    ),
    "unknown drafter in a strategy": (
        UnknownName,
        lambda engine: Engine(engine.target, strategy=Strategy(drafters=(DrafterUse("prompt_lokup"),))),
        "did you mean 'prompt_lookup'",
    ),
    "unknown option": (
        InvalidStrategy,
        lambda engine: Engine(
            engine.target, strategy=Strategy(drafters=(DrafterUse("prompt_lookup", {"max_ngrams": 3}),))
        ),
        "unknown key 'max_ngrams'; allowed: .*max_ngram",
    ),
    "a model that is in training": (
        UnsupportedModel,
        lambda engine: TransformersTarget(tiny_model().train()),
        "model.eval",
    ),
}


@pytest.mark.parametrize(("kind", "call", "message"), CASES.values(), ids=CASES)
def test_bad_input_is_one_readable_error(kind, call, message):
    """An error from deep inside a library does not tell the user what to change."""
    engine = engine_on(TransformersTarget(shared_model()))
    expected = engine.generate(PROMPT, max_new_tokens=3).token_ids
    with pytest.raises(kind, match=message) as caught:
        call(engine)
    assert isinstance(caught.value, specframe.SpecframeError)
    assert "\n" not in str(caught.value)
    assert engine.generate(PROMPT, max_new_tokens=3).token_ids == expected


def test_a_broken_plugin_is_told_when_it_is_named_and_only_then(monkeypatch):
    """One broken distribution must stop neither the others nor an engine that does not use it."""
    with_plugins(monkeypatch, broken=ImportError("no module named 'moonshine'"), fine=plugin("fine"))
    with pytest.raises(
        PluginError, match=r"plugin 'broken' .* is broken: ImportError: no module named 'moonshine'"
    ) as caught:
        Engine(random_table(), strategy="broken")
    assert isinstance(caught.value.__cause__, ImportError)
    engine = Engine(random_table())
    assert engine.generate([1, 2], max_new_tokens=3).token_ids == tuple(random_table().greedy([1, 2], 3))
    with pytest.raises(UnknownName, match="installed: draft_model, fine, grammar, none") as unknown:
        Engine(random_table(), strategy="brokne")
    assert any("moonshine" in note for note in unknown.value.__notes__)


def test_two_plugins_of_one_name_are_told_apart(monkeypatch):
    """A name that the last one wins runs a stranger's code under a known name."""
    with_plugins(monkeypatch, first=plugin("lookup"), second=plugin("lookup"))
    with pytest.raises(
        PluginError, match=r"drafter 'lookup' is registered by two plugins: plugin 'first' .* and plugin 'second'"
    ):
        Engine(random_table(), strategy="lookup")
    assert Engine(random_table()).generate([1, 2], max_new_tokens=1).token_ids
    Engine(random_table(), strategy=Strategy(drafters=(DrafterUse("lookup", {"use": "x"}),), disable=("second",)))


def test_a_factory_that_fails_is_blamed(monkeypatch):
    """A plugin's failure must name the drafter and chain its cause."""
    module = ModuleType("plugin_bad")

    @specframe.hookimpl
    def specframe_register_drafters(register):
        def factory(options, facts):
            raise AttributeError("oops")

        register("bad", factory, options=DrafterUse, needs=specframe.Needs(), api=1)

    module.specframe_register_drafters = specframe_register_drafters
    with_plugins(monkeypatch, bad=module)
    strategy = Strategy(drafters=(DrafterUse("bad", {"use": "x"}),))
    with pytest.raises(
        PluginError, match=r"'bad' of plugin 'bad' of .* could not be made: AttributeError: oops"
    ) as caught:
        Engine(random_table(), strategy=strategy)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_errors_are_also_the_builtins_that_they_refine():
    """A caller's ``except ValueError`` must go on working."""
    engine = engine_on(random_table())
    with pytest.raises(ValueError, match="at least one token") as caught:
        engine.generate([])
    assert (caught.value.field, caught.value.value) == ("prompt", [])
    assert "hold at least one token" in caught.value.rule
    with pytest.raises(LookupError):
        Engine(random_table(), strategy="nothing of that name")
