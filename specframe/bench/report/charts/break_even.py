"""Break-even: total latency over plain decoding's by length of the output, with and without the time of loading."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import attrs
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from specframe.bench.prediction import Prediction
from specframe.bench.report.chart import Chart, arms_of, legend, ratio_scale
from specframe.bench.report.palette import INK, WIDTH
from specframe.bench.report.study import Study

LENGTHS = tuple(2**power for power in range(13))
"""Output lengths in tokens."""


class Row(NamedTuple):
    """A strategy's costs, and its time over plain decoding's for an output of ``num_tokens`` after the first.

    ``token_s``, ``plain_token_s``: seconds per token while decoding; ``fixed_s``: F, what is paid before the first token
    beyond plain decoding; ``min_tokens``: N_min, None where no output is long enough. ``is_cold``: whether loading counts.
    """

    arm: str
    is_cold: bool
    num_tokens: int
    ratio: float
    token_s: float
    plain_token_s: float
    fixed_s: float
    min_tokens: float | None


def rows_of(study: Study) -> list[Row]:
    """Return a row for each strategy that was predicted, with loading and without, and each length."""
    return [
        row
        for arm in study.arms
        if (prediction := study.cell(arm).prediction) is not None
        for is_cold in (True, False)
        for row in _rows(arm, prediction, is_cold=is_cold)
    ]


def _rows(arm: str, prediction: Prediction, *, is_cold: bool) -> Iterator[Row]:
    session = prediction.session
    if not is_cold:
        session = attrs.evolve(session, target_load_s=0.0, draft_load_s=0.0)
    plain_s, token_s = prediction.plain_s, prediction.speculative_s
    least = session.min_tokens(plain_s, token_s)
    for length in LENGTHS:
        ratio = session.speculative_s(length, token_s) / session.baseline_s(length, plain_s)
        known = least if math.isfinite(least) else None
        yield Row(arm, is_cold, length, ratio, token_s, plain_s, session.fixed_s, known)


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw a panel for a session that begins with loading, and one for a session that has everything loaded."""
    if not rows:
        return "No strategy's costs per token are known beside those of plain decoding."
    arms = arms_of(rows)
    titles = {True: "loading included", False: "everything loaded"}
    shown = [is_cold for is_cold in titles if any(row.is_cold == is_cold for row in rows)]
    figure.set_size_inches(WIDTH, 2.3 * len(shown) + 0.7)
    panels = figure.subplots(len(shown), 1, sharex=True, squeeze=False).flat
    for axes, is_cold in zip(panels, shown, strict=True):
        axes.set_title(titles[is_cold], fontsize=8.5)
        for arm in arms:
            points = [row for row in rows if (row.arm, row.is_cold) == (arm, is_cold)]
            look = study.looks[arm]
            axes.plot(
                [row.num_tokens for row in points],
                [row.ratio for row in points],
                color=look.colour,
                linestyle=look.dashes,
            )
            least = points[0].min_tokens if points else None
            if least is not None and LENGTHS[0] <= least <= LENGTHS[-1]:
                axes.plot(least, 1, marker=look.marker, color=look.colour, zorder=3)
                axes.annotate(
                    f"{math.ceil(least)}",
                    (least, 1),
                    xytext=(0, 5),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                )
        axes.axhline(1, color=INK, linewidth=0.8)
        axes.set_xscale("log")
        axes.set_xlim(LENGTHS[0], LENGTHS[-1])
        axes.xaxis.set_major_locator(FixedLocator(LENGTHS[::2]))
        axes.xaxis.set_major_formatter("{x:.0f}")
        axes.xaxis.set_minor_locator(NullLocator())
        ratio_scale(axes, "y", [row.ratio for row in rows if row.is_cold == is_cold])
    axes.set_xlabel("tokens of the output after the first")
    figure.supylabel("total time over plain decoding's", fontsize=9.5)
    legend(figure, arms, study, has_markers=False)
    return None


CHART = Chart(
    "break-even",
    "How long an output must be",
    "Below 1 the arm is faster. A curve that falls has something to pay back first; the mark where it crosses 1 is the least "
    "length that pays (N_min). Computed from the measured costs by the cost model.",
    Row,
    rows_of,
    draw,
)
