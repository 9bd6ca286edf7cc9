"""What a figure of the report consists of: rows, which are also its table, and a drawing made of nothing but those rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from specframe.bench.report.palette import GRID, WIDTH
from specframe.bench.report.study import Study
from specframe.bench.report.visible import short

_LINE = 11.0  # between names, in points
_RATIOS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)


@attrs.frozen
class Chart:
    """A figure. ``reading``: how to read it, a sentence or two; ``row``: the type of its rows, a named tuple.

    ``rows_of`` makes the rows; ``draw`` draws them on an empty figure and returns None, or why there is nothing to draw.
    """

    key: str
    title: str
    reading: str
    row: type[Any]
    rows_of: Callable[[Study], Sequence[Any]]
    draw: Callable[[Figure, Sequence[Any], Study], str | None]


def arms_of(rows: Sequence[Any]) -> list[str]:
    """Return the arms of rows in order."""
    return list(dict.fromkeys(row.arm for row in rows))


def grid(figure: Figure, names: Sequence[str], *, num_columns: int, row_height: float) -> dict[str, Axes]:
    """Divide a figure into small axes that share both scales, one for each name; ``row_height`` in inches."""
    num_columns = min(num_columns, len(names))
    num_rows = -(-len(names) // num_columns)
    figure.set_size_inches(WIDTH, num_rows * row_height + 0.8)
    made = list(figure.subplots(num_rows, num_columns, sharex=True, sharey=True, squeeze=False).flat)
    for spare in made[len(names) :]:
        spare.remove()
    for axes, name in zip(made, names, strict=False):
        axes.set_title(short(name), fontsize=8.5)
    for axes in made[: len(names)][-num_columns:]:
        axes.tick_params(labelbottom=True)
    return dict(zip(names, made, strict=False))


def legend(figure: Figure, arms: Sequence[str], study: Study, *, has_markers: bool = True) -> None:
    """Put one legend of arms above everything."""
    hidden = {} if has_markers else {"marker": ""}
    handles = [Line2D([], [], label=short(arm), **{**study.looks[arm].line, **hidden}) for arm in arms]
    figure.legend(handles=handles, loc="outside upper left", ncols=2 if len(arms) > 1 else 1)


def ratio_scale(axes: Axes, which: str, values: Sequence[float]) -> None:
    """Scale axis ``x`` or ``y`` for ratios: logarithmic, so that twice and half are equally far from 1, which is in sight."""
    low, high = min(0.9, *values), max(1.1, *values)
    low, high = low * (low / high) ** 0.05, high * (high / low) ** 0.05
    axes.set(**{f"{which}scale": "log", f"{which}lim": (low, high)})
    axis: Axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    axis.set_major_locator(FixedLocator([tick for tick in _RATIOS if low <= tick <= high]))
    axis.set_major_formatter(lambda value, _: f"{value:g}\u00d7")
    axis.set_minor_locator(NullLocator())


def name_points(axes: Axes, points: Mapping[str, tuple[float, float]], study: Study) -> None:
    """Draw arms as points with their names beside them; the limits of the axes must be set."""
    for arm, (x, y) in points.items():
        look = study.looks[arm]
        axes.plot(x, y, marker=look.marker, color=look.colour, markersize=7, clip_on=False, zorder=3)
    axes.figure.draw_without_rendering()  # from here on it is known where on the paper a point is
    to_points = 72 / axes.figure.dpi
    placed = {arm: axes.transData.transform(point) * to_points for arm, point in points.items()}
    middle = axes.bbox.x0 + axes.bbox.width * 0.6
    for is_left in (True, False):
        arms = sorted(
            (arm for arm in points if (placed[arm][0] > middle * to_points) == is_left), key=lambda arm: placed[arm][1]
        )
        for arm, y in zip(arms, spread([placed[arm][1] for arm in arms], _LINE), strict=True):
            shift = y - placed[arm][1]
            axes.annotate(
                short(arm),
                points[arm],
                xytext=(-9 if is_left else 9, shift),
                textcoords="offset points",
                ha="right" if is_left else "left",
                va="center",
                fontsize=8.5,
                color=study.looks[arm].colour,
                arrowprops={"arrowstyle": "-", "color": GRID, "linewidth": 0.8} if abs(shift) > 3 else None,
            )


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return increasing values moved apart so that neighbours are ``gap`` apart at least, their mean where it was."""
    moved: list[float] = []
    for value in values:
        moved.append(max(value, moved[-1] + gap) if moved else value)
    shift = (sum(moved) - sum(values)) / max(len(values), 1)
    return [value - shift for value in moved]
