"""A waterfall of where the time of a request goes: loading, both prefills, drafting, verifying, correcting, output."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart
from specframe.bench.report.palette import GRID, INK, WIDTH
from specframe.bench.report.study import Study, mean
from specframe.bench.results import RequestRecord

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
    "decide": "judge and correct",
    "commit": "commit and roll back",
    "emit": "output",
    "other": "synchronise, other",
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
    """Return the steps of each arm that has requests, one after another, and their total."""
    return [row for arm in study.arms if study.finished(arm) for row in (*_once(study, arm), *_steps(study, arm))]


def _once(study: Study, arm: str) -> list[Row]:
    record = study.results.arms.get(arm)
    if record is None:
        return [Row(arm, LOAD_TARGET, True, 0.0, None), Row(arm, LOAD_DRAFTERS, True, 0.0, None)]
    return [
        Row(arm, LOAD_TARGET, True, 0.0, record.target_load_s),
        Row(arm, LOAD_DRAFTERS, True, record.target_load_s or 0.0, record.drafters_load_s),
    ]


def _steps(study: Study, arm: str) -> list[Row]:
    requests = study.finished(arm)
    total = mean(request.end_to_end_s for request in requests if request.end_to_end_s is not None)
    told = [_phases(request) for request in requests]
    rows, start = [], 0.0
    if all(told):
        for phase, name in STEPS.items():
            seconds = sum(phases.get(phase, 0.0) for phases in told) / len(told)
            rows.append(Row(arm, name, False, start, seconds))
            start += seconds
    else:
        rows.append(Row(arm, UNTOLD, False, 0.0, total))
    return [*rows, Row(arm, TOTAL, False, 0.0, total)]


def _phases(request: RequestRecord) -> dict[str, float]:
    phases = dict(request.phases)
    if "draft" in phases:
        phases[DRAFT_PREFILL] = draft_prefill_s(request)
        phases["draft"] -= phases[DRAFT_PREFILL]
    return phases


def draft_prefill_s(request: RequestRecord) -> float:
    """Return P_d: how much longer the first drafting took than those after it in the median, in seconds; at least 0.

    A draft reads the prompt when it is first asked, and the records hold no other trace of it.
    """
    drafted = [
        seconds
        for seconds, num_proposed in zip(request.rounds.draft_s, request.rounds.num_proposed, strict=True)
        if num_proposed
    ]
    return max(0.0, drafted[0] - statistics.median(drafted[1:])) if len(drafted) > 1 else 0.0


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw one waterfall below another, and what is loaded once below them."""
    arms = list(dict.fromkeys(row.arm for row in rows if row.seconds is not None and not row.is_once))
    if not arms:
        return "No request was finished."
    steps = {arm: [row for row in rows if row.arm == arm and not row.is_once] for arm in arms}
    loaded = [row for row in rows if row.is_once and row.seconds]
    loads = list(dict.fromkeys(row.arm for row in loaded))
    heights = [len(steps[arm]) + 1.2 for arm in arms] + ([len(loads) + 1.6] if loads else [])
    figure.set_size_inches(WIDTH, 0.155 * sum(heights) + 0.7)
    panels = list(figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights).flat)
    longest = max(row.seconds or 0.0 for arm in arms for row in steps[arm])
    baseline_s = next((row.seconds for row in rows if (row.arm, row.step) == (study.baseline, TOTAL)), None)
    for arm, axes in zip(arms, panels, strict=False):
        axes.set_title(arm, fontsize=8.5)
        for place, row in enumerate(steps[arm]):
            seconds = row.seconds or 0.0
            colour = INK if row.step == TOTAL else study.looks[arm].colour
            axes.barh(place, seconds, left=row.start_s, height=0.72, color=colour)
            axes.annotate(
                _seconds(row.seconds),
                (row.start_s + seconds, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7.5,
            )
        if baseline_s is not None:
            axes.axvline(baseline_s, color=INK, linewidth=0.8, linestyle=(0, (1, 1.5)))
        axes.set_yticks(range(len(steps[arm])), [row.step for row in steps[arm]], fontsize=8)
        axes.set_xlim(0, longest * 1.18)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(labelbottom=arm == arms[-1], length=0)
    panels[len(arms) - 1].set_xlabel("seconds of a request, mean; dotted: total of plain decoding")
    if loads:
        _draw_loads(panels[-1], loads, loaded)
    return None


def _draw_loads(axes, loads, loaded) -> None:  # type: ignore[no-untyped-def]
    axes.set_title("loading, once", fontsize=8.5)
    for row in loaded:
        place = loads.index(row.arm)
        axes.barh(
            place,
            row.seconds,
            left=row.start_s,
            height=0.72,
            color=GRID if row.step == LOAD_TARGET else INK,
            edgecolor=INK,
            linewidth=0.5,
        )
    for place, arm in enumerate(loads):
        total = sum(row.seconds for row in loaded if row.arm == arm)
        axes.annotate(
            _seconds(total), (total, place), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7.5
        )
    axes.set_yticks(range(len(loads)), loads, fontsize=8)
    axes.margins(x=0.15)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel("seconds; light: the target, dark: drafters")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


CHART = Chart(
    "phases",
    "Where the time goes",
    "Each bar begins where the one above it ends: the seconds of an average request, step by step. Decoding that pays ends "
    "left of the dotted line. What loads once is shown apart, on its own scale.",
    Row,
    rows_of,
    draw,
)
