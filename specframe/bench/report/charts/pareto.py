"""The Pareto frontier of latency, energy and memory: arms that no other arm beats in everything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart, name_points, ratio_scale
from specframe.bench.report.palette import INK, WIDTH
from specframe.bench.report.study import Study

MEASURES = {"latency": "latency", "energy": "energy per token", "memory": "peak memory"}


class Row(NamedTuple):
    """An arm over plain decoding, less is better: latency (1 over the median speed-up), joules per token, peak resident bytes.

    ``is_on_frontier``: no arm is at least as good in every measure that all arms have, and better in one.
    """

    arm: str
    latency: float | None
    energy: float | None
    memory: float | None
    is_on_frontier: bool


def rows_of(study: Study) -> list[Row]:
    """Return a row for each arm with requests."""
    found = {arm: _measures(study, arm) for arm in study.arms if study.finished(arm)}
    used = [index for index in range(len(MEASURES)) if all(values[index] is not None for values in found.values())]
    compared = {arm: [values[index] for index in used] for arm, values in found.items()}
    return [Row(arm, *values, not _is_beaten(compared[arm], compared.values())) for arm, values in found.items()]


def _measures(study: Study, arm: str) -> tuple[float | None, float | None, float | None]:
    metrics = study.cell(arm).metrics
    speed = metrics["speed"]
    return 1 / speed if speed is not None else None, metrics["energy"], metrics["peak_bytes"]


def _is_beaten(values: Sequence[Any], others: Iterable[Sequence[Any]]) -> bool:
    return any(
        list(other) != list(values) and all(theirs <= ours for theirs, ours in zip(other, values, strict=True))
        for other in others
    )


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw a panel for each pair of measures that all arms have."""
    known = [name for name in MEASURES if rows and all(getattr(row, name) is not None for row in rows)]
    pairs = list(combinations(known, 2))
    if not pairs:
        return f"Only {' and '.join(MEASURES[name] for name in known) or 'nothing'} was measured of every arm."
    figure.set_size_inches(WIDTH, 2.9 * len(pairs))
    panels = figure.subplots(len(pairs), 1, squeeze=False).flat
    for axes, (across, up) in zip(panels, pairs, strict=True):
        points = {row.arm: (getattr(row, across), getattr(row, up)) for row in rows}
        ratio_scale(axes, "x", [x for x, _ in points.values()])
        ratio_scale(axes, "y", [y for _, y in points.values()])
        axes.set_xlabel(f"{MEASURES[across]}, over plain decoding's")
        axes.set_ylabel(f"{MEASURES[up]}, over plain's")
        _draw_frontier(axes, sorted(points.values()))
        name_points(axes, points, study)
    return None


def _draw_frontier(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Draw the stairs below which none of the points is, from the leftmost one down."""
    lowest = [y for _, y in points]
    stairs = [(x, y) for index, (x, y) in enumerate(points) if y < min(lowest[:index], default=math.inf)]
    axes.plot(*zip(*stairs, strict=True), drawstyle="steps-post", color=INK, linewidth=0.9, linestyle=(0, (1, 1.5)))


CHART = Chart(
    "pareto",
    "What is worth choosing: latency, energy, memory",
    "Lower left is better. Arms on the dotted line are beaten by none in both measures of the panel; the table says which are "
    "beaten by none in all. A measure that the machine does not offer is left out.",
    Row,
    rows_of,
    draw,
)
