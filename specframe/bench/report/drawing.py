"""Drawing charts: as SVG and PNG files, and as parts of a page. The only module that runs matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from textwrap import fill
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure

from specframe.bench.report.chart import Chart
from specframe.bench.report.palette import SETTINGS, WIDTH
from specframe.bench.report.study import Study


class Drawn(NamedTuple):
    """A chart, its rows, and its drawing as files; ``missing`` says why there is nothing to draw, and the files say it too."""

    chart: Chart
    rows: Sequence[Any]
    missing: str | None
    svg: bytes
    png: bytes


def draw(chart: Chart, study: Study) -> Drawn:
    """Draw a chart. The same results give the same bytes."""
    rows = chart.rows_of(study)
    settings: Any = {**SETTINGS, "svg.hashsalt": chart.key}  # matplotlib's own type of it lists every key
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "Glyph .* missing from font"
        )  # a name may be of any script; the SVG has it as text
        figure = Figure(layout="constrained")
        missing = chart.draw(figure, rows, study)
        if missing is not None:
            figure = Figure((WIDTH, 1.4), layout="constrained")
            figure.text(0.5, 0.5, fill(missing, 66), ha="center", va="center")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # both files have the layout that is there now
        svg = _saved(figure, "svg", {"Date": None, "Creator": None})
        return Drawn(chart, rows, missing, svg, _saved(figure, "png", {"Software": None}))


def _saved(figure: Figure, kind: str, metadata: dict[str, None]) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()
