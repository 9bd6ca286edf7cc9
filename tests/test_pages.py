"""What the documentation shows works as it stands; its made parts are current, its links lead somewhere."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from markdown.extensions.toc import slugify
from models import engine_on, random_table, save_model
from pages import EXAMPLES, PAGES, ROOT, Reader, blocks, commands, parse, stand_in

import specframe.testing
from specframe import demo
from specframe.testing import QUICK, plan

DOCS = ROOT / "docs"
SMALL = attrs.evolve(QUICK, num_outputs=100, num_tokens=12, num_target_tokens=16, policies=("temperature",))


@pytest.fixture(scope="module")
def make():
    """The program that makes parts of pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        spec = importlib.util.spec_from_file_location("make", DOCS / "make.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_made_parts_are_current(page, make):
    """A number that was typed in, or a signature left from an earlier version, is no documentation."""
    text = page.read_text(encoding="utf-8")
    assert make.current(text) == text, "run: make pages"


def test_the_picture_is_made_from_the_stored_result(make):
    """Bars that were drawn from another run are no result."""
    drawn = make.picture.speed()
    assert (make.picture.FILE.read_text(encoding="utf-8") if make.picture.FILE.exists() else None) == drawn


def test_a_part_that_was_changed_by_hand_is_seen(make):
    """A negative control, for a table of results and for a part from the code."""
    results = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert results.count("12/12") > 2
    assert make.current(results.replace("12/12", "13/13")) == results
    hooks = (DOCS / "hooks.md").read_text(encoding="utf-8")
    assert "offer(token: int) -> bool" in hooks
    assert make.current(hooks.replace("offer(token: int)", "offer(id: int)")) == hooks


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist(page):
    """A file that moved leaves readers nowhere; links between pages are checked by ``make docs``, those of README here."""
    assert dead(page.read_text(encoding="utf-8"), page.parent) == []


def dead(text, folder):
    """Return the links, their anchors, and the files in backquotes that lead nowhere."""
    links = re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", text)
    named = re.findall(r"`((?:docs|examples|specframe|plugins|manifests|tests)/[\w/.-]+)`", text)
    found = [
        name for name in [*(folder / link for link, _ in links), *(ROOT / name for name in named)] if not name.exists()
    ]
    for link, anchor in links:
        file = folder / link
        if anchor and file.exists():
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            found += [] if anchor in {slugify(heading, "-") for heading in headings} else [f"{link}#{anchor}"]
    return [str(name) for name in found]


def test_a_link_that_leads_nowhere_is_seen():
    """A negative control: a page, an anchor, and a file in backquotes."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/manifests.md#rules)" in text
    for old, new in (
        ("docs/manifests.md#rules", "docs/manifest.md"),
        ("#rules", "#ruls"),
        ("make docs", "docs/none.md"),
    ):
        assert len(dead(text.replace(old, new), ROOT)) == 1, new


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.parent.name)
def test_what_an_example_says_is_right(page):
    """Its commands are known to the command line, its files are there; that its distribution works is its own test's."""
    text = page.read_text(encoding="utf-8")
    assert dead(text, page.parent) == []
    for command in (command for block in blocks(text) for command in commands(block.text)):
        program, *arguments = shlex.split(command.line, comments=True)
        assert program in ("pip", "pytest", "specframe")
        if program == "specframe":
            parse(arguments)


@pytest.fixture(scope="session")
def shelf(tmp_path_factory) -> Path:
    """Models that pages name: the stand-in for the demo in its cache folder, a draft, and another target."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "cache").mkdir()
    stand_in(folder / "cache")
    save_model(folder / "my-draft", num_hidden_layers=1, max_position_embeddings=2048)
    save_model(folder / "my-model", max_position_embeddings=2048)
    return folder


@pytest.fixture
def reader(tmp_path, shelf, monkeypatch, request) -> Iterator[Reader]:
    """A reader in a folder with the models of the shelf, whose certificates run a small plan."""
    for name in ("my-draft", "my-model"):
        shutil.copytree(shelf / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(shelf / "cache"))
    monkeypatch.setattr(demo, "demo_file", lambda: shelf / "cache" / demo.GGUF_FILE)
    for name in ("QUICK", "FULL"):
        monkeypatch.setattr(plan, name, SMALL)
        monkeypatch.setattr(specframe.testing, name, SMALL)
    yield Reader(tmp_path, request.getfixturevalue)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or ROOT).is_relative_to(tmp_path):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_page_shows_runs(page, reader):
    """Every block, in order: a newcomer copies them."""
    reader.read(page)


@pytest.mark.real_model
def test_the_first_page_runs_on_the_demo(tmp_path, monkeypatch, request):
    """What a newcomer types first, on the weights that a newcomer has."""
    monkeypatch.chdir(tmp_path)
    Reader(tmp_path, request.getfixturevalue).read(DOCS / "get_started.md")


PAGE = """\
```python title="mine.py"
x = 1
```

```console
$ specframe --version
specframe ...
```
"""


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("x = 1", "x = y", NameError),
        ("specframe ...", "specframe 99", AssertionError),
        ("--version", "--verison", AssertionError),
        ("$ specframe", "$ unknown", KeyError),
        ("```console", "```bash", KeyError),
        ("```console", "  ```console", AssertionError),
    ],
)
def test_what_does_not_work_is_seen(tmp_path, reader, old, new, error):
    """A negative control: a block that fails, prints something else, or is none that anybody runs."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    reader.read(page)
    assert (tmp_path / "mine.py").read_text() == "x = 1\n"
    page.write_text(PAGE.replace(old, new))
    with pytest.raises(error):
        reader.read(page)


def test_options_are_checked_where_a_command_is_not_run(tmp_path, reader):
    """A block that takes too long is still known to be right."""
    page = tmp_path / "page.md"
    page.write_text("<!-- block: parse -->\n```console\n$ specframe train-draft demo -o x --layers two\n```\n")
    with pytest.raises(Exception, match="two"):
        reader.read(page)


def test_no_command_is_forgotten():
    """Every command of the command line is shown on some page beside the reference."""
    from specframe.cli import app

    shown = {
        command.line.split()[1]
        for page in PAGES
        for block in blocks(page.read_text(encoding="utf-8"))
        if block.language == "console"
        for command in commands(block.text)
        if command.line.startswith("specframe ")
    }
    names = {(command.name or command.callback.__name__).replace("_", "-") for command in app.registered_commands}
    assert names | {group.name for group in app.registered_groups} <= shown


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The documentation as ``make docs`` builds it; a warning, such as a link that leads nowhere, is an error."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True))
    return folder


def test_every_page_is_in_the_site(site):
    """A page that the navigation leaves out is not found."""
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.parent.name for page in site.glob("*/index.html")} | {
        "index"
    }
    listed = re.findall(r"\w+\.md$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in DOCS.glob("*.md")), (
        "a page in two places has one of them in doubt"
    )


