"""Peak resident bytes against median latency, a point for each arm."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart, name_points
from specframe.bench.report.palette import WIDTH
from specframe.bench.report.study import Study

GIB = 2**30


class Row(NamedTuple):
    """What an arm holds, each number counted by its own rule, and its median request; None for what was not measured."""

    arm: str
    latency_s: float | None
    peak_resident_bytes: int | None
    artifact_bytes: int | None
    logical_bytes: int | None
    deduplicated_bytes: int | None
    incremental_bytes: int | None
    unknown: str


def rows_of(study: Study) -> list[Row]:
    """Return a row for each arm."""
    return [_row(study, arm) for arm in study.arms]


def _row(study: Study, arm: str) -> Row:
    seconds = [request.end_to_end_s for request in study.finished(arm) if request.end_to_end_s is not None]
    latency_s = statistics.median(seconds) if seconds else None
    record = study.results.arms.get(arm)
    if record is None or record.bytes is None:
        return Row(arm, latency_s, None, None, None, None, None, "")
    held = record.bytes
    return Row(
        arm,
        latency_s,
        held.peak_resident,
        held.artifact,
        sum(held.logical.values()),
        held.deduplicated,
        held.incremental,
        ", ".join(held.unknown),
    )


def draw(figure: Figure, rows: Sequence[Row], study: Study) -> str | None:
    """Draw the arms that both numbers are known of."""
    points = {
        row.arm: (row.peak_resident_bytes / GIB, row.latency_s)
        for row in rows
        if row.peak_resident_bytes is not None and row.latency_s is not None
    }
    if not points:
        return "Peak memory was not measured: no arm was loaded in a process of its own."
    figure.set_size_inches(WIDTH, 3.2)
    axes = figure.subplots()
    axes.set_xlim(0, 1.15 * max(x for x, _ in points.values()))
    axes.set_ylim(0, 1.15 * max(y for _, y in points.values()))
    axes.set_xlabel("peak resident memory, GiB")
    axes.set_ylabel("seconds of a request, median")
    name_points(axes, points, study)
    return None


CHART = Chart(
    "memory",
    "Memory against latency",
    "Lower is faster, further left is smaller. The peak is that of a process that loads the arm and generates once, "
    "loading included. The table keeps apart what files, parts, shared storages and the whole process take.",
    Row,
    rows_of,
    draw,
)
