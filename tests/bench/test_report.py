"""The report of a comparison: every figure and number that it should show, and nothing that it should not."""

from __future__ import annotations

import json
import math
import re
import statistics
import struct
import sys
from importlib.resources import files
from itertools import pairwise, zip_longest
from xml.etree import ElementTree

import hostile
import pytest
from page_reader import PageReader
from scipy.stats import binomtest
from scripted import AGAIN, DRAFT, LIBRARY, LOOKUP, PLAIN, STRATA, write_results
from typer.testing import CliRunner

from specframe import SpecframeError
from specframe.bench.report import answer as answers
from specframe.bench.report import charts, palette
from specframe.bench.report.chart import spread
from specframe.bench.report.charts import CHARTS
from specframe.bench.report.charts.calibration import wilson
from specframe.bench.report.drawing import draw
from specframe.bench.report.study import Study
from specframe.bench.report.svg import inline
from specframe.bench.report.write import PAGE, write_report
from specframe.bench.results import read_results
from specframe.bench.visible import short, visible
from specframe.cli import app

KEYS = ("heat-map", "speedups", "phases", "survival", "break-even", "memory", "calibration", "pareto")


class Made:
    """A report, and the lines that it was made of."""

    def __init__(self, folder, **settings):
        self.results, self.folder = folder / "results.jsonl", folder / "report"
        self.plan = write_results(self.results, **settings)
        self.files = write_report(self.results, self.folder)
        self.html = (self.folder / PAGE).read_text(encoding="utf-8")
        self.page = PageReader(self.html)
        self.text = " ".join("".join(self.page.text).split())
        lines = [json.loads(line) for line in self.results.read_text(encoding="utf-8").split("\n")[:-1]]
        self.requests = [line for line in lines if line["line"] == "request"]
        self.arms = {line["arm"]: line for line in lines if line["line"] == "arm"}

    def of(self, arm, kind=None):
        return [line for line in self.requests if line["arm"] == arm and kind in (None, line["kind"])]

    def ratios(self, arm, kind=None):
        """Return the speed-up of each request: the median over its repeats."""
        plain = {(line["index"], line["repeat"]): line["end_to_end_s"] for line in self.of(PLAIN)}
        found = {}
        for line in self.of(arm, kind):
            ratio = plain[line["index"], line["repeat"]] / line["end_to_end_s"]
            found.setdefault(line["index"], []).append(ratio)
        return [statistics.median(repeats) for repeats in found.values()]


@pytest.fixture
def one_chart(monkeypatch):
    """Let reports have one figure where it is not figures that a test is about."""
    monkeypatch.setattr(charts, "CHARTS", CHARTS[:1])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return Made(tmp_path_factory.mktemp("made"))


def test_the_page_is_whole_and_asks_for_nothing(made):
    """A page that needs a network, or a script, cannot be kept beside the results."""
    assert made.page.requests() == []
    assert len(made.page.ids) == len(set(made.page.ids))
    (policy,) = [given["content"] for tag, given in made.page.tags if given.get("http-equiv")]
    assert policy.startswith("default-src 'none'")
    assert ("html", {"lang": "en"}) in made.page.tags
    targets = {given["href"][1:] for _, given in made.page.tags if (given.get("href") or "").startswith("#")}
    assert targets <= set(made.page.ids)
    assert len(targets) > 4


@pytest.mark.parametrize(
    "harm",
    [
        "<script>1</script>",
        '<img src="data:,">',
        '<p onclick="x">a</p>',
        '<a href="https://example.org">a</a>',
        '<p style="background: url(x.png)">a</p>',
        "<style>@import 'x.css';</style>",
    ],
)
def test_what_asks_for_something_is_seen(harm):
    """A negative control of the reader."""
    assert PageReader(f"<main>{harm}</main>").requests() != []


