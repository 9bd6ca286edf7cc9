"""The distribution of per-request speed-ups, so that a mean hides no request that became slower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart, arms_of, legend, ratio_scale
from specframe.bench.report.palette import INK, WIDTH
from specframe.bench.report.study import Study


class Row(NamedTuple):
    """One request of an arm: how many times faster than plain decoding it was, end to end."""

    arm: str
    stratum: str
    speed_up: float


def rows_of(study: Study) -> list[Row]:
    """Return a row for each request of an arm that can be compared, slowest first."""
    return [
        Row(arm, stratum, value)
        for arm in study.others
        for value, stratum in sorted(
            (value, kind) for kind in study.summary.kinds for value in study.speed(arm, kind).end_to_end.values
        )
    ]


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw a staircase for each arm."""
    if not rows:
        return "No request was finished both by plain decoding and by another arm."
    figure.set_size_inches(WIDTH, 3.6)
    axes = figure.subplots()
    for arm in arms_of(rows):
        look = study.looks[arm]
        axes.ecdf([row.speed_up for row in rows if row.arm == arm], color=look.colour, linestyle=look.dashes)
    axes.axvline(1, color=INK, linewidth=0.8)
    ratio_scale(axes, "x", [row.speed_up for row in rows])
    axes.set_xlabel("times faster than plain decoding, end to end (left of 1: slower)")
    axes.set_ylabel("share of requests at most so fast")
    legend(figure, arms_of(rows), study, has_markers=False)
    return None


CHART = Chart(
    "speedups",
    "Speed-ups, request by request",
    "How many requests gained how much: a curve further to the right is faster, and its height where it crosses 1 is the share "
    "of requests that became slower. A control arm (plain decoding again) shows what is noise.",
    Row,
    rows_of,
    draw,
)
