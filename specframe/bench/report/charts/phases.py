"""A waterfall of where the time of a request goes: loading, both prefills, and the phases of its rounds, output included."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specframe.bench.prediction import draft_prefill_of
from specframe.bench.report.chart import Chart, arms_of
from specframe.bench.report.palette import INK, QUIET, WIDTH
from specframe.bench.report.study import Study
from specframe.bench.visible import short

LOAD_TARGET, LOAD_DRAFTERS, DRAFT_PREFILL, UNTOLD, TOTAL = (
    "load target",
    "load drafters",
    "prefill of the draft",
    "not told apart",
    "total",
)
STEPS = {
    "prefill": "prefill of the target",
    DRAFT_PREFILL: DRAFT_PREFILL,
    "draft": "draft",
    "verify": "verify",
    "sync": "synchronise",
    "decide": "judge and correct",
    "commit": "commit and roll back",
    "emit": "output",
    "other": "other",
}
"""The phases of a request in order, and what the figure calls them."""


class Row(NamedTuple):
    """One step of an arm: seconds of a request in the mean, or, where ``is_once``, of the whole session."""

    arm: str
    step: str
    is_once: bool
    start_s: float
    seconds: float | None


def rows_of(study: Study) -> list[Row]:
    """Return the steps of each arm that has finished requests, one after another, and their total."""
    return [row for arm in study.arms if study.finished(arm) for row in (*_once(study, arm), *_steps(study, arm))]


def _once(study: Study, arm: str) -> list[Row]:
    record = study.results.arms.get(arm)
    target_s, drafters_s = (record.target_load_s, record.drafters_load_s) if record is not None else (None, None)
    return [Row(arm, LOAD_TARGET, True, 0.0, target_s), Row(arm, LOAD_DRAFTERS, True, target_s or 0.0, drafters_s)]


def _steps(study: Study, arm: str) -> list[Row]:
    requests = study.finished(arm)
    total = statistics.fmean(request.end_to_end_s or 0.0 for request in requests)
    phases = dict(study.cell(arm).phases)
    if not phases:
        return [Row(arm, UNTOLD, False, 0.0, total), Row(arm, TOTAL, False, 0.0, total)]
    phases[DRAFT_PREFILL] = statistics.fmean(map(draft_prefill_of, requests))
    phases["draft"] -= phases[DRAFT_PREFILL]
    rows, start = [], 0.0
    for phase, name in STEPS.items():
        rows.append(Row(arm, name, False, start, phases[phase]))
        start += phases[phase]
    return [*rows, Row(arm, TOTAL, False, 0.0, total)]


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw one waterfall below another, and what is loaded once below them."""
    steps = {arm: [row for row in rows if row.arm == arm and not row.is_once] for arm in arms_of(rows)}
    if not steps:
        return "No request was finished."
    loaded = [row for row in rows if row.is_once and row.seconds]
    heights = [len(part) + 1.2 for part in steps.values()] + ([len(arms_of(loaded)) + 1.6] if loaded else [])
    figure.set_size_inches(WIDTH, 0.155 * sum(heights) + 0.7)
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    longest = max(row.seconds or 0.0 for row in rows if row.step == TOTAL)
    baseline_s = next((row.seconds for row in rows if (row.arm, row.step) == (study.summary.baseline, TOTAL)), None)
    for axes, (arm, part) in zip(panels, steps.items(), strict=False):
        _draw_bars(axes, short(arm), part, [row.step for row in part])
        if baseline_s is not None:
            axes.axvline(baseline_s, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
        for bar, row in zip(axes.patches, part, strict=True):
            bar.set_facecolor(INK if row.step == TOTAL else study.looks[arm].colour)
        axes.set_xlim(0, longest * 1.18)
        axes.tick_params(labelbottom=False)
    last = panels[len(steps) - 1]
    last.tick_params(labelbottom=True)
    last.set_xlabel("seconds of a request, mean; dotted: total of plain decoding")
    if loaded:
        axes = panels[-1]
        _draw_bars(axes, "loading, once", loaded, [short(row.arm) for row in loaded])
        for bar, row in zip(axes.patches, loaded, strict=True):
            bar.set_facecolor(QUIET if row.step == LOAD_TARGET else INK)
        axes.margins(x=0.18)
        axes.set_xlabel("seconds; grey: the target, black: drafters after it")
    return None


def _draw_bars(axes: Axes, title: str, rows: Sequence[Row], names: Sequence[str]) -> None:
    """Draw a bar for each row, those of one name on one line, with its seconds behind the last of a line."""
    lines = list(dict.fromkeys(names))
    ends: dict[str, tuple[float, float]] = {}
    for name, row in zip(names, rows, strict=True):
        seconds = row.seconds or 0.0
        axes.barh(lines.index(name), seconds, left=row.start_s, height=0.72)
        ends[name] = row.start_s + seconds, ends.get(name, (0.0, 0.0))[1] + seconds
    for name, (end, seconds) in ends.items():
        place = (end, lines.index(name))
        axes.annotate(_spell(seconds), place, xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.set_title(title, fontsize=8.5)
    axes.set_yticks(range(len(lines)), lines, fontsize=8)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.tick_params(length=0)


def _spell(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1000 * seconds:.{0 if seconds >= 0.1 else 1}f} ms" if seconds >= 5e-5 else "0"


CHART = Chart(
    "phases",
    "Where the time goes",
    "Each bar begins where the one above it ends: the seconds of an average request, step by step. Decoding that pays ends "
    "left of the dotted line. What loads once is shown apart, on its own scale.",
    Row,
    rows_of,
    draw,
)