def test_every_figure_is_there_with_its_table(made):
    """The eight figures of the specification: none may be left out, or be a picture without numbers."""
    assert tuple(chart.key for chart in CHARTS) == KEYS
    study = Study.of(read_results(made.results))
    figures = [given["id"] for tag, given in made.page.tags if tag == "figure"]
    assert figures == list(KEYS)
    assert [given["aria-labelledby"].split("-title")[0] for tag, given in made.page.tags if tag == "svg"] == list(KEYS)
    for chart in CHARTS:
        assert chart.reading in made.text
        rows = chart.rows_of(study)
        assert len(made.page.numbers(chart.key)) == len(rows) > 0
        assert all(isinstance(row, chart.row) for row in rows)


def test_a_figure_has_room_for_so_many_strata(made, monkeypatch):
    """A corpus of a thousand strata: prevents a picture of the length of a street, or a crash; the table has them all."""
    monkeypatch.setattr("specframe.bench.report.chart.MOST_STRATA", 3)
    study = Study.of(read_results(made.results))
    for key in ("heat-map", "survival"):
        drawn = draw(next(one for one in CHARTS if one.key == key), study)
        text = drawn.svg.decode()
        assert "2 more strata are in the table" in text
        assert [name for name in ("chat", "json", "code", "rewrite", "all strata") if f">{name}<" in text] == [
            "chat", "json", "all strata"
        ]  # fmt: skip
        assert {row.stratum for row in drawn.rows} == {*STRATA, "all strata"}


def test_figures_are_files_too(made):
    """SVG and PNG beside the page, whole and of a size to look at."""
    assert made.files[0].name == PAGE
    assert {file.name for file in made.files[1:]} == {f"{key}.{kind}" for key in KEYS for kind in ("svg", "png")}
    assert {file.name for file in made.folder.iterdir()} == {file.name for file in made.files}
    for key in KEYS:
        root = ElementTree.fromstring((made.folder / f"{key}.svg").read_bytes())
        assert root.tag.endswith("svg")
        data = (made.folder / f"{key}.png").read_bytes()
        assert data.startswith(b"\x89PNG\r\n")
        width, height = struct.unpack(">II", data[16:24])
        assert width == round(200 * palette.WIDTH)
        assert height > 300


def test_the_same_results_give_the_same_files(made, tmp_path):
    """A report that changes by itself cannot be compared with the one before."""
    again = write_report(made.results, tmp_path / "again")
    assert [file.read_bytes() for file in again] == [file.read_bytes() for file in made.files]


def test_speed_ups_are_those_of_the_lines(made):
    """Numbers that were lost, rounded or sorted away between the measurements and the curve."""
    rows = made.page.numbers("speedups")
    for arm in (AGAIN, LOOKUP, DRAFT, LIBRARY):
        shown = [row[2] for row in rows if row[0] == arm]
        assert shown == pytest.approx(sorted(made.ratios(arm)), rel=1e-12)
        assert len(shown) == 4 * len(STRATA)


def test_the_arms_are_those_of_the_lines(made):
    """The table that is read first: each of its numbers is recomputed here from the lines alone."""
    plain = {(line["index"], line["repeat"]): line for line in made.of(PLAIN)}

    def median(arm, seconds):
        found = {}
        for line in made.of(arm):
            ratio = seconds(plain[line["index"], line["repeat"]]) / seconds(line)
            found.setdefault(line["index"], []).append(ratio)
        return statistics.median(map(statistics.median, found.values()))

    def total(arm):
        found = {}
        for line in made.of(arm):
            found.setdefault(line["index"], []).append(line["end_to_end_s"])
        return sum(map(statistics.median, found.values()))

    rows = {row[0].removesuffix(" (A/A control)"): row for row in made.page.numbers("arms")}
    assert list(rows) == [AGAIN, LOOKUP, DRAFT, LIBRARY]
    for arm, row in rows.items():
        ratios = sorted(made.ratios(arm))
        _, equal, num_other, num_failed, speed, interval, totals, p10, decoding, first, per_call, acceptance = row
        assert (equal, num_other, num_failed) == ("16/16", 0, 0)
        assert speed == pytest.approx(statistics.median(ratios))
        low, high = next(
            (ratios[rank - 1], ratios[16 - rank])
            for rank in range(8, 0, -1)
            if binomtest(rank - 1, 16).pvalue <= 0.05  # two-sided
        )
        assert interval == f"{low:.3f} to {high:.3f}"
        assert totals == pytest.approx(total(PLAIN) / total(arm))
        assert p10 == ratios[1]
        tokens = [len(line["token_ids"]) - line["num_first"] for line in made.of(arm)]
        assert set(tokens) == {59}
        assert decoding == pytest.approx(median(arm, lambda line: line["decode_s"]))
        assert first == pytest.approx(median(arm, lambda line: line["first_token_s"]))
        if arm in (LOOKUP, DRAFT):
            counts = [position for line in made.of(arm) for position in line["positions"]]
            accepted, evaluated = (sum(count[name] for count in counts) for name in ("num_accepted", "num_evaluated"))
            assert acceptance == pytest.approx(accepted / evaluated)
            calls = sum(line["num_target_calls"] for line in made.of(arm))
            assert per_call == pytest.approx(sum(len(line["token_ids"]) for line in made.of(arm)) / calls)
        else:
            assert (per_call, acceptance) == ("not available", "not available")


