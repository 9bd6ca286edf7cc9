"""What README shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from models import random_table

from specframe import Engine
from specframe.plugins import Plugin, _register

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def block(after: str, language: str) -> str:
    """Return the first code block of a language after a heading."""
    return re.search(rf"```{language}\n(.*?)```", README.partition(after)[2], re.DOTALL)[1]


def test_the_drafter_of_the_readme_runs_and_changes_nothing():
    """The first thing that a plugin author copies."""
    module = type("module", (), {})()
    exec(block("## A drafter of your own", "python"), vars(module))
    plugin = Plugin("my_drafter", "my-drafter", "0.1")
    _register(plugin, module)
    entry = plugin.drafters["repeat"]
    target = random_table(order=1)
    drafter = entry.factory(entry.options(times=3), target.facts)
    result = Engine(target, {"repeat": drafter}).generate([1, 2], max_new_tokens=24)
    assert result.token_ids == Engine(target).generate([1, 2], max_new_tokens=24).token_ids
    assert result.stats.num_proposed >= 24
    assert result.events == ()
