"""What the documentation shows works as it stands; its tables are those of the stored results, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
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


@pytest.mark.parametrize("name", ["cost_model.md", pytest.param("receipts.md", marks=pytest.mark.real_model)])
def test_the_python_of_a_page_runs_in_order(name, tmp_path, monkeypatch):
    """Prevents an example that nobody can follow; its own asserts hold too."""
    monkeypatch.chdir(tmp_path)
    scope = {}
    for block in blocks(name, "python"):
        exec(block, scope)


def test_the_strategy_of_the_cost_model_is_one(tmp_path):
    """Prevents a key that is not there from being documented."""
    (block,) = blocks("cost_model.md", "toml")
    path = tmp_path / "mine.toml"
    path.write_text(block, encoding="utf-8")
    assert Strategy.from_toml(path).length.policy == "adaptive"


def test_the_page_of_receipts_names_every_field_of_the_report():
    """A receipt that lacks what the report lists is none; a place that is named must be there."""
    from models import engine_on, random_table

    rows = re.findall(r"^\| (.*?) \| (.*?) \|$", (DOCS / "receipts.md").read_text(encoding="utf-8"), re.MULTILINE)[1:]
    assert [name for name, _ in rows] == [*REPORTED, "not in the report"]
    receipt = json.loads(engine_on(random_table()).generate([1, 2], max_new_tokens=2).receipt.to_json())
    named = [path for _, where in rows for path in re.findall(r"`([\w.]+)`", where)]
    for path in named:
        value = receipt
        for key in path.split("."):
            value = value[key]
    tops = {path.partition(".")[0] for path in named}
    assert tops == receipt.keys()


REPORTED = (
    "receipt_version",
    "request_nonce",
    "champion_artifact_hash",
    'draft_artifact_hash or "none"',
    "tokenizer_hash",
    "chat_template_hash",
    "adapter_chain_hash",
    "sampling_policy_hash",
    "grammar_hash",
    "position_policy_hash",
    "scheduler_policy_hash",
    "hardware_class",
    "browser/runtime version",
    "seed commitment or local replay seed",
    "target-call count",
    "draft-call count",
    "proposal count",
    "accepted-count histogram",
    "rejection-position histogram",
    "cold and warm timing aggregates",
    "peak resident byte categories",
    "bounded numeric errors",
    "failure and fallback code",
)
