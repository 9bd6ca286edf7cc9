"""A summary as tables in a terminal. Knows nothing that is not in the summary."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from specframe.bench.gates import DELETE, PROMOTE
from specframe.bench.machine import NOT_AVAILABLE
from specframe.bench.metrics import Cell, Summary
from specframe.bench.speed import Ratios, Speed
from specframe.bench.visible import visible
from specframe.bench.workload import ALL
from specframe.commands import table_console

_COLOURS = {PROMOTE: "green", DELETE: "red"}


def show(summary: Summary) -> None:
    """Print the tables and the verdicts."""
    table_console().print(render(summary))


def render(summary: Summary) -> RenderableType:
    """Return the tables and the verdicts, to be printed."""
    parts: list[RenderableType] = [_head(summary), *_events(summary)]
    for reference in summary.references:
        parts += [_title(f"Times as fast as {reference}"), _speeds(summary, reference)]
    parts += [
        _title(f"By stratum: median of times as fast as {summary.baseline}, end to end"),
        _strata(summary),
        _title("Quality and acceptance, which are two things"),
        _quality(summary),
        _title("Bytes, loading, energy"),
        _costs(summary),
    ]
    verdicts = list(_verdicts(summary))
    if verdicts:
        parts += [_title("Verdicts on this class of machine"), *verdicts]
    return Group(*parts)


def _head(summary: Summary) -> Text:
    lines = [
        f"plan {summary.plan.digest}",
        ", ".join(f"{name} {value}" for name, value in summary.machine.items() if value != NOT_AVAILABLE),
        f"{summary.num_done} of {summary.num_all} requests are done",
    ]
    if summary.num_split:
        lines.append(f"{summary.num_split} comparisons of arms were interrupted and taken up by another process")
    head = Text("\n".join(map(visible, lines)), style="dim")
    for title, sentences in (("not valid", summary.complaints), ("not quiet", summary.disturbances)):
        for sentence in sentences:
            head.append(f"\n{title}: {visible(sentence)}", style="red")
    return head


def _events(summary: Summary) -> Iterable[Text]:
    for sentence in summary.events:
        yield Text(visible(sentence), style="yellow")


def _title(text: str) -> Text:
    return Text(f"\n{visible(text)}", style="bold")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(_text(column), justify="right" if index else "left", overflow="fold")
    return table


def _speeds(summary: Summary, reference: str) -> Table:
    table = _table(
        "arm", "tokens", "other length", "median", "95 % interval", "total/total", "1 in 10 below", "decoding", "first token"
    )  # fmt: skip
    for name in summary.plan.arms:
        if name != reference:
            found = summary.cell(name).speeds[reference]
            table.add_row(_label(summary, name), *_speed_row(found))
    return table


def _speed_row(found: Speed) -> Sequence[str | Text]:
    whole = found.end_to_end
    is_equal = found.num_matched == found.num_requests
    return (
        Text(found.matched, style="" if is_equal else "red"),
        Text(str(found.num_other_length), style="red" if found.num_other_length else "dim"),
        _number(whole.median),
        _interval(whole),
        _number(whole.total),
        _number(whole.p10),
        _number(found.decode.median),
        _number(found.first_token.median),
    )


def _strata(summary: Summary) -> Table:
    table = _table("arm", *summary.kinds)
    for name in summary.plan.arms:
        if name != summary.baseline:
            cells = [summary.cell(name, kind) for kind in summary.kinds]
            table.add_row(_label(summary, name), *(_stratum(cell, summary.baseline) for cell in cells))
    return table


def _stratum(cell: Cell, baseline: str) -> Text:
    text = _number(cell.speeds[baseline].end_to_end.median)
    return Text(text, style=_COLOURS.get(cell.verdict.decision, "yellow") if cell.verdict is not None else "")


def _quality(summary: Summary) -> Table:
    table = _table(
        "arm", "judged right", "others equal to plain", "failed", "accepted of evaluated", "tokens per call",
        "predicted decoding",
    )  # fmt: skip
    for name in summary.plan.arms:
        cell = summary.cell(name)
        accepted, predicted = cell.acceptance, cell.prediction
        table.add_row(
            _label(summary, name),
            f"{cell.quality.num_right}/{cell.quality.num_judged}",
            f"{cell.quality.num_same}/{cell.quality.num_unjudged}",
            Text(str(cell.num_failed), style="red" if cell.num_failed else "dim"),
            f"{accepted.num_accepted}/{accepted.num_evaluated}" if accepted is not None else "-",
            _number(accepted.tokens_per_call if accepted is not None else None),
            _number(predicted.decode_speed if predicted is not None else None),
        )
    return table


def _costs(summary: Summary) -> Table:
    table = _table(
        "arm", "artifact", "logical", "deduplicated", "incremental", "peak resident", "target load", "drafters load",
        "J per token",
    )  # fmt: skip
    for name in summary.plan.arms:
        once, cell = summary.arms.get(name), summary.cell(name)
        counts = once.bytes if once is not None else None
        logical = sum(counts.logical.values()) if counts is not None else None
        told = (
            [counts.artifact, logical, counts.deduplicated, counts.incremental, counts.peak_resident] if counts else []
        )
        loads = (once.target_load_s, once.drafters_load_s) if once is not None else (None, None)
        table.add_row(
            _label(summary, name),
            *([_megabytes(value) for value in told] or ["-"] * 5),
            *(f"{load_s:.2f} s" if load_s is not None else "-" for load_s in loads),
            f"{cell.joules_per_token:.2f}" if cell.joules_per_token is not None else NOT_AVAILABLE,
        )
    return table


def _verdicts(summary: Summary) -> Iterable[RenderableType]:
    for cell in summary.cells:
        if cell.verdict is None:
            continue
        decision = cell.verdict.decision
        style = _COLOURS.get(decision, "yellow")
        yield Text.assemble(
            visible(f"{cell.arm}, {cell.kind or ALL}: "),
            (decision, f"bold {style}"),
            "" if cell.verdict.is_quiet else ", not quiet",
        )
        for reason in cell.verdict.reasons:
            yield Text(f"  {visible(reason)}", style="dim")


def _label(summary: Summary, name: str) -> Text:
    return _text(f"{name} (A/A control)" if name in summary.controls else name)


def _text(told: str) -> Text:
    """Return a text as it is: of a name, nothing is markup, and nothing speaks to the terminal."""
    return Text(visible(told))


def _number(value: float | None) -> str:
    return f"{value:.3f}" if value is not None else "-"


def _interval(ratios: Ratios) -> str:
    return f"{ratios.low:.3f} to {ratios.high:.3f}" if ratios.low is not None else "too few"


def _megabytes(num_bytes: int | None) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes is not None else "-"
