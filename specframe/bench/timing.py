"""Timing arms against each other within one run: interleaved, paired by prompt, with an A/A control.

Absolute times of a shared machine mean nothing, so only ratios leave this module.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from specframe.bench.arms import Arm
from specframe.bench.workload import WorkItem


@attrs.define
class Timed:
    """The seconds of every arm on every prompt, ``seconds[arm][prompt]`` a list over repeats, and the tokens generated."""

    items: Sequence[WorkItem]
    seconds: dict[str, list[list[float]]]
    token_ids: dict[str, list[tuple[int, ...]]]

    def best(self, arm: str, index: int) -> float:
        """Return the least of the repeats: what the machine could do when nothing disturbed it."""
        return min(self.seconds[arm][index])

    def compare(self, arm: str, reference: str, kind: str | None = None) -> dict[str, Any]:
        """Return an arm's time over a reference's, over all prompts or those of one kind."""
        chosen = [index for index, item in enumerate(self.items) if kind in (None, item.kind)]
        ratios = [self.best(arm, index) / self.best(reference, index) for index in chosen]
        same = sum(self.token_ids[arm][index] == self.token_ids[reference][index] for index in chosen)
        return {
            "median_of_ratios": round(statistics.median(ratios), 4),
            "total_over_total": round(
                sum(self.best(arm, index) for index in chosen) / sum(self.best(reference, index) for index in chosen), 4
            ),
            "matched": f"{same}/{len(chosen)}",
        }


def time_arms(
    arms: Mapping[str, Arm],
    items: Sequence[WorkItem],
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    repeats: int,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> Timed:
    """Run every arm on every prompt, ``repeats`` times after a warm-up; the order of arms is shuffled for each prompt.

    An arm is reset before each run, so that none profits from an earlier one. ``clock`` tells seconds.
    """
    timed = Timed(items, {name: [[] for _ in items] for name in arms}, {name: [()] * len(items) for name in arms})
    order = random.Random(0)
    for name, arm in arms.items():
        progress(f"warm-up {name}")
        arm.reset()
        arm(prompts[0], 8)
    for repeat in range(repeats):
        for index, prompt in enumerate(prompts):
            progress(f"repeat {repeat + 1}/{repeats}, prompt {index + 1}/{len(prompts)} ({items[index].name})")
            names = list(arms)
            order.shuffle(names)
            for name in names:
                arms[name].reset()
                start = clock()
                timed.token_ids[name][index] = arms[name](prompt, max_new_tokens)
                timed.seconds[name][index].append(clock() - start)
    return timed