def test_a_site_that_is_not_whole_is_not_built(tmp_path):
    """A negative control: with a dead link, a dead anchor or a page outside the navigation ``make docs`` fails."""
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    docs = tmp_path / "docs"
    docs.mkdir()
    config = {"docs_dir": str(docs), "site_dir": str(tmp_path / "site"), "nav": [{"Home": "index.md"}], "strict": True}
    for text, other in (("[x](none.md)", None), ("[x](#none)", None), ("fine", "lost.md"), ("fine", None)):
        (docs / "index.md").write_text(f"# Home\n\n{text}\n")
        if other is not None:
            (docs / other).write_text("# Lost\n")
        if text == "fine" and other is None:
            (docs / "lost.md").unlink()
            build(load_config(str(ROOT / "mkdocs.yml"), **config))
        else:
            with pytest.raises(Abort):
                build(load_config(str(ROOT / "mkdocs.yml"), **config))


def test_the_site_asks_nothing_of_the_net(site):
    """No font, script, style or picture from elsewhere: it reads the same offline."""
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=\"?(https?:[^\" >]+)", text)
        loaded += re.findall(r"url\(\"?(https?:[^\")]+)", text)
        assert not loaded, (file, loaded)


def test_the_strategies_of_the_page_on_failures_are_ones(tmp_path):
    """Budgets and workers are switched on where a reader copies them from."""
    found = []
    for block in blocks((DOCS / "failures.md").read_text(encoding="utf-8")):
        if block.language == "toml":
            path = tmp_path / "mine.toml"
            path.write_text(block.text, encoding="utf-8")
            found += specframe.Strategy.from_toml(path).drafters
    assert [(use.budget_ms, use.worker) for use in found] == [(20, False), (50, True)]


def test_the_page_of_receipts_names_every_field_of_the_report():
    """A receipt that lacks what the report lists is none; a place that is named must be there."""
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
