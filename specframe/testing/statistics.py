"""Statistical tests of a certification: chi-square of counts, uniformity of transforms, and Holm's correction.

Pure functions of numbers; p-values are the upper tail of chi-square, from torch.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
import torch

LEAST_EXPECTED = 5.0  # of a cell, for the chi-square law to hold


def goodness_of_fit(counts: Mapping[Hashable, int], probs: Mapping[Hashable, float]) -> float | None:
    """Return the p-value of observed counts under a law; None where the law leaves fewer than two cells.

    Cells with fewer than five expected counts are put together, the smallest first. An outcome that the law makes impossible
    has p-value 0.
    """
    total = sum(counts.values())
    if any(count and not probs.get(outcome) for outcome, count in counts.items()):
        return 0.0
    cells: list[tuple[float, int]] = []
    expected, observed = 0.0, 0
    for outcome in sorted(probs, key=lambda outcome: probs[outcome]):
        expected, observed = expected + total * probs[outcome], observed + counts.get(outcome, 0)
        if expected >= LEAST_EXPECTED:
            cells.append((expected, observed))
            expected, observed = 0.0, 0
    if expected and cells:  # what is left of the likeliest joins the last cell
        cells[-1] = (cells[-1][0] + expected, cells[-1][1] + observed)
    return _chi_square_tail(cells) if len(cells) > 1 else None


def uniformity(values: Sequence[float], num_bins: int) -> float | None:
    """Return the p-value of values of [0, 1) under the uniform law; None for too few of them."""
    if len(values) < LEAST_EXPECTED * num_bins:
        return None
    counts = np.bincount(np.minimum((np.array(values) * num_bins).astype(int), num_bins - 1), minlength=num_bins)
    return _chi_square_tail([(len(values) / num_bins, int(count)) for count in counts])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for being several (Holm 1979): all of them below alpha are findings at that level."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _chi_square_tail(cells: Sequence[tuple[float, int]]) -> float:
    statistic = sum((observed - expected) ** 2 / expected for expected, observed in cells)
    degrees = torch.tensor((len(cells) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))
