"""What a figure of the report consists of: rows, which are also its table, and a drawing made of nothing but those rows."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from specframe.bench.report.palette import QUIET, WIDTH
from specframe.bench.report.study import Study
from specframe.bench.visible import short
from specframe.bench.workload import ALL

MOST_STRATA = 60
_LINE = 11.0  # between names, in points
_RATIOS = (0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0)
_FINE_RATIOS = tuple(round(0.5 + step / 20, 2) for step in range(30))


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


def drawn_strata(rows: Sequence[Any]) -> tuple[list[str], str]:
    """Return the strata of rows that a figure has room for, and what it says of the others; the table has them all."""
    names = list(dict.fromkeys(row.stratum for row in rows))
    shown = sorted(names, key=lambda name: name != ALL)[:MOST_STRATA]
    num_left = len(names) - len(shown)
    return [name for name in names if name in shown], f"{num_left} more strata are in the table" if num_left else ""


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
        axes.set_title(short(name, 20), fontsize=8.5)
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
    axis.set_major_locator(FixedLocator(_FINE_RATIOS if high / low < 1.6 else _RATIOS))
    axis.set_major_formatter(lambda value, _: f"{value:g}\u00d7")
    axis.set_minor_locator(NullLocator())


def name_points(axes: Axes, points: Mapping[str, tuple[float, float]], study: Study) -> None:
    """Draw arms as points with their names to the right, for which room is made; the limits of the axes must be set."""
    for arm, (x, y) in points.items():
        look = study.looks[arm]
        axes.plot(x, y, marker=look.marker, color=look.colour, markersize=7, clip_on=False, zorder=3)
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # from here on it is known where on the paper things are
    to_points = 72 / figure.dpi
    names = {arm: short(arm, 22) for arm in points}
    _make_room(
        axes, [x for x, _ in points.values()], 5.4 * max(map(len, names.values())) / (axes.bbox.width * to_points)
    )
    on_paper = {arm: axes.transData.transform(point) * to_points for arm, point in points.items()}
    rows = _touching({arm: (y - 0.8 * _LINE, y + 0.8 * _LINE) for arm, (_, y) in on_paper.items()})
    for row in rows:
        for group in _touching({arm: (on_paper[arm][0], on_paper[arm][0] + 12 + 5.4 * len(names[arm])) for arm in row}):
            _name_group(axes, {arm: points[arm] for arm in group}, names, {arm: on_paper[arm] for arm in group})


def _name_group(
    axes: Axes, points: Mapping[str, tuple[float, float]], names: Mapping[str, str], on_paper: Mapping[str, Any]
) -> None:
    """Write the names of points that are close together below one another, right of them all."""
    right = max(x for x, _ in on_paper.values())
    arms = sorted(points, key=lambda arm: float(on_paper[arm][1]))
    for arm, height in zip(arms, spread([on_paper[arm][1] for arm in arms], _LINE), strict=True):
        x, y = on_paper[arm]
        place = (right - x + 9, height - y + (5 if len(points) == 1 else 0))
        line = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
        axes.annotate(
            names[arm],
            points[arm],
            xytext=place,
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            arrowprops=line if math.hypot(place[0] - 9, place[1]) > 6 else None,
        )


def _touching(spans: Mapping[str, tuple[float, float]]) -> list[list[str]]:
    """Group names whose spans follow one another without a gap."""
    groups: list[list[str]] = []
    end = -math.inf
    for name, (low, high) in sorted(spans.items(), key=lambda item: item[1]):
        if low > end:
            groups.append([])
        groups[-1].append(name)
        end = max(end, high)
    return groups


def _make_room(axes: Axes, values: Sequence[float], share: float) -> None:
    """Move the right limit so that the greatest of the values leaves this share of the width free."""
    scale = axes.xaxis.get_transform()
    low, high = scale.transform(axes.get_xlim())
    most = scale.transform([max(values)])[0]
    wanted = low + (most - low) / (1 - min(share, 0.6))
    if wanted > high:
        axes.set_xlim(right=scale.inverted().transform([wanted])[0])


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Return increasing values moved as little as possible so that neighbours are ``gap`` apart at least.

    Values that push one another move as one block, whose members then keep their mean.
    """
    blocks: list[list[float]] = []  # of what values would be without the gaps before them
    for index, value in enumerate(values):
        blocks.append([value - index * gap])
        while len(blocks) > 1 and statistics.fmean(blocks[-2]) > statistics.fmean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    level = [statistics.fmean(block) for block in blocks for _ in block]
    return [value + index * gap for index, value in enumerate(level)]
