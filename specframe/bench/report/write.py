"""Writing a report: a page and its figures into a folder, from a file of results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specframe.bench.results import read_results
from specframe.errors import InvalidRequest, MissingPackage
from specframe.files import write_whole

PAGE = "index.html"


def folder_of(results: Path) -> Path:
    """Return the folder of a report where none is named: beside the results, of their name without its ending."""
    return results.with_suffix("") if results.suffix else results.with_name(f"{results.name}-report")


def write_report(results: str | Path, folder: str | Path) -> Sequence[Path]:
    """Write the page and, as SVG and PNG, its figures; return the files, the page first.

    Raises ``InvalidResults`` or ``InvalidPlan`` for what cannot be read, ``InvalidRequest`` for a folder that cannot be
    written, and ``MissingPackage``.
    """
    results, folder = Path(results), Path(folder)
    read = read_results(results)
    try:
        from specframe.bench.report.charts import CHARTS
        from specframe.bench.report.drawing import draw
        from specframe.bench.report.page import page
        from specframe.bench.report.study import Study
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("jinja2", "matplotlib"):
            raise
        raise MissingPackage(f"a report needs {package}; install it with: pip install 'specframe[report]'") from error
    study = Study.of(read)
    drawn = [draw(chart, study) for chart in CHARTS]
    content: dict[str, str | bytes] = {PAGE: page(study, drawn, source=results.name)}
    for one in drawn:
        content |= {f"{one.chart.key}.svg": one.svg, f"{one.chart.key}.png": one.png}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in content.items():
            write_whole(folder / name, data)
    except OSError as error:
        raise InvalidRequest(
            "output", "must be a folder that can be written", str(folder), str(error.strerror)
        ) from error
    return [folder / name for name in content]
