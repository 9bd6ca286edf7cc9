"""What the documentation shows works as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specframe.strategy import Strategy

DOCS = Path(__file__).parents[1] / "docs"


def blocks(name, language):
    """Return the code blocks of a page in order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["cost_model.md"])
def test_the_python_of_a_page_runs_in_order(name):
    """Prevents an example that nobody can follow; its own asserts hold too."""
    scope = {}
    for block in blocks(name, "python"):
        exec(block, scope)


def test_the_strategy_of_the_cost_model_is_one(tmp_path):
    """Prevents a key that is not there from being documented."""
    (block,) = blocks("cost_model.md", "toml")
    path = tmp_path / "mine.toml"
    path.write_text(block, encoding="utf-8")
    assert Strategy.from_toml(path).length.policy == "adaptive"
