"""Kernel conformance of a target: what a row's logits owe to how many rows are computed with it. Knows no drafter."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import attrs
import torch

from specframe.target import SINGLE, Kernel, Target, Ticket
from specframe.testing.finding import Finding, failed, passed

WIDTHS = (1, 2, 5, 13, 24)
NUM_ROWS = 24  # at the end of each prompt
_LEAST_SHIFT = 4.0  # a row that is off by one position must differ by so many times more


@attrs.frozen
class Conformance:
    """How rows of one-token forwards and of several differ, in logits.

    ``differences`` and ``flips``: the largest difference of a logit and the number of other argmaxes, by tokens a forward;
    ``smallest_margin``: of an argmax over the next id; ``shift``: how far rows of neighbouring positions differ, typically.
    """

    num_rows: int
    differences: dict[int, float]
    flips: dict[int, int]
    smallest_margin: float
    shift: float

    @property
    def largest_difference(self) -> float:
        """Over all widths."""
        return max(self.differences.values())

    @property
    def bound(self) -> float:
        """The margin below which two tokens may change places: each of both may move by the largest difference."""
        return 2 * self.largest_difference


def measure(target: Target, prompts: Sequence[Sequence[int]], kernel: Kernel = SINGLE) -> Conformance:
    """Feed the ends of prompts one token a forward and several, and compare the rows.

    Prompts of two ids or more; under a block kernel at most its width is fed at once.
    """
    widest = kernel.width or WIDTHS[-1]
    widths = [width for width in WIDTHS if width < widest] + [widest]
    differences, flips = dict.fromkeys(widths, 0.0), dict.fromkeys(widths, 0)
    margins: list[float] = []
    shifts: list[float] = []
    for number, prompt in enumerate(prompts):
        rows = {width: _rows(target, prompt, width, kernel, number) for width in widths}
        singly = rows[1]
        for width, found in rows.items():
            differences[width] = max(differences[width], float((singly - found).abs().max()))
            flips[width] += int((singly.argmax(-1) != found.argmax(-1)).sum())
        best = singly.topk(2, dim=-1).values
        margins += (best[:, 0] - best[:, 1]).tolist()
        shifts += (singly[1:] - singly[:-1]).abs().amax(-1).tolist()
    return Conformance(len(margins), differences, flips, min(margins), statistics.median(shifts))


def judge(conformance: Conformance, kernel: Kernel) -> Finding:
    """Whether rows differ by rounding alone, and under a certified block kernel not at all."""
    figures = {**attrs.asdict(conformance), "largest_difference": conformance.largest_difference, "kernel": str(kernel)}
    largest, num_flips = conformance.largest_difference, sum(conformance.flips.values())
    if kernel.is_certified and largest:
        return failed(f"rows of a certified block kernel differ by {largest:.3g}", **figures)
    if largest * _LEAST_SHIFT > conformance.shift:
        return failed(
            f"rows differ by {largest:.3g}, which is no rounding: neighbouring rows differ by that much", **figures
        )
    if not largest:
        return passed(f"{conformance.num_rows} rows are equal to the bit, whatever is computed with them", **figures)
    return passed(
        f"rows differ by at most {largest:.3g}, the argmax of {num_flips}; near-ties are margins below {conformance.bound:.3g}",
        **figures,
    )


@torch.inference_mode()
def _rows(target: Target, prompt: Sequence[int], width: int, kernel: Kernel, request_id: int) -> torch.Tensor:
    """Return the rows after each of a prompt's last ids, fed ``width`` at a time, ``[rows, vocab]`` float64."""
    num_rows = min(NUM_ROWS, len(prompt) - 1)
    begin, end = tuple(prompt[:-num_rows]), tuple(prompt[-num_rows:])
    target.reset()
    session = target.open(request_id, max_tokens=len(prompt) + 1, kernel=kernel)
    ticket = Ticket(request_id, 0, session.epoch)
    try:
        session.prefill(ticket, begin)
        rows = []
        start = 0
        while start < num_rows:
            block = end[start : start + min(width, kernel.most_ids(session.num_committed) or width)]
            rows.append(session.verify_linear(ticket, block[0], block[1:]).logits.double().cpu())
            session.commit(ticket, len(block))
            start += len(block)
    finally:
        session.close()
    return torch.cat(rows)
