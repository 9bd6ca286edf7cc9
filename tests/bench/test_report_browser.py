"""The report in a real browser: nothing on the console, nothing asked for, nothing out of sight.

Skipped where there is no Chromium, but for CI, which has to have one.
"""

from __future__ import annotations

import re

import pytest
from browser import CHROMIUM, print_out, visit
from hostile import NAMES, STRATA, TITLE, WORDS
from scripted import write_results

from specframe.bench.report.write import write_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium, such as Debian's package of that name")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    write_results(folder / "results.jsonl", num_items=2, repeats=1)
    write_report(folder / "results.jsonl", folder / "report")
    return folder / "report"


def test_a_browser_has_nothing_to_say_and_nothing_to_ask(report, tmp_path):
    """Errors, blocked requests, and figures that are squeezed, cut off or too small to read."""
    found = visit(report, tmp_path)
    assert found.console == []
    assert set(found.asked) == {"/index.html"}
    for width, layout in found.layout.items():
        assert not layout["scrolls"], (width, layout["wide"])
        assert layout["wide"] == []
        assert len(layout["figures"]) == 8
        for figure in layout["figures"]:
            assert figure["width"] >= 300, (width, figure)
            assert figure["height"] >= 100, (width, figure)
            assert figure["texts"] >= 5, (width, figure)
            assert figure["smallest"] >= 6, (width, figure)


def test_hostile_text_does_nothing_in_a_browser(tmp_path):
    """What parsers of tests call text may be markup to a browser; long names may push a page out of a phone."""
    results = tmp_path / "results.jsonl"
    write_results(results, names=NAMES, words=WORDS, strata=STRATA, title=TITLE, num_items=1, repeats=1)
    write_report(results, tmp_path / "report")
    found = visit(tmp_path / "report", tmp_path / "profile", (360, 1280))
    assert found.console == []
    assert set(found.asked) == {"/index.html"}
    for layout in found.layout.values():
        assert layout["foreign"] == []
        assert layout["title"] != "owned"
        assert not layout["scrolls"], layout["wide"]
        assert layout["wide"] == []


def test_a_page_can_be_printed(report, tmp_path):
    """On paper nothing unfolds: what is worth reading is there, and long tables are not."""
    pdf = print_out(report, tmp_path / "profile", tmp_path / "page.pdf")
    assert pdf.startswith(b"%PDF-")
    num_pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 5 <= num_pages <= 20


def test_a_page_that_asks_or_scrolls_is_seen(tmp_path):
    """A negative control of the browser."""
    page = """<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="default-src 'none'"><script>1</script>
    <div style="width: 900px">wide</div>"""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(page)
    found = visit(tmp_path / "page", tmp_path / "profile", (360,))
    assert any("Content Security Policy" in line for line in found.console)
    asking = """<img src="x.png" onerror="document.title = 'owned'">"""
    (tmp_path / "page" / "index.html").write_text(page.split("'none'\">")[1] + asking)
    found = visit(tmp_path / "page", tmp_path / "profile", (360,))
    assert "/x.png" in found.asked
    assert len(found.layout["360"]["foreign"]) == 2
    assert found.layout["360"]["scrolls"]
    assert "900px" in found.layout["360"]["wide"][0]