def test_the_verdicts_are_over_the_numbers_of_the_lines(made):
    """A verdict beside another stratum's speed."""
    rows = [row for row in made.page.tables["verdicts"] if len(row) == 4 and row[2].endswith("=")]
    scopes = [(arm, kind) for arm in (LOOKUP, DRAFT) for kind in (None, *STRATA)]
    assert len(rows) == len(scopes)
    for (arm, kind), (stratum, decision, speed, equal) in zip(scopes, rows, strict=True):
        assert stratum == (kind or "all strata")
        median = statistics.median(made.ratios(arm, kind))
        assert float(speed[:-1]) == pytest.approx(median)
        assert equal == ("16/16" if kind is None else "4/4")
        assert decision in ("promote", "keep experimental", "delete")
        assert (decision == "delete") or median >= 0.97


def test_the_heat_map_is_that_of_the_lines(made):
    """A stratum under another's name is worse than none."""
    rows = made.page.numbers("heat-map")
    assert [(row[0], row[1]) for row in rows] == [
        (stratum, arm) for stratum in (*STRATA, "all strata") for arm in (PLAIN, AGAIN, LOOKUP, DRAFT, LIBRARY)
    ]
    for stratum, arm, speed, num_matched, num_requests, *_ in rows:
        ratios = made.ratios(arm, stratum if stratum in STRATA else None)
        assert speed == pytest.approx(statistics.median(ratios), rel=1e-12)
        assert num_matched == num_requests == len(ratios)


def test_survival_is_that_of_the_lines(made):
    """S_i over the requests of a stratum is not the mean of their own S_i."""
    rows = {(row[0], row[1], row[2]): row for row in made.page.numbers("survival")}
    for stratum in STRATA:
        for arm in (LOOKUP, DRAFT):
            columns = list(zip_longest(*(line["positions"] for line in made.of(arm, stratum))))
            assert [position for kind, name, position in rows if (kind, name) == (stratum, arm)] == list(
                range(1, len(columns) + 1)
            )
            for position, counts in enumerate(columns, start=1):
                known = [count for count in counts if count is not None]
                decided, accepted = (sum(count[name] for count in known) for name in ("num_decided", "num_accepted"))
                row = rows[stratum, arm, position]
                assert (row[4], row[6]) == (decided, accepted)
                if decided:
                    assert row[7] == pytest.approx(accepted / decided, rel=1e-12)
    assert not any(arm in (PLAIN, AGAIN, LIBRARY) for _, arm, _ in rows)


