"""``specframe compare``. Thin: reads options, plans, runs, and prints what the results say."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from specframe.bench.report.command import report
from specframe.bench.visible import visible
from specframe.commands import AsJson

if TYPE_CHECKING:
    from specframe.bench.run import Progress

SIZES = "What is run"
SAMPLING = "Sampling, of all arms (without a temperature, greedy)"
DEMO_RESULTS = Path("compare-demo.jsonl")
_SAY_EVERY_S = 10

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Compare strategies, and transformers' own ways to generate, on one target: plan, run, report.",
)


@app.command()
def plan(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where the plan goes; a file that is there stays.")
    ],
    arm: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]ARM",
            help="A strategy or drafter by name, a TOML file, 'none', each with @fixed:K or @adaptive:K if its lengths are to "
            "be others; transformers, transformers-lookup:K or transformers-assisted:M (M a draft model). Plain decoding, and "
            "the same once more as a control, are always there.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SOURCE", help="A stratum, 'core' or a file; all strata if not given.", show_default=False
        ),
    ] = None,
    target: Annotated[str, typer.Option(help="The model: 'demo', a folder, a GGUF file or a model id.")] = "demo",
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; the model's own if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; where the model loads if not given.")] = None,
    kernel: Annotated[
        str | None, typer.Option(help="auto, single, block or block:W instead of the strategies'.")
    ] = None,
    split: Annotated[str, typer.Option(rich_help_panel=SIZES, help="test, tune or both.")] = "test",
    limit: Annotated[
        int | None, typer.Option(rich_help_panel=SIZES, help="At most so many prompts of a kind.", min=1)
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(rich_help_panel=SIZES, help="The budget of a request.", min=1)] = 128,
    repeats: Annotated[int, typer.Option(rich_help_panel=SIZES, help="How often each request is measured.", min=1)] = 3,
    order_seed: Annotated[int, typer.Option(rich_help_panel=SIZES, help="Shuffles the order of arms.")] = 0,
    temperature: Annotated[float | None, typer.Option(rich_help_panel=SAMPLING, help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(rich_help_panel=SAMPLING, help="Keep the k likeliest ids.")] = None,
    top_p: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Keep the likeliest ids that reach this.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Drop ids below this part of the best.")
    ] = None,
    seed: Annotated[
        list[int] | None,
        typer.Option(
            rich_help_panel=SAMPLING, help="One for each repeat, in turn; more than once.", show_default=False
        ),
    ] = None,
    entropies: Annotated[
        bool,
        typer.Option(
            "--entropies", rich_help_panel=SAMPLING, help="Record those of drafts' distributions, which takes time."
        ),
    ] = False,
    memory: Annotated[
        bool,
        typer.Option("--memory/--no-memory", help="Load each arm once in a process of its own, for its memory."),
    ] = True,
    gates: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Gates of your own, as a JSON list.", show_default=False)
    ] = None,
    certificate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ARM=FILE",
            help="A certificate by 'specframe certify', which promoting a sampling arm needs.",
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Fix a comparison before it is run: arms, prompts, order, sizes, gates and machine, under a digest."""
    from specframe.bench.planning import CONTROL, PLAIN, draw_up, read_gates
    from specframe.bench.workload import STRATA, Corpus
    from specframe.errors import InvalidRequest
    from specframe.files import check_writable

    if output.exists():
        raise InvalidRequest("output", "must be a new file, for a plan is never changed", str(output), "name another")
    check_writable(output)
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    given = {name: value for name, value in sampling.items() if value is not None}
    if given == {"temperature": 0}:  # greedy, as everywhere
        given = {}
    asked = _named(arm or [], "arm")
    if taken := asked.keys() & {PLAIN, CONTROL}:
        raise InvalidRequest("arm", "must leave this name to plain decoding", min(taken), "write NAME=ARM with another")
    arms = {PLAIN: "none", CONTROL: "none", **asked}
    made = draw_up(
        arms,
        Corpus(tuple(workload or STRATA), None if split == "both" else split, limit),
        gates=read_gates(gates) if gates is not None else None,
        certificates=_named(certificate or [], "certificate", needs_name=True),
        model=target,
        dtype=dtype,
        device=device,
        kernel=kernel,
        sampling=given or None,
        keeps_entropies=entropies,
        weighs_arms=memory,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
        seeds=tuple(seed or [0]),
        order_seed=order_seed,
    )
    made.write(output)
    num_requests = len(made.turns())
    if as_json:
        typer.echo(
            json.dumps({"plan": str(output), "digest": made.digest, "arms": list(arms), "num_requests": num_requests})
        )
    else:
        typer.echo(f"wrote {output}: {made.digest}")
        typer.echo(f"{len(made.items)} prompts x {len(arms)} arms x {repeats} repeats = {num_requests} requests")


