"""The core's benchmark: ``python -m specframe.bench -o docs/results/core.json``.

Greedy, float32, the demo target, 12 prompts of four kinds. Settings of the best-against-best arms are chosen on the tuning
prompts in the same run. Every figure is a ratio of times measured interleaved in one process.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from specframe.bench.arms import Arm, BareLoopArm, EngineArm, TransformersArm, lookup_strategy
from specframe.bench.gates import QUIET
from specframe.bench.overhead import copied_per_round, outside_forwards
from specframe.bench.telling import tell, teller
from specframe.bench.timing import Timed, time_arms
from specframe.bench.workload import core_workload
from specframe.loading import load_target
from specframe.prompt import encode
from specframe.strategy import Strategy, shipped
from specframe.transformers_target import TransformersTarget

KINDS = ("edit", "quote", "json", "chat")
LIBRARY_SETTINGS: dict[str, dict[str, int]] = {
    "library lookup 3, ngram 2": {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 2},
    "library lookup 4, ngram 2": {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 2},
    "library lookup 7, ngram 2": {"prompt_lookup_num_tokens": 7, "max_matching_ngram_size": 2},
    "library lookup 10, ngram 2": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 2},
}
OWN_SETTINGS: dict[str, Strategy] = {
    "lookup 15, ngram 2 to 4, trust": lookup_strategy(15),
    "lookup 7, ngram 2 to 4": lookup_strategy(7, length="fixed"),
    "lookup 15, ngram 2 to 4": lookup_strategy(15, length="fixed"),
    "lookup 7, ngram 1 to 4": lookup_strategy(7, min_ngram=1, length="fixed"),
    "the shipped strategy, adaptive": Strategy.from_toml(shipped()["prompt_lookup"]),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    options = parser.parse_args(arguments)
    target = load_target("demo", dtype=torch.float32)
    results = run(target, repeats=options.repeats, max_new_tokens=options.max_new_tokens, progress=teller())
    tell(results, options.output)
    for complaint in complaints(results):
        print(complaint, file=sys.stderr)
    return 1 if complaints(results) else 0


def complaints(results: dict[str, Any]) -> list[str]:
    """Return what makes a run invalid: a control that drifted, or arms that generated other tokens."""
    found = []
    control = results["control_a_a"]["total_over_total"]
    if abs(control - 1) > QUIET:
        found.append(f"the A/A control is {control}, more than {QUIET:.0%} from 1: the machine was not quiet")
    for name, matched in results["matched_plain_of_its_products"].items():
        num_same, _, num_all = matched.partition("/")
        if num_same != num_all:
            found.append(f"arm '{name}' gave other tokens than plain decoding: matched {num_same}/{num_all}")
    return found


def run(
    target: TransformersTarget, *, repeats: int, max_new_tokens: int, progress: Callable[[str], None]
) -> dict[str, Any]:
    """Choose settings on the tuning prompts, measure on the test prompts, and return what is stored."""

    def timed(split: str, arms: dict[str, Arm], times: int) -> Timed:
        items = core_workload(split)
        return time_arms(
            arms,
            items,
            [encode(item.messages, target.facts) for item in items],
            max_new_tokens=max_new_tokens,
            repeats=times,
            progress=lambda text: progress(f"{split}: {text}"),
        )

    library = {name: TransformersArm(target.model, **setting) for name, setting in LIBRARY_SETTINGS.items()}
    own: dict[str, Arm] = {name: EngineArm(target, strategy) for name, strategy in OWN_SETTINGS.items()}
    plain = TransformersArm(target.model)
    # As often as the test: a setting that is chosen by a disturbed call would make either side look worse than it is.
    tuning = timed("tune", {"library plain": plain, **library, **own}, repeats)
    scores = {name: tuning.compare(name, "library plain")["total_over_total"] for name in (*library, *own)}
    best_library, best_own = min(library, key=scores.__getitem__), min(own, key=scores.__getitem__)

    engine_arms = {
        "plain": EngineArm(target, Strategy()),
        # The library's own settings of 10 tokens and 2-grams, always in full.
        "lookup, equal settings": EngineArm(target, lookup_strategy(10, max_ngram=2, min_ngram=1, length="fixed")),
        "lookup, best": EngineArm(target, OWN_SETTINGS[best_own]),
    }
    arms: dict[str, Arm] = {
        "library plain": plain,
        "library plain again": plain,
        "bare loop": BareLoopArm(target),
        "library lookup, equal settings": library["library lookup 10, ngram 2"],
        "library lookup, best": library[best_library],
        **engine_arms,
    }
    test = timed("test", arms, repeats)
    return {
        "what": "ratios of time, end to end, greedy, float32, least of the repeats; lower is better",
        "machine": _machine(target),
        "repeats": repeats,
        "max_new_tokens": max_new_tokens,
        "chosen_on_tuning_prompts": {"library lookup, best": best_library, "lookup, best": best_own, "scores": scores},
        "control_a_a": test.compare("library plain again", "library plain"),
        "over_library_plain": {name: _by_kind(test, name, "library plain") for name in arms if name != "library plain"},
        # Between torch's products, which transformers runs on, and packed ones a text may part at a near-tie.
        "matched_plain_of_its_products": {
            name: test.compare(name, "library plain" if name.startswith("library") else "plain")["matched"]
            for name in arms
        },
        "plain_over_library_plain": test.compare("plain", "library plain"),
        "plain_over_bare_loop": test.compare("plain", "bare loop"),
        "lookup_over_library_lookup_equal_settings": _by_kind(
            test, "lookup, equal settings", "library lookup, equal settings"
        ),
        "lookup_over_library_lookup_best": _by_kind(test, "lookup, best", "library lookup, best"),
        "outside_forwards": outside_forwards(
            target, encode(core_workload()[3].messages, target.facts), max_new_tokens=64, repeats=repeats
        ),
        "round_at_2000_positions": copied_per_round(target, num_positions=2000, num_rows=8),
        "seconds": {
            name: {
                item.name: [round(second, 4) for second in test.seconds[name][index]]
                for index, item in enumerate(test.items)
            }
            for name in arms
        },
    }


def _by_kind(timed: Timed, arm: str, reference: str) -> dict[str, Any]:
    return {"all": timed.compare(arm, reference)} | {kind: timed.compare(arm, reference, kind) for kind in KINDS}


def _machine(target: TransformersTarget) -> dict[str, Any]:
    return {
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "dtype": target.facts.dtype,
    }


if __name__ == "__main__":
    sys.exit(main())