def test_the_steps_of_a_request_add_up(made):
    """A waterfall whose steps end elsewhere than its total has lost time or counted it twice."""
    rows = made.page.numbers("phases")
    for arm in (PLAIN, AGAIN, LOOKUP, DRAFT):
        steps = [row for row in rows if row[0] == arm and row[2] == "no"]
        *parts, total = steps
        assert [step[1] for step in steps] == [
            "prefill of the target", "prefill of the draft", "draft", "verify", "synchronise", "judge and correct",
            "commit and roll back", "output", "other", "total",
        ]  # fmt: skip
        mean = statistics.fmean(line["end_to_end_s"] for line in made.of(arm))
        assert total[4] == pytest.approx(mean, rel=1e-9)
        assert sum(part[4] for part in parts) == pytest.approx(mean, rel=1e-5)
        ends = [part[3] + part[4] for part in parts]
        assert [part[3] for part in parts[1:]] == pytest.approx(ends[:-1], rel=1e-9)
        verify = statistics.fmean(line["phases"]["verify"] for line in made.of(arm))
        assert next(part[4] for part in parts if part[1] == "verify") == pytest.approx(verify, rel=1e-9)
    (untold, total) = [row for row in rows if row[0] == LIBRARY and row[2] == "no"]
    assert untold[1] == "not told apart"
    assert untold[4] == total[4]
    loads = {(row[0], row[1]): row[4] for row in rows if row[2] == "yes"}
    assert loads[DRAFT, "load drafters"] == made.arms[DRAFT]["drafters_load_s"]


def test_memory_and_latency_are_those_of_the_lines(made):
    """The five counts of bytes are never one."""
    for arm, latency, peak, artifact, logical, deduplicated, incremental, unknown in made.page.numbers("memory"):
        counts = made.arms[arm]["bytes"]
        assert latency == statistics.median(line["end_to_end_s"] for line in made.of(arm))
        assert [peak, artifact, deduplicated, incremental] == [
            counts[name] for name in ("peak_resident", "artifact", "deduplicated", "incremental")
        ]
        assert logical == sum(counts["logical"].values())
        assert unknown == ""


def test_break_even_follows_from_the_costs(made):
    """The curve, its crossing and the least length are one thing told three times."""
    rows = made.page.numbers("break-even")
    assert {row[0] for row in rows} == {LOOKUP, DRAFT}
    for arm, is_cold, num_tokens, ratio, token_s, plain_s, fixed_s, least in rows:
        load = made.arms[arm]
        once = load["target_load_s"] if is_cold == "yes" else 0.0
        plain = once + statistics.median(line["first_token_s"] for line in made.of(PLAIN)) + num_tokens * plain_s
        assert ratio == pytest.approx((plain + fixed_s + num_tokens * (token_s - plain_s)) / plain, rel=1e-9)
        assert least == pytest.approx(fixed_s / (plain_s - token_s))
        assert (ratio < 1) == (num_tokens > least)
        assert fixed_s == pytest.approx(load["drafters_load_s"] if is_cold == "yes" else 0.0, abs=0.05)


