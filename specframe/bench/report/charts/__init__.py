"""The figures of the report, one in each module."""

from specframe.bench.report.charts import (
    break_even,
    calibration,
    heat_map,
    memory,
    pareto,
    phases,
    speedups,
    survival,
)

CHARTS = (
    heat_map.CHART,
    speedups.CHART,
    phases.CHART,
    survival.CHART,
    break_even.CHART,
    memory.CHART,
    calibration.CHART,
    pareto.CHART,
)
"""All of them, in the order of the page."""
