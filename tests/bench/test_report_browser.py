"""The report in a real browser, where there is one: nothing on the console, nothing asked for, nothing out of sight."""

from __future__ import annotations

import pytest
from browser import CHROMIUM, visit
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


def test_a_page_that_asks_or_scrolls_is_seen(tmp_path):
    """A negative control of the browser."""
    page = """<!DOCTYPE html><meta http-equiv="Content-Security-Policy" content="default-src 'none'"><script>1</script>
    <div style="width: 900px">wide</div>"""
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "index.html").write_text(page)
    found = visit(tmp_path / "page", tmp_path / "profile", (360,))
    assert any("Content Security Policy" in line for line in found.console)
    (tmp_path / "page" / "index.html").write_text(page.split("'none'\">")[1] + '<img src="x.png">')
    found = visit(tmp_path / "page", tmp_path / "profile", (360,))
    assert "/x.png" in found.asked
    assert found.layout["360"]["scrolls"]
    assert "900px" in found.layout["360"]["wide"][0]
