"""``specframe compare report``. Thin: reads options, writes the report, says what it says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from specframe.commands import AsJson


def report(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="A file of 'compare run', finished or not.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Where the page and its figures go; a folder of the results' name beside them if not given.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make a page to look at: verdicts, figures, their tables, and texts with where each token comes from.

    One HTML file that needs nothing else, and its figures as SVG and PNG. Exit status: 0, or 2 for an error.
    """
    from specframe.bench.report.write import folder_of, write_report

    page, *figures = write_report(results, output or folder_of(results))
    if as_json:
        typer.echo(json.dumps({"page": str(page), "figures": [str(file) for file in figures]}))
    else:
        typer.echo(f"wrote {page} and {len(figures)} files of figures beside it")
