"""Speculation and plugins can be taken away cleanly: by strategy, by variable, by deleting a plugin's folder."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from models import random_table
from workers import install

from specframe import DrafterUse, Engine, PluginError, Strategy, UnknownName, __version__, plugins
from specframe.testing import byte_tokenizer

ROOT = Path(__file__).parents[1]
FIRST_PARTY = ("draft_model", "grammar", "prompt_lookup")
PROMPT = [1, 2, 3] * 5


def plain():
    target = random_table(order=1)
    return tuple(target.greedy(PROMPT, 20))


@pytest.fixture
def without(monkeypatch):
    """Make the package of a first-party plugin as good as deleted."""

    def delete(name):
        monkeypatch.delitem(sys.modules, f"specframe_{name}", raising=False)
        monkeypatch.setitem(sys.modules, f"specframe_{name}", None)  # importing it raises ModuleNotFoundError

    return delete


def test_the_strategy_none_opens_no_drafter(monkeypatch):
    """Plain decoding is the same engine, and no plugin has a part in it."""
    result = Engine(random_table(order=1), strategy="none").generate(PROMPT, max_new_tokens=20)
    assert result.token_ids == plain()
    assert (result.stats.drafters, result.stats.num_proposed, result.events) == ({}, 0, ())


def test_all_plugins_off(monkeypatch):
    """Everything but what a plugin does goes on, and that is told by name."""
    monkeypatch.setenv(plugins.DISABLE_VARIABLE, "all")
    engine = Engine(random_table(order=1))
    assert engine.generate(PROMPT, max_new_tokens=20).token_ids == plain()
    for name in FIRST_PARTY:
        with pytest.raises(
            PluginError, match=f"drafter '{name}' is disabled .*; remove it from {plugins.DISABLE_VARIABLE}"
        ):
            Engine(random_table(), strategy=name)
    tokenizer = byte_tokenizer()
    engine = Engine(random_table(vocab_size=len(tokenizer), tokenizer=tokenizer))
    with pytest.raises(UnknownName, match="unknown grammar 'regex'; installed: none") as caught:
        engine.generate(PROMPT, regex="a")
    assert f"plugin 'grammar' of specframe {__version__} is disabled" in caught.value.__notes__


@pytest.mark.parametrize("name", FIRST_PARTY)
def test_without_a_plugins_folder_the_rest_works(without, name):
    """An entry point that leads nowhere is a broken plugin, told when it is named, and no reason for anything else to end."""
    without(name)
    loaded = plugins.load()
    (broken,) = (plugin for plugin in loaded.all if plugin.name == name)
    assert isinstance(broken.error, ModuleNotFoundError)
    assert Engine(random_table(order=1)).generate(PROMPT, max_new_tokens=20).token_ids == plain()
    with pytest.raises(PluginError, match=f"plugin '{name}' of specframe .* is broken: ModuleNotFoundError"):
        Engine(random_table(), strategy=Strategy(drafters=(DrafterUse(name),)))
    if name != "prompt_lookup":
        result = Engine(random_table(order=1), strategy="prompt_lookup").generate(PROMPT, max_new_tokens=20)
        assert result.token_ids == plain()
        assert result.stats.num_accepted > 0


SCRIPT = """
import sys
from pathlib import Path
sys.path[:] = [path for path in sys.path if not (Path(path) / "specframe_grammar").is_dir()]
import specframe
from specframe.testing import random_table
assert Path(specframe.__file__).parents[1] == Path({folder!r}), specframe.__file__
prompt = [1, 2, 3] * 5
expected = random_table(order=1).greedy(prompt, 20)
for strategy in ("none", "prompt_lookup"):
    result = specframe.Engine(random_table(order=1), strategy=strategy).generate(prompt, max_new_tokens=20)
    assert list(result.token_ids) == expected, strategy
    print(strategy, result.stats.num_accepted > 0)
try:
    specframe.Engine(random_table(), strategy="grammar")
except specframe.SpecframeError as error:
    print(error)
"""


def test_a_plugin_is_deleted_for_real(tmp_path):
    """In another process, from a tree in which the folder is not there."""
    (tmp_path / "specframe").symlink_to(ROOT / "specframe")
    (tmp_path / "plugins").mkdir()
    for name in ("draft_model", "prompt_lookup"):
        (tmp_path / "plugins" / f"specframe_{name}").symlink_to(ROOT / "plugins" / f"specframe_{name}")
    done = subprocess.run(
        [sys.executable, "-P", "-c", SCRIPT.format(folder=str(tmp_path))],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'plugins'}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["none False", "prompt_lookup True"]
    assert "plugin 'grammar'" in lines[2]
    assert "is broken: ModuleNotFoundError: No module named 'specframe_grammar'" in lines[2]


@pytest.mark.parametrize("how", ["strategy", "environment"])
def test_a_misspelt_name_is_told(monkeypatch, caplog, how):
    """Who disables a plugin and misspells it runs it; nothing else would say so."""
    strategy = Strategy(disable=("promt_lookup",) if how == "strategy" else ())
    if how == "environment":
        monkeypatch.setenv(plugins.DISABLE_VARIABLE, "promt_lookup, draft_model")
    with caplog.at_level(logging.WARNING, logger="specframe"):
        Engine(random_table(), strategy=strategy)
    (record,) = caplog.records
    assert record.getMessage().startswith(
        "nothing is disabled by 'promt_lookup' (SPECFRAME_DISABLE_PLUGINS or 'disable'): unknown plugin 'promt_lookup'; "
        "did you mean 'prompt_lookup'? installed: draft_model, grammar, prompt_lookup, specframe"
    )


def test_a_name_that_is_right_is_not_told(monkeypatch, caplog):
    """By entry point, by distribution, or all of them."""
    with caplog.at_level(logging.WARNING, logger="specframe"):
        for value in ("grammar", "specframe", "all", "", " grammar , prompt_lookup,"):
            monkeypatch.setenv(plugins.DISABLE_VARIABLE, value)
            Engine(random_table(), strategy=Strategy(disable=("draft_model",)))
    assert not caplog.records


def test_what_a_strategy_disables_is_not_imported(tmp_path, monkeypatch):
    """A plugin that ends the process when it is imported can be kept out by the strategy alone."""
    install(tmp_path, name="deadly", source="raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "deadly_plugin", raising=False)
    imported = []
    monkeypatch.setattr(
        "importlib.metadata.EntryPoint.load",
        lambda point, load=plugins.EntryPoint.load: imported.append(point.name) or load(point),
    )
    Engine(random_table(), strategy=Strategy(disable=("deadly", "grammar")))
    assert set(imported) == {"draft_model", "prompt_lookup"}
    path = tmp_path / "mine.toml"
    path.write_text('disable = ["deadly-dist", "prompt_lookup"]\n')
    imported.clear()
    Engine(random_table(), strategy=path)
    assert set(imported) == {"draft_model", "grammar"}
