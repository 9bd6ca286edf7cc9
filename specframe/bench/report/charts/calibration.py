"""Acceptance against draft entropy: whether a draft that is unsure is rejected more often, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart, arms_of, legend
from specframe.bench.report.palette import WIDTH
from specframe.bench.report.study import Study

NUM_BINS = 10
_Z = 1.959964  # of 95 %


class Row(NamedTuple):
    """Tokens of an arm's drafter whose laws had entropies, in nats, from ``low_entropy`` to ``high_entropy``.

    ``low``, ``high``: Wilson's 95 % interval of the acceptance.
    """

    arm: str
    drafter: str
    low_entropy: float
    high_entropy: float
    mean_entropy: float
    num_tokens: int
    num_accepted: int
    acceptance: float
    low: float
    high: float


def rows_of(study: Study) -> list[Row]:
    """Return ten bins of about equally many tokens for each arm and drafter that drew from known laws."""
    rows = []
    for arm in study.arms:
        found: dict[str, list[tuple[float, bool]]] = {}
        for request in study.finished(arm):
            for name, stats in request.drafters.items():
                found.setdefault(name, []).extend(stats.entropies)
        rows += [_row(arm, name, part) for name, pairs in found.items() for part in _bins(sorted(pairs))]
    return rows


def _bins(pairs: Sequence[tuple[float, bool]]) -> list[Sequence[tuple[float, bool]]]:
    edges = [round(index * len(pairs) / NUM_BINS) for index in range(NUM_BINS + 1)]
    return [pairs[start:end] for start, end in pairwise(edges) if end > start]


def _row(arm: str, drafter: str, pairs: Sequence[tuple[float, bool]]) -> Row:
    num_accepted = sum(is_accepted for _, is_accepted in pairs)
    entropies = [entropy for entropy, _ in pairs]
    return Row(
        arm,
        drafter,
        entropies[0],
        entropies[-1],
        sum(entropies) / len(pairs),
        len(pairs),
        num_accepted,
        num_accepted / len(pairs),
        *wilson(num_accepted, len(pairs)),
    )


def wilson(num_successes: int, num_trials: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share."""
    share, square = num_successes / num_trials, _Z**2 / num_trials
    middle = share + square / 2
    half = math.sqrt(square * (share * (1 - share) + square / 4))
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw a line for each arm and drafter, with the interval of each bin."""
    if not rows:
        return (
            "No entropy was recorded: tokens that are offered, and all of greedy decoding, are point masses and have none; "
            "a plan of a sampled comparison can keep those of drawn tokens."
        )
    figure.set_size_inches(WIDTH, 3.1)
    axes = figure.subplots()
    for arm, drafter in dict.fromkeys((row.arm, row.drafter) for row in rows):
        bins = [row for row in rows if (row.arm, row.drafter) == (arm, drafter)]
        acceptance = [row.acceptance for row in bins]
        axes.errorbar(
            [row.mean_entropy for row in bins],
            acceptance,
            yerr=[
                [row.acceptance - row.low for row in bins],
                [row.high - row.acceptance for row in bins],
            ],
            elinewidth=0.9,
            **study.looks[arm].line,
        )
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.set_xlabel("entropy of the draft's law, nats; a point is a tenth of the tokens")
    axes.set_ylabel("share accepted")
    legend(figure, arms_of(rows), study)
    return None


CHART = Chart(
    "calibration",
    "Acceptance against the draft's entropy",
    "A draft that knows when it is wrong is accepted less where its entropy is high: the steeper the fall, the more a "
    "scheduler can use it. Bars are 95 % intervals.",
    Row,
    rows_of,
    draw,
)
