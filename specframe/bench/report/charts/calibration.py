"""Acceptance against draft entropy: whether a draft that is unsure is rejected more often, and by how much."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart
from specframe.bench.report.palette import SURFACE, WIDTH
from specframe.bench.report.study import Study
from specframe.bench.visible import short

MOST_BINS, FEWEST = 10, 20
_Z = statistics.NormalDist().inv_cdf(0.975)


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
    """Return bins of equally many tokens for each arm and drafter that drew from known laws."""
    rows = []
    for arm in study.arms:
        found: dict[str, list[tuple[float, bool]]] = {}
        for request in study.finished(arm):
            for name, stats in request.drafters.items():
                found.setdefault(name, []).extend(stats.entropies)
        rows += [_row(arm, name, part) for name, pairs in found.items() for part in _bins(sorted(pairs))]
    return rows


def _bins(pairs: Sequence[tuple[float, bool]]) -> list[Sequence[tuple[float, bool]]]:
    """Cut pairs into ten parts that are equally large to within one, or into fewer where they would be small."""
    num_bins = max(1, min(MOST_BINS, len(pairs) // FEWEST))
    edges = [round(index * len(pairs) / num_bins) for index in range(num_bins + 1)]
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
    figure.set_size_inches(WIDTH, 3.3)
    axes = figure.subplots()
    lines = list(dict.fromkeys((row.arm, row.drafter) for row in rows))
    for arm, drafter in lines:
        bins = [row for row in rows if (row.arm, row.drafter) == (arm, drafter)]
        is_first = next(name for name in lines if name[0] == arm) == (arm, drafter)
        errors = [[row.acceptance - row.low for row in bins], [row.high - row.acceptance for row in bins]]
        axes.errorbar(
            [row.mean_entropy for row in bins],
            [row.acceptance for row in bins],
            yerr=errors,
            elinewidth=0.9,
            clip_on=False,
            markerfacecolor=None if is_first else SURFACE,
            label=f"{short(arm, 20)}: {short(drafter, 20)}",
            **study.looks[arm].line,
        )
    axes.set_ylim(0, 1)
    axes.set_xlim(left=0)
    axes.set_xlabel("entropy of the draft's law, nats")
    axes.set_ylabel("share accepted")
    figure.legend(loc="outside upper left", ncols=min(2, len(lines)))
    return None


CHART = Chart(
    "calibration",
    "Acceptance against the draft's entropy",
    "A draft that knows when it is wrong is accepted less where its entropy is high: the steeper the fall, the more a "
    "scheduler can use it. A point is a tenth of the tokens, or twenty where there are few; bars are 95 % intervals.",
    Row,
    rows_of,
    draw,
)
