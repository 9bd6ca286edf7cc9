"""What the documentation shows works as it stands; its tables are those of the stored results, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from specframe.strategy import Strategy

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("tables", ROOT / "docs" / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_made_from_the_stored_results(page, tables):
    """A number that was typed in, or left from an earlier run, is no result."""
    text = page.read_text(encoding="utf-8")
    assert tables.current(text) == text


def test_a_table_that_was_changed_by_hand_is_seen(tables):
    """A negative control."""
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert tables.table("exactness").count("\n") > 3
    assert tables.current(text.replace("12/12", "13/13")) == text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_named_files_exist(page):
    """A page that moved leaves its readers nowhere."""
    text = page.read_text(encoding="utf-8")
    links = list(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text))
    named = re.findall(r"`(docs/\w+\.md|examples/\w+\.py|specframe/[\w/]+\.py)`", text)
    for path in [*(page.parent / link for link in links), *(ROOT / name for name in named)]:
        assert path.exists(), path


def blocks(name, language):
    """Return the code blocks of a page in order."""
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("name", ["cost_model.md", "failures.md"])
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


def test_the_strategies_of_the_page_on_failures_are_ones(tmp_path):
    """Budgets and workers are switched on where a reader copies them from."""
    found = []
    for block in blocks("failures.md", "toml"):
        path = tmp_path / "mine.toml"
        path.write_text(block, encoding="utf-8")
        found += Strategy.from_toml(path).drafters
    assert [(use.budget_ms, use.worker) for use in found] == [(20, False), (50, True)]
