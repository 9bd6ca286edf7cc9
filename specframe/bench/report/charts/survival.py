"""Survival curves: how often the first i proposed tokens all stand, by position and stratum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specframe.bench.report.chart import Chart, arms_of, drawn_strata, grid, legend
from specframe.bench.report.study import Study

FEWEST = 10


class Row(NamedTuple):
    """One position of an arm's proposals in a stratum; counts over all requests."""

    stratum: str
    arm: str
    position: int
    num_proposed: int
    num_decided: int
    num_evaluated: int
    num_accepted: int
    survival: float | None
    acceptance: float | None


def rows_of(study: Study) -> list[Row]:
    """Return a row for each stratum, arm and position; all strata together come first."""
    return [
        Row(
            scope,
            arm,
            index,
            position.num_proposed,
            position.num_decided,
            position.num_evaluated,
            position.num_accepted,
            position.survival,
            position.acceptance,
        )
        for scope in study.scopes
        for arm in study.arms
        if (acceptance := study.cell(arm, scope).acceptance) is not None
        for index, position in enumerate(acceptance.positions, start=1)
    ]


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw one panel for each stratum."""
    drawn = [row for row in rows if row.survival is not None and row.num_decided >= FEWEST]
    if not drawn:
        return f"No arm told of {FEWEST} proposals or more."
    (strata, left), arms = drawn_strata(drawn), arms_of(drawn)
    panels = grid(figure, strata, num_columns=3, row_height=1.28)
    for stratum, axes in panels.items():
        for arm in arms:
            points = [row for row in drawn if (row.stratum, row.arm) == (stratum, arm)]
            survival = [row.survival or 0.0 for row in points]
            axes.plot(
                [row.position for row in points], survival, **study.looks[arm].line, markersize=3.2, clip_on=False
            )
    first = next(iter(panels.values()))
    first.set_ylim(0, 1)
    first.set_xlim(0.5, max(row.position for row in drawn) + 0.5)
    first.set_yticks([0, 0.5, 1], ["0", "0.5", "1"])
    first.xaxis.set_major_locator(MaxNLocator(nbins=5, integer=True, min_n_ticks=1))
    figure.supxlabel("position i in the proposal" + (f" ({left})" if left else ""), fontsize=9.5)
    figure.supylabel("share of proposals that stand up to i", fontsize=9.5)
    legend(figure, arms, study)
    return None


CHART = Chart(
    "survival",
    "How far proposals stand",
    "S_i: of the proposals that reach position i, the share whose first i tokens all stand. A curve that falls fast means that "
    f"short proposals are enough. Positions that fewer than {FEWEST} proposals reached are in the table only.",
    Row,
    rows_of,
    draw,
)
