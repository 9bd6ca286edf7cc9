"""What adaptive lengths are worth: ``python -m specframe.bench.adaptive -o docs/results/adaptive.json``.

Greedy prompt lookup on the demo target, in float32 and in bfloat16 under a block kernel. On the prompts of the core against
transformers' plain decoding; on every stratum against plain decoding, and against the fixed length that did best on that
stratum's tuning prompts. Interleaved, with a control, the least of the repeats.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.arms import Arm, EngineArm, TransformersArm
from specframe.bench.telling import tell, teller
from specframe.bench.timing import Timed, time_arms
from specframe.bench.workload import STRATA, Corpus, WorkItem, core_workload
from specframe.lengths import make_policy
from specframe.loading import load_target
from specframe.prompt import encode
from specframe.strategy import Length, Strategy, shipped
from specframe.transformers_target import TransformersTarget

KINDS = ("edit", "quote", "json", "chat")
SETTINGS: dict[str, dict[str, Any]] = {
    "float32": {"name": "prompt_lookup", "lengths": (3, 7, 15)},
    "bfloat16": {"name": "prompt_lookup_block", "lengths": (3, 7)},
}
"""The shipped strategy whose lengths are measured, and the fixed lengths to compare with, by dtype."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.adaptive", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--prompts", type=int, default=4, help="test prompts of each stratum")
    parser.add_argument("--tuning-prompts", type=int, default=2, help="tuning prompts of each stratum")
    parser.add_argument(
        "--repeats", type=int, default=1, help="of every stratum; the core's prompts run twice as often"
    )
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    say = teller()
    results: dict[str, Any] = {"what": "ratios of time, end to end, greedy; lower is better", **_sizes(options)}
    for dtype in SETTINGS:

        def say_of_dtype(text: str, dtype: str = dtype) -> None:
            say(f"{dtype}, {text}")

        results[dtype] = Lengths(load_target("demo", dtype=dtype), options, say_of_dtype, **SETTINGS[dtype]).run()
    tell(results, options.output)
    return 0


def _sizes(options: argparse.Namespace) -> dict[str, int]:
    return {name: value for name, value in vars(options).items() if name != "output"}


class Lengths:
    """Adaptive lengths against fixed ones on one target."""

    def __init__(
        self,
        target: TransformersTarget,
        options: argparse.Namespace,
        say: Callable[[str], None],
        *,
        name: str,
        lengths: Sequence[int],
    ) -> None:
        self._target, self._options, self._say = target, options, say
        strategy = Strategy.from_toml(shipped()[name])

        def lookup(length: int, policy: str) -> EngineArm:
            return EngineArm(target, attrs.evolve(strategy, length=Length(policy, length)))

        plain = EngineArm(target, Strategy(kernel=strategy.kernel))
        self._kernel = str(plain.engine.kernel)
        self._library: dict[str, Arm] = {
            "library plain": (library := TransformersArm(target.model)),
            "library plain again": library,
        }
        self._own: dict[str, Arm] = {"plain": plain, "adaptive": lookup(15, "adaptive")}
        self._again: dict[str, Arm] = {"plain again": plain}
        self._fixed: dict[str, Arm] = {f"fixed {length}": lookup(length, "fixed") for length in lengths}

    def run(self) -> dict[str, Any]:
        """Return what is stored."""
        core = self._timed(self._library | self._own, core_workload(), 2 * self._options.repeats)
        corpus = Corpus(split="tune", limit=self._options.tuning_prompts)
        tuning = self._timed(self._fixed, corpus.items(), self._options.repeats)
        corpus = attrs.evolve(corpus, split="test", limit=self._options.prompts)
        test = self._timed(self._own | self._again | self._fixed, corpus.items(), self._options.repeats)
        best = {kind: self._best_fixed(tuning, kind) for kind in STRATA}
        return {
            "kernel": self._kernel,
            "length_policy": make_policy("adaptive", is_flat=False).name,
            "row_costs": self._target.row_costs(),
            "control_core": core.compare("library plain again", "library plain"),
            "control_strata": test.compare("plain again", "plain"),
            "adaptive_over_library_plain": _by(core, "library plain", KINDS),
            "plain_over_library_plain": core.compare("plain", "library plain"),
            "adaptive_over_plain": _by(test, "plain", STRATA),
            "best_fixed": best,
            "adaptive_over_best_fixed": {kind: test.compare("adaptive", best[kind], kind) for kind in STRATA},
            "best_fixed_over_plain": {kind: test.compare(best[kind], "plain", kind) for kind in STRATA},
        }

    def _timed(self, arms: Mapping[str, Arm], items: Sequence[WorkItem], repeats: int) -> Timed:
        return time_arms(
            arms,
            items,
            [encode(item.messages, self._target.facts) for item in items],
            max_new_tokens=self._options.max_new_tokens,
            repeats=repeats,
            progress=self._say,
        )

    def _best_fixed(self, tuning: Timed, kind: str) -> str:
        first = next(iter(self._fixed))
        return min(self._fixed, key=lambda name: tuning.compare(name, first, kind)["total_over_total"])


def _by(timed: Timed, reference: str, kinds: Sequence[str]) -> dict[str, Any]:
    return {"all": timed.compare("adaptive", reference)} | {
        kind: timed.compare("adaptive", reference, kind) for kind in kinds
    }


if __name__ == "__main__":
    sys.exit(main())