def test_entropies_fall_into_tenths(made):
    """Each token is in one bin, and is counted as accepted where it was."""
    rows = made.page.numbers("calibration")
    for arm, drafter in {(row[0], row[1]) for row in rows}:
        bins = [row for row in rows if (row[0], row[1]) == (arm, drafter)]
        pairs = sorted(tuple(pair) for line in made.of(arm) for pair in line["drafters"][drafter]["entropies"])
        assert sum(row[5] for row in bins) == len(pairs)
        assert sum(row[6] for row in bins) == sum(is_accepted for _, is_accepted in pairs)
        assert (bins[0][2], bins[-1][3]) == (pairs[0][0], pairs[-1][0])
        assert max(row[5] for row in bins) - min(row[5] for row in bins) <= 1
        assert len(bins) == min(10, len(pairs) // 20)


def test_wilson_is_scipys():
    """An interval of one's own is checked against the library's."""
    for accepted, total in ((0, 5), (3, 7), (40, 40), (123, 1000)):
        expected = binomtest(accepted, total).proportion_ci(0.95, "wilson")
        assert wilson(accepted, total) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_the_frontier_holds_what_nothing_beats(made, tmp_path):
    """Latency, energy and memory: without a meter energy is not available, and says so."""
    for report, has_energy in ((made, False), (Made(tmp_path, joules=30.0, num_items=2), True)):
        rows = report.page.numbers("pareto")
        assert all((row[2] == "not available") is not has_energy for row in rows)
        known = {row[0]: [value for value in row[1:4] if value != "not available"] for row in rows}
        for row in rows:
            beaten = any(
                other != known[row[0]] and all(a <= b for a, b in zip(other, known[row[0]], strict=True))
                for other in known.values()
            )
            assert row[4] == ("no" if beaten else "yes")
        assert known[PLAIN] == [1.0] * (3 if has_energy else 2)
        assert ("energy per token" in (report.folder / "pareto.svg").read_text()) is has_energy


def test_tokens_tell_where_they_come_from(made):
    """Colour alone tells nobody who cannot see it, and a token that is left out is a lie about the text."""
    study = Study.of(read_results(made.results))
    arm = answers.answer(study.summary).arm
    spans = [
        given
        for tag, given in made.page.tags
        if tag == "span" and "title" in given and given["title"].startswith("round ")
    ]
    firsts = [next(line for line in made.of(arm, stratum)) for stratum in STRATA]
    told = [origin for line in firsts for origin in line["origins"]]
    assert [span["class"].split()[0] for span in spans] == [origin.split(":")[0] for origin in told]
    for span, origin in zip(spans, told, strict=True):
        how, _, drafter = origin.partition(":")
        if how == "accepted":
            assert f"proposed by {drafter}, accepted" in span["title"]
    for line in firsts:
        assert "".join(line["text"].split()) in "".join(made.text.split())
    for word in ("accepted", "correction", "extra", "plain"):
        assert f".{word}" in "".join(made.page.styles)
    assert made.text.count("Round by round") == len(STRATA)


def test_the_head_says_what_it_comes_to(made):
    """The reader's question is answered first, with what qualifies the answer."""
    study = Study.of(read_results(made.results))
    told = answers.answer(study.summary)
    assert made.text.index(told.headline) < made.text.index("Verdicts")
    for sentence in told.sentences:
        assert sentence in made.text
    again = study.speed(AGAIN).end_to_end.median
    assert again == pytest.approx(
        1, abs=0.01
    )  # it has noise, and what it comes to changes with every length that is chosen
    assert "The machine was not quiet" not in made.text
    for fact in (
        made.plan.digest,
        f"quiet: plain again {again:.3f} times as fast as plain, which it is once more",
        f"{LOOKUP}: matched 16/16",
        "valid: run as planned",
        "greedy",
        "cores: 2",
    ):
        assert fact in made.text
    verdicts = [cell for cell in study.summary.cells if cell.verdict is not None]
    assert len(verdicts) == 2 * (1 + len(STRATA))
    for cell in verdicts:
        for reason in cell.verdict.reasons:
            assert reason in made.text


def test_hostile_text_is_only_text(tmp_path):
    """Models and corpora write what they like; nothing of it may become markup, or hide."""
    report = Made(
        tmp_path,
        names=hostile.NAMES,
        words=hostile.WORDS,
        strata=hostile.STRATA,
        num_items=1,
        repeats=1,
        title=hostile.TITLE,
    )
    assert report.page.requests() == []
    assert not {"b", "script", "img"} & {tag for tag, _ in report.page.tags}
    for char in "\x00\x1b\x07\u202e\u202c\u2028\ufffe\u0085":
        assert char not in report.html
        assert f"\u27e8U+{ord(char):04X}\u27e9" in report.html
    assert "\u27e8U+D83D\u27e9" in report.html
    assert "{{ 7 * 7 }}" in report.text
    assert "lib {{ 1 }}" in report.text
    assert "\U0001f469\u200d\U0001f680" in report.html
    for key in KEYS:
        ElementTree.fromstring((report.folder / f"{key}.svg").read_bytes())


def test_visible_leaves_what_is_written_with_joiners():
    """Emoji, Persian and flags need characters that are invisible by themselves."""
    for text in (
        "\U0001f469\u200d\U0001f680",
        "\u0645\u06cc\u200c\u0631\u0648\u0645",
        "\U0001f3f4\U000e0067\U000e007f",
        "caf\u00e9",
    ):
        assert visible(text) == text
    assert visible("a\nb\tc", keep="\n") == "a\nb\u27e8U+0009\u27e9c"
    assert visible("\ufeff\u200b\u2066") == "\u27e8U+FEFF\u27e9\u27e8U+200B\u27e9\u27e8U+2066\u27e9"
    assert short("x" * 100, 11) == "xxxxx\u2026xxxxx"
    assert short("xyz", 3) == "xyz"


def test_figures_without_data_say_so(tmp_path):
    """An empty frame looks like a broken page."""
    report = Made(tmp_path, has_entropies=False, num_items=1)
    assert "No entropy was recorded" in report.text
    assert "svg" not in [
        tag for tag, given in report.page.tags if given.get("aria-labelledby", "").startswith("calibration")
    ]
    assert "No entropy was recorded" in (report.folder / "calibration.svg").read_text()
    assert (report.folder / "calibration.png").stat().st_size > 1000


def test_a_run_that_has_hardly_begun_has_a_page(tmp_path):
    """Whoever looks in after a minute wants to know how far it is."""
    report = Made(tmp_path, num_items=1, repeats=1, num_left=5 * len(STRATA))
    assert "Not known" in report.text
    assert f"the run is not finished: 0 of {5 * len(STRATA)} requests are measured" in report.text
    assert "not valid, see above" in report.text
    shown = [given for tag, given in report.page.tags if given.get("class") == "nothing"]
    assert len(shown) >= 6


@pytest.mark.usefixtures("one_chart")
def test_a_machine_that_was_not_quiet_is_told_before_everything_else(tmp_path):
    """Verdicts over times of a busy machine would be believed."""
    report = Made(tmp_path, num_items=3, repeats=1, again_s=1.1)
    told = report.text.index("The machine was not quiet")
    assert told < report.text.index("Verdicts")
    assert "plain again is plain once more, but was 0.9" in report.text
    assert "keep experimental not quiet" in report.text
    assert "not quiet, see above: plain again 0.9" in report.text
    assert "These results are not valid" not in report.text


@pytest.mark.usefixtures("one_chart")
def test_results_of_another_plan_or_machine_are_not_valid(tmp_path):
    """Numbers that were made under other conditions answer another question."""
    results = tmp_path / "results.jsonl"
    write_results(results, num_items=1, repeats=1)
    header, *rest = results.read_text().splitlines()
    changed = json.loads(header)
    changed["plan"]["max_new_tokens"] += 1
    changed["machine"]["cores"] = "64"
    results.write_text("\n".join([json.dumps(changed), *rest]) + "\n")
    write_report(results, tmp_path / "report")
    page = PageReader((tmp_path / "report" / PAGE).read_text())
    text = "".join(page.text)
    assert "These results are not valid" in text
    assert "the plan in the results was changed" in text
    assert "cores is 64, not 2" in text


@pytest.mark.usefixtures("one_chart")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        ("", "must begin with a line of the kind 'header'"),
        ("not json\n", "is not JSON"),
        ('{"line": "header", "format": 99}\n', "has format 99"),
    ],
)
def test_a_file_that_is_no_results_is_one_readable_error(tmp_path, content, message):
    """A traceback is no answer to a wrong file name."""
    results = tmp_path / "results.jsonl"
    if content is not None:
        results.write_text(content)
    with pytest.raises(SpecframeError, match=message):
        write_report(results, tmp_path / "report")
    assert not (tmp_path / "report").exists()


