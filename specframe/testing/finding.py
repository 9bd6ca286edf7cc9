"""What came of one check, before it stands in a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from specframe.testing.certificate import Status


class Statistic(NamedTuple):
    """One statistical test: its p-value, None for too few values, and their number."""

    p_value: float | None
    num_values: int


class Finding(NamedTuple):
    """A status, a sentence, figures, and the statistical tests that are judged together with all others."""

    status: Status
    told: str
    figures: Mapping[str, Any] = {}
    tests: Mapping[str, Statistic] = {}


def passed(told: str, **figures: Any) -> Finding:
    """Return that a check passed."""
    return Finding("passed", told, figures)


def failed(told: str, **figures: Any) -> Finding:
    """Return that a check failed."""
    return Finding("failed", told, figures)


def noted(told: str, **figures: Any) -> Finding:
    """Return what is reported and not demanded."""
    return Finding("noted", told, figures)
