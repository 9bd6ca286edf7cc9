"""``specframe certify``. Thin: reads options, calls ``certify_strategy``, shows how far it is, and writes the certificate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specframe.commands import AsJson, DrafterOptions, table_console

if TYPE_CHECKING:
    from specframe.testing.certificate import Certificate
    from specframe.testing.certifier import Progress
    from specframe.testing.plan import Plan

_COLOURS = {"passed": "green", "failed": "red", "noted": "cyan", "skipped": "yellow"}


def certify(
    strategy: Annotated[
        str,
        typer.Argument(metavar="DRAFTER", help="A drafter or a shipped strategy by name, or a strategy's TOML file."),
    ],
    option: DrafterOptions = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Certify it on this model too: 'demo', a folder, a GGUF file or a model id.", show_default=False
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Ask the model these, JSON lines with 'prompt', for a drafter that has little to say to others.",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str | None, typer.Option(help="The target's kernel contract; the strategy's if not given.", show_default=False)
    ] = None,
    dtype: Annotated[
        str | None, typer.Option(help="The target's dtype; the model's own if not given.", show_default=False)
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, ...; where the target loads if not given.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the certificate here, as JSON.")
    ] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it here as a page to read.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer tables, seeds, draws and prompts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Certify a drafter or a strategy: its contract, equalities with plain decoding, and its output law.

    On table targets, and with --target on a real model too. Exit status: 0 if certified, 1 if not, 2 for an error.
    """
    import specframe
    from specframe.errors import InvalidRequest
    from specframe.files import check_writable, save
    from specframe.resolve import resolve_checked

    for name, value in (
        ("prompts", prompts and str(prompts)),
        ("kernel", kernel),
        ("dtype", dtype),
        ("device", device),
    ):
        if value is not None and target is None:
            raise InvalidRequest(name, "is a target's", value, "give --target")
    for file in (output, page):
        if file is not None:
            check_writable(file)
    asked = _texts(prompts) if prompts is not None else ()
    chosen, _ = resolve_checked(strategy, kernel=kernel, settings=option or ())  # a slip costs no load

    from specframe.testing.certifier import certify_strategy
    from specframe.testing.page import page as as_page
    from specframe.testing.plan import FULL, QUICK

    plan = QUICK if quick else FULL
    engine = None
    if target is not None:
        engine = specframe.load(target, strategy=chosen, dtype=dtype, device=device)
    with _Teller(plan) as teller:
        certificate = certify_strategy(chosen, engine=engine, prompts=asked, plan=plan, say=teller)
    for file, text in ((output, certificate.to_json()), (page, as_page(certificate))):
        if file is not None:
            save(file, text)
    if as_json:
        typer.echo(certificate.to_json(), nl=False)
    else:
        _print(certificate)
        for file in (output, page):
            if file is not None:
                typer.echo(f"wrote {file}", err=True)
    if not certificate.is_certified:
        raise typer.Exit(1)


def _texts(file: Path) -> tuple[str, ...]:
    from specframe.bench.workload import read_workload

    return tuple(item.prompt for item in read_workload(file))


class _Teller:
    """Shows on standard error what is to be run, and how far it is."""

    def __init__(self, plan: Plan) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._plan = plan
        self._bar = progress.Progress(
            progress.TextColumn("{task.description:42}"),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> _Teller:
        plan = self._plan
        self._console.print(
            f"plan '{plan.name}': {plan.num_outputs} outputs a Monte Carlo test, odds of a false alarm {plan.alpha:g} in all, "
            f"largest deviation of an enumerated probability {plan.largest_deviation:g}",
            style="dim",
            soft_wrap=True,
        )
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        self._bar.update(self._task, description=progress.check, completed=progress.num_done, total=progress.num_checks)


def _print(certificate: Certificate) -> None:
    from rich.table import Table
    from rich.text import Text

    console = table_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("check", "outcome", "what was found", "seconds"):
        table.add_column(column, overflow="fold", justify="right" if column == "seconds" else "left")
    for check in certificate.checks:
        outcome = Text(check.status, style=_COLOURS[check.status])
        table.add_row(check.name, outcome, Text(check.told), f"{check.seconds:.1f}")
    console.print(table)
    console.print()
    console.print(Text(certificate.sentence, style="bold green" if certificate.is_certified else "bold red"))
    for line in certificate.missing:
        console.print(Text(f"not shown: {line}", style="yellow"))
