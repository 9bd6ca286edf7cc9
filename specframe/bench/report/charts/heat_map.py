"""Method by stratum: how much faster, and, in a panel of its own, whether the answers are as good."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from specframe.bench.report.chart import Chart, arms_of, drawn_strata
from specframe.bench.report.palette import SURFACE, WIDTH
from specframe.bench.report.study import Study
from specframe.bench.visible import short
from specframe.bench.workload import ALL

_SPEED = LinearSegmentedColormap.from_list("speed", ("#a63603", "#fdae6b", "#f7f7f7", "#74add1", "#08519c"))
_QUALITY = LinearSegmentedColormap.from_list("quality", ("#54278f", "#9e9ac8", "#f2f0f7"))
_MOST = math.log(2.5)


class Cell(NamedTuple):
    """What a cell says, and how far up it is on the scale of colours, from 0 to 1."""

    text: str
    level: float


class Row(NamedTuple):
    """An arm in a stratum.

    ``speed``: the median of per-request speed-ups; ``num_matched`` of ``num_requests`` have the tokens of plain decoding;
    ``num_right`` of the ``num_judged`` answers keep the rule of their prompt.
    """

    stratum: str
    arm: str
    speed: float | None
    num_matched: int
    num_requests: int
    num_right: int
    num_judged: int


def rows_of(study: Study) -> list[Row]:
    """Return a row for each stratum and arm; all strata together come last."""
    return [_row(study, scope, arm) for scope in (*study.summary.kinds, ALL) for arm in study.arms]


def _row(study: Study, scope: str, arm: str) -> Row:
    cell, speed = study.cell(arm, scope), study.speed(arm, scope)
    quality = cell.quality
    return Row(
        scope,
        arm,
        speed.end_to_end.median,
        speed.num_matched,
        speed.num_requests,
        quality.num_right,
        quality.num_judged,
    )


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw the panels side by side, strata down and arms across."""
    if not any(row.num_requests for row in rows):
        return "No request was finished."
    (strata, left), arms = drawn_strata(rows), arms_of(rows)
    others = [arm for arm in arms if arm != study.summary.baseline] or arms  # plain decoding is itself
    panels = [("times faster", _SPEED, _speed, others), ("% equal texts", _QUALITY, _equal, others)]
    if any(row.num_judged for row in rows):
        panels.append(("% right answers", _QUALITY, _right, arms))
    figure.set_size_inches(WIDTH, 0.24 * len(strata) + 1.5)
    widths = [len(names) for *_, names in panels]
    made = figure.subplots(1, len(panels), sharey=True, squeeze=False, width_ratios=widths)[0]
    fontsize = 7.5 * min(1.0, 16 / sum(widths))
    for axes, (title, colours, cell_of, names) in zip(made, panels, strict=True):
        axes.set_title(title)
        for row in rows:
            if row.arm in names and row.stratum in strata:
                _draw_cell(axes, names.index(row.arm), strata.index(row.stratum), cell_of(row), colours, fontsize)
        axes.set_xlim(-0.5, len(names) - 0.5)
        told = [short(arm) for arm in names]
        axes.set_xticks(range(len(names)), told, rotation=40, ha="right", rotation_mode="anchor", fontsize=8)
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
    made[0].set_yticks(range(len(strata)), [short(name) for name in strata], fontsize=8.5)
    made[0].set_ylim(len(strata) - 0.5, -0.5)
    figure.supxlabel(left, fontsize=8.5)
    return None


def _draw_cell(axes: Axes, x: int, y: int, cell: Cell | None, colours: Colormap, fontsize: float) -> None:
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": fontsize}
    if cell is None:
        axes.text(x, y, "\u2013", **style)
        return
    colour = colours(cell.level)
    axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, facecolor=colour, edgecolor=SURFACE, linewidth=0.8))
    is_dark = sum(weight * part for weight, part in zip((0.3, 0.59, 0.11), colour, strict=False)) < 0.55
    axes.text(x, y, cell.text, color="#fefefe" if is_dark else "#111111", **style)


def _speed(row: Row) -> Cell | None:
    if row.speed is None:
        return None
    return Cell(f"{row.speed:.2f}", 0.5 + 0.5 * max(-1.0, min(1.0, math.log(row.speed) / _MOST)))


def _equal(row: Row) -> Cell | None:
    return _percent(row.num_matched, row.num_requests)


def _right(row: Row) -> Cell | None:
    return _percent(row.num_right, row.num_judged)


def _percent(count: int, total: int) -> Cell | None:
    """Return a share, 100 only for all of them."""
    return Cell(f"{math.floor(100 * count / total)}", count / total) if total else None


CHART = Chart(
    "heat-map",
    "Method by stratum",
    "Performance: how many times faster than plain decoding in the median (blue: faster, orange: slower, white: the same). "
    "Quality: the share of requests whose tokens are plain decoding's own, and of answers that keep the rule of their prompt, "
    "where it has one.",
    Row,
    rows_of,
    draw,
)