@pytest.mark.usefixtures("one_chart")
def test_a_folder_that_cannot_be_written_is_one_readable_error(made, tmp_path):
    """A file of the folder's name, for one."""
    (tmp_path / "report").write_text("mine")
    with pytest.raises(SpecframeError, match="must be a folder that can be written"):
        write_report(made.results, tmp_path / "report")
    assert (tmp_path / "report").read_text() == "mine"


def test_a_missing_package_is_named(made, tmp_path, monkeypatch):
    """The report is an extra; without it the way out is an install command."""
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "specframe.bench.report."))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SpecframeError, match=r"needs matplotlib.*pip install 'specframe\[report\]'"):
        write_report(made.results, tmp_path / "report")


@pytest.mark.usefixtures("one_chart")
def test_the_command_line_writes_a_report(made, tmp_path):
    """The command is the way in that people use."""
    done = CliRunner().invoke(app, ["compare", "report", str(made.results), "-o", str(tmp_path / "r"), "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["page"] == str(tmp_path / "r" / PAGE)
    assert told["figures"] == [str(tmp_path / "r" / f"heat-map.{kind}") for kind in ("svg", "png")]
    done = CliRunner().invoke(app, ["compare", "report", str(made.results)])
    assert done.exit_code == 0
    assert (made.results.with_suffix("") / PAGE).exists()


def test_an_inlined_figure_takes_nothing_of_another():
    """Two clip paths of one id: the second figure is cut by the first one's."""
    svg = b"""<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" width="9pt" viewBox="0 0 9 9">
    <metadata>x</metadata><defs><style>*{fill: red}</style><path id="m"/></defs>
    <g clip-path="url(#c)"><use xlink:href="#m" style="fill: #0067a8; stroke: #123456"/></g>
    <defs><clipPath id="c"/></defs></svg>"""
    text = inline(svg, "a", "A & B", "<why>")
    assert 'id="a-m"' in text
    assert 'href="#a-m"' in text
    assert "url(#a-c)" in text
    assert "var(--arm-1)" in text
    assert "#123456" in text
    assert "metadata" not in text
    assert "red" not in text
    assert "A &amp; B" in text
    assert "&lt;why&gt;" in text
    assert ElementTree.fromstring(text).get("width") is None


def test_names_beside_points_do_not_cover_one_another():
    """Arms of nearly the same cost are the rule."""
    assert spread([], 10) == []
    assert spread([5.0], 10) == [5.0]
    moved = spread([0.0, 1.0, 2.0, 50.0], 10)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(moved))
    assert moved == pytest.approx([-9.0, 1.0, 11.0, 50.0])


# How a colour looks without one kind of cone, in linear light (Machado, Oliveira and Fernandes 2009, severity 1).
BLINDNESS = {
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritan": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def arm_colours(scheme):
    """Return the page's first colours for arms, and that of plain decoding, by the light or the dark scheme."""
    css = (files("specframe.bench.report") / "page.css").read_text()
    (block,) = re.findall(
        r"^:root \{(.*?)\}" if scheme == "light" else r"dark\) \{\s*:root \{(.*?)\}", css, re.DOTALL | re.MULTILINE
    )
    values = dict(re.findall(r"--([\w-]+): (#\w+)", block))
    return [values["quiet"], *(values[f"arm-{number}"] for number in range(1, 5))]


def test_the_page_has_the_colours_of_the_figures():
    """A figure and its page that differ: the legend of one is not the other's."""
    light = arm_colours("light")
    assert light == [palette.QUIET, *list(palette.PAGE_COLOURS)[4:8]]
    css = (files("specframe.bench.report") / "page.css").read_text()
    for variable in palette.PAGE_COLOURS.values():
        assert css.count(f"{variable[4:-1]}: #") == 3  # light, dark, paper


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("matrix", [*BLINDNESS.values(), None], ids=[*BLINDNESS, "full"])
def test_the_first_colours_are_told_apart_by_everybody(matrix, scheme):
    """A legend of four colours that are two to one man in twelve is half a legend."""

    def seen(colour):
        linear = [(int(colour[i : i + 2], 16) / 255) ** 2.2 for i in (1, 3, 5)]
        if matrix is not None:
            linear = [sum(w * c for w, c in zip(row, linear, strict=True)) for row in matrix]
        return [min(1.0, max(0.0, value)) ** (1 / 2.2) for value in linear]

    colours = arm_colours(scheme)
    assert min(math.dist(seen(a), seen(b)) for i, a in enumerate(colours) for b in colours[:i]) > 0.12
