"""``specframe manifest create``, ``check``, ``show`` and ``diff``.

Thin: reads subjects by name, calls the package and formats. What a command needs is imported inside it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import attrs
import typer

from specframe.commands import AsJson, print_json, table_console

if TYPE_CHECKING:
    from specframe.manifest.identity import Manifest
    from specframe.manifest.report import Report, Strings

app = typer.Typer(no_args_is_help=True, help="Say what a model is, and whether a draft model fits it.")

MODEL = "A model id, a folder, a GGUF file, 'demo', or a manifest file (.toml)."
_COLOURS = {"fits": "green", "note": "cyan", "slower": "yellow", "refuse": "red"}


@app.command()
def create(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A model id, a folder, a GGUF file or 'demo'.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the manifest here, not to the output.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="The dtype of the forward; the model's own if not given.")] = None,
    adapter: Annotated[
        list[Path] | None, typer.Option(help="A PEFT adapter's folder; more than once, in order.", show_default=False)
    ] = None,
    license: Annotated[str | None, typer.Option(help="The model's licence; its card's if not given.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make the manifest of a model, its weights included."""
    from specframe.errors import InvalidRequest
    from specframe.files import check_writable
    from specframe.manifest.collector import collect
    from specframe.manifest.file import dumps, to_plain, write
    from specframe.manifest.source import open_source

    if target.endswith(".toml"):
        raise InvalidRequest("target", "must be a model", target, "a manifest file is shown with 'manifest show'")
    if output is not None:
        check_writable(output)
    manifest = collect(open_source(target), weights=True, dtype=dtype, adapters=adapter or ())
    if license is not None:
        manifest = attrs.evolve(manifest, license=license)
    if output is not None:
        write(manifest, output)
    if as_json:
        print_json(to_plain(manifest))
    elif output is None:
        typer.echo(dumps(manifest), nl=False)
    else:
        typer.echo(f"wrote {output}: {manifest.digest}")


@app.command()
def check(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=MODEL)],
    draft: Annotated[str, typer.Argument(metavar="DRAFT", help=MODEL)],
    kind: Annotated[str, typer.Option(help="What the drafter needs: same, reduced or bytes.")] = "same",
    as_json: AsJson = False,
) -> None:
    """Tell whether a draft model fits a target; loads no weights.

    Exit status: 0 if it fits, 1 if it is refused, 2 for an error.
    """
    from specframe.errors import InvalidRequest
    from specframe.manifest.report import check as run

    if kind not in ("same", "reduced", "bytes"):
        raise InvalidRequest("kind", "must be same, reduced or bytes", kind)
    ours, target_strings = _subject(target)
    theirs, draft_strings = _subject(draft)
    report = run(ours, theirs, kind, target_strings=target_strings, draft_strings=draft_strings)
    if as_json:
        print_json(
            {"kind": kind, "verdict": report.verdict, "findings": [attrs.asdict(item) for item in report.findings]}
        )
    else:
        _print_report(report)
    if report.verdict == "refuse":
        raise typer.Exit(1)


@app.command()
def show(
    subject: Annotated[str, typer.Argument(metavar="FILE", help=MODEL)],
    as_json: AsJson = False,
) -> None:
    """Show a manifest's fields, and what each digest covers. A file is checked as a whole; of a model weights are left out."""
    from specframe.manifest.digest import COVERS
    from specframe.manifest.file import to_plain

    manifest, _ = _subject(subject)
    if as_json:
        print_json(to_plain(manifest))
        return
    fields = {"digest": manifest.digest, **manifest.flat()}
    fields.pop("tokenizer.vocabulary_blocks", None)
    width = max(map(len, fields))
    for path, value in fields.items():
        typer.echo(f"{path:{width}}  {value}")
        covered = COVERS.get(value.partition(":")[0]) if isinstance(value, str) else None
        if covered and not path.startswith("template.probes."):
            typer.secho(f"{'':{width}}  {covered}", dim=True)


@app.command()
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=MODEL)],
    b: Annotated[str, typer.Argument(metavar="B", help=MODEL)],
    as_json: AsJson = False,
) -> None:
    """Show the fields in which two manifests differ. Exit status: 0 if there are none, 1 if there are, 2 for an error."""
    from specframe.manifest.diff import compare
    from specframe.manifest.report import shorten

    differences = compare(_subject(a, weights=True)[0], _subject(b, weights=True)[0])
    if as_json:
        print_json({"equal": not differences, "differences": [item._asdict() for item in differences]})
    elif not differences:
        typer.echo("no differences")
    for path, ours, theirs in differences if not as_json else ():
        typer.echo(f"{path}\n  A  {shorten(ours) or '(none)'}\n  B  {shorten(theirs) or '(none)'}")
    if differences:
        raise typer.Exit(1)


def _subject(name: str, *, weights: bool = False) -> tuple[Manifest, Strings]:
    """Return the manifest that a name stands for, and what reads the strings of its ids."""
    from specframe.manifest.collector import collect, strings_of
    from specframe.manifest.file import read
    from specframe.manifest.source import open_source

    if name.endswith(".toml") or (os.path.isfile(name) and not name.endswith(".gguf")):
        return read(name), lambda: None
    source = open_source(name)
    return collect(source, weights=weights), lambda: strings_of(source)


def _print_report(report: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    console = table_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("rule", "target", "draft", "verdict", "remedy"):
        table.add_column(column, overflow="fold")
    for item in report.findings:
        verdict = Text(item.verdict, style=_COLOURS[item.verdict])
        table.add_row(item.rule, Text(item.target or "-"), Text(item.draft or "-"), verdict, Text(item.remedy))
    console.print(table)
    console.print()
    for item in report.findings:
        if item.verdict != "fits":
            console.print(Text(f"{item.verdict}: {item.rule}: {item.reason}", style=_COLOURS[item.verdict]))
    worst = {
        "fits": "The draft model fits the target.",
        "note": "The draft model fits the target.",
        "slower": "The draft model fits the target; see what makes it slower.",
        "refuse": "The draft model does not fit the target.",
    }
    console.print(Text(worst[report.verdict], style="bold"))