@app.command()
def run(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A file of 'compare plan'.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the results go, a JSON line for each request; a run that was interrupted goes on there. By default "
            "beside the plan, ending in .jsonl.",
            show_default=False,
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Run a small built-in plan on the demo model instead; it takes minutes.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a plan, or what is left of it, and show what came out.

    Interrupt it whenever you like: the same command goes on. Exit status: 0 when all is done, 2 for an error, 130 when
    interrupted.
    """
    from specframe.bench.metrics import summarise
    from specframe.bench.plan import read_plan
    from specframe.bench.planning import require_unchanged
    from specframe.bench.run import run as run_plan
    from specframe.bench.tables import show
    from specframe.errors import InvalidPlan, InvalidRequest, InvalidResults

    if demo == (plan is not None):
        raise InvalidRequest("plan", "must be given, or --demo", str(plan) if plan else None)
    if demo:
        output = output or DEMO_RESULTS
        plan = output.with_suffix(".plan.json")
        _check_page(output)
    assert plan is not None
    output = output or plan.with_suffix(".jsonl")
    _check_results(output, plan)
    if demo:
        _fix_demo(plan)
    try:
        fixed = read_plan(plan)
        require_unchanged(fixed)
        with _Teller() as teller:
            results = run_plan(fixed, output, say=teller)
    except (InvalidPlan, InvalidResults) as error:
        if demo:
            error.add_note(f"to begin the demo anew, delete {plan} and {output}, or name another file with --output")
        raise
    except KeyboardInterrupt:
        typer.echo(f"interrupted; what is finished is in {output}, and the same command goes on from there", err=True)
        raise
    summary = summarise(results)
    if as_json:
        typer.echo(json.dumps(summary.as_data(), ensure_ascii=False))
    else:
        show(summary)
    if demo:
        _write_page(output)


app.command()(report)


def _check_results(output: Path, plan: Path) -> None:
    """Raise ``InvalidRequest`` where results cannot be written, or read again."""
    from specframe.errors import InvalidRequest
    from specframe.files import check_writable

    check_writable(output)
    if output.exists() and not output.is_file():
        raise InvalidRequest("output", "must be a regular file, for a run goes on in it", str(output))
    if output.resolve() == plan.resolve():
        raise InvalidRequest("output", "must be another file than the plan", str(output), "name one with --output")


def _check_page(results: Path) -> None:
    """Raise ``InvalidRequest`` where the demo's report could not be written, before the minutes of its run."""
    from specframe.bench.report.write import folder_of
    from specframe.errors import InvalidRequest

    folder = folder_of(results)
    if folder.exists() and not folder.is_dir():
        raise InvalidRequest("output", "must leave its name without the ending to the report's folder", str(folder),
                             "it is a file; name other results with --output")  # fmt: skip


def _fix_demo(file: Path) -> None:
    """Write the built-in plan, unless an interrupted run has done so."""
    from specframe.bench.planning import demo_plan

    if not file.exists():
        demo_plan().write(file)


def _write_page(results: Path) -> None:
    """Write the demo's report; the packages that it needs may be missing, and the run was good all the same."""
    from specframe.bench.report.write import folder_of, write_report
    from specframe.errors import MissingPackage

    try:
        page, *_ = write_report(results, folder_of(results))
    except MissingPackage as error:
        typer.echo(f"no report: {error}", err=True)
    else:
        typer.echo(f"wrote {page}", err=True)


def _named(given: list[str], option: str, *, needs_name: bool = False) -> dict[str, str]:
    """Return values by name, from ``NAME=VALUE`` or, as its own name, ``VALUE``."""
    from specframe.errors import InvalidRequest

    named: dict[str, str] = {}
    for text in given:
        name, is_named, value = text.partition("=")
        if not is_named:
            value = name
        if not name or not value or (needs_name and not is_named):
            raise InvalidRequest(option, f"must be {'NAME=VALUE' if needs_name else 'a value or NAME=VALUE'}", text)
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise InvalidRequest(option, "must be Unicode text", text)
        if name in named:
            raise InvalidRequest(
                option, "must not be given twice under one name", name, "write NAME=VALUE with another"
            )
        named[name] = value
    return named


class _Teller:
    """Shows on standard error how far a run is: a bar on a terminal, else a line now and then."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description:46.46}", markup=False),
            progress.BarColumn(bar_width=20),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[left]}"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=None, left="")
        self._started = time.monotonic()
        self._told = -float(_SAY_EVERY_S)

    def __enter__(self) -> _Teller:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        left = f"about {_duration(progress.seconds_left)} left" if progress.seconds_left is not None else ""
        doing = visible(progress.doing)
        if self._console.is_terminal:
            self._bar.update(
                self._task,
                description=doing,
                completed=progress.num_done,
                total=progress.num_all,
                left=left,
            )
            return
        now = time.monotonic() - self._started
        if now - self._told >= _SAY_EVERY_S or progress.num_done == progress.num_all:
            self._told = now
            told = f"[{_duration(now)}] {progress.num_done}/{progress.num_all} {doing}"
            print(f"{told}, {left}" if left else told, file=sys.stderr, flush=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
