"""The plain-language answer to "does it pay here?", and what speaks against believing it. Knows the summary only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from specframe.bench.gates import DELETE, PROMOTE
from specframe.bench.metrics import Cell, Summary


class Answer(NamedTuple):
    """A headline, and sentences that qualify it. ``arm``: the strategy that it is about, None without one."""

    headline: str
    sentences: tuple[str, ...]
    arm: str | None


def answer(summary: Summary) -> Answer:
    """Return what the verdicts come to.

    It is about the strategy that is promoted over all strata, else in most of them, the faster of equals.
    """
    judged = [cell for cell in summary.cells if cell.kind is None and cell.verdict is not None]
    if not judged:
        return Answer("Not known: no strategy that drafts has a finished request.", (), None)
    best = max(judged, key=lambda cell: _rank(summary, cell))
    paying = _strata(summary, best.arm, PROMOTE)
    speed = best.speeds[summary.baseline].end_to_end.median
    if speed is None:
        headline = f"Not known: no request of {best.arm} can be compared with plain decoding."
    elif best.verdict is not None and best.verdict.decision == PROMOTE:
        headline = f"Yes: {best.arm} is {speed:.2f} times as fast as plain decoding."
    elif paying:
        strata = _listed(paying) if len(paying) <= 3 else f"{len(paying)} of {len(summary.kinds)} strata"
        headline = f"In part: {best.arm} pays for {strata}, not for everything."
    elif best.verdict is not None and best.verdict.decision == DELETE:
        headline = f"No: {best.arm}, the best strategy here, is {speed:.2f} times as fast as plain decoding."
    else:
        why = "not every gate holds" if best.verdict is None or best.verdict.is_quiet else "the machine was not quiet"
        headline = f"Not shown: {best.arm} was {speed:.2f} times as fast as plain decoding, but {why}."
    return Answer(headline, tuple(_sentences(summary, best)), best.arm)


def _rank(summary: Summary, cell: Cell) -> tuple[bool, int, bool, float]:
    assert cell.verdict is not None
    decision = cell.verdict.decision
    speed = cell.speeds[summary.baseline].end_to_end.median
    return decision == PROMOTE, len(_strata(summary, cell.arm, PROMOTE)), decision != DELETE, speed or 0.0


def _strata(summary: Summary, arm: str, decision: str) -> list[str]:
    return [
        cell.kind
        for cell in summary.cells
        if cell.arm == arm and cell.kind is not None and cell.verdict is not None and cell.verdict.decision == decision
    ]


def _sentences(summary: Summary, best: Cell) -> list[str]:
    speed = best.speeds[summary.baseline]
    whole, told = speed.end_to_end, []
    if whole.median is not None:
        interval = (
            f" (95 % interval {whole.low:.2f} to {whole.high:.2f})"
            if whole.low is not None
            else " (too few for an interval)"
        )
        told.append(
            f"Half of its {len(whole.values)} requests were at least {whole.median:.2f} times as fast{interval}, nine in ten "
            f"at least {whole.p10:.2f} times; all together {whole.total:.2f} times."
        )
    told.append(f"Of {speed.num_requests} texts {speed.num_matched} are plain decoding's, token by token.")
    if paying := _strata(summary, best.arm, PROMOTE):
        told.append(f"It pays for {_listed(paying)}.")
    if losing := _strata(summary, best.arm, DELETE):
        told.append(f"By the plan's gates it is to be left out for {_listed(losing)}.")
    for control in summary.controls:
        again = summary.cell(control).speeds[summary.baseline].end_to_end.median
        if again is not None:
            told.append(f"Plain decoding against itself came to {again:.3f}, which is the noise of the run.")
    return told


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
