"""What kernels cost and gain: ``python -m specframe.bench.kernel -o docs/results/kernel.json``.

Greedy, the demo target. First forwards alone: one row, k rows as they come, and blocks of W, at 100 and 2,000 positions,
interleaved; and what prepacked weights make of them. Then whole calls in bfloat16 over the prompts of the core, against
transformers' plain bfloat16 decoding: exact ones of specframe's in blocks, and transformers' own prompt lookup, which changes
texts in bfloat16 and is reported as it is.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch

from specframe.bench.arms import Arm, EngineArm, TransformersArm, lookup_strategy
from specframe.bench.telling import tell, teller
from specframe.bench.timing import time_arms
from specframe.bench.workload import core_workload
from specframe.kernel import WIDTHS, probe_cache
from specframe.loading import load_target
from specframe.prompt import encode
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.target import GRANULE
from specframe.transformers_target import TransformersTarget

KINDS = ("edit", "quote", "json", "chat")
DRAFT = (DrafterUse("draft_model"),)
POSITIONS = (100, 2000)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.kernel", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args(arguments)
    say = teller()
    results: dict[str, Any] = {"what": "ratios of time, greedy; lower is better", "repeats": options.repeats}
    for dtype in ("float32", "bfloat16"):
        target = load_target("demo", dtype=dtype)
        say(f"forwards, {dtype}")
        results[f"forwards_{dtype}"] = {
            f"{num_positions} positions": forwards(target, num_positions) for num_positions in POSITIONS
        }
        as_it_comes = load_target("demo", dtype=dtype, prepack=False)
        results[f"prepacked_{dtype}"] = {
            f"{num_positions} positions": prepacked(target, as_it_comes, num_positions) for num_positions in POSITIONS
        }
    results |= calls(target, repeats=options.repeats, max_new_tokens=options.max_new_tokens, say=say)
    tell(results, options.output)
    return 0


def forwards(target: TransformersTarget, num_positions: int) -> dict[str, float]:
    """Return the time of a forward over that of one row as it comes, by shape; interleaved, medians."""
    shapes = {"single 1": Shape(target, 1, 1)} | {f"single {width}": Shape(target, width, 1) for width in WIDTHS}
    shapes |= {f"block {width}": Shape(target, width, GRANULE) for width in WIDTHS}
    return _over(shapes, "single 1", num_positions)


def prepacked(packed: TransformersTarget, as_it_comes: TransformersTarget, num_positions: int) -> dict[str, float]:
    """Return the time of a forward with prepacked weights, and without, over that of one row without."""
    shapes = {
        f"{name} {width}": Shape(target, width, 1)
        for width in (1, *WIDTHS)
        for name, target in (("torch", as_it_comes), ("prepacked", packed))
    }
    return _over(shapes, "torch 1", num_positions)


class Shape(NamedTuple):
    """A forward of a target over so many rows, its keys in multiples of ``granule``."""

    target: TransformersTarget
    num_rows: int
    granule: int


def _over(shapes: dict[str, Shape], reference: str, num_positions: int, *, repeats: int = 7) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in shapes}
    with contextlib.ExitStack() as stack:
        caches = {
            target: stack.enter_context(probe_cache(target)) for target in {shape.target for shape in shapes.values()}
        }
        for cache in caches.values():
            cache.fill(num_positions)
        for repeat in range(1 + repeats):
            for name, shape in shapes.items():
                cache = caches[shape.target]
                cache.show_multiples_of(shape.granule)
                start = time.perf_counter()
                cache.feed(cache.ids[: shape.num_rows], shape.num_rows)
                if repeat:
                    seconds[name].append(time.perf_counter() - start)
                cache.cut(num_positions)
    one = statistics.median(seconds[reference])
    return {name: round(statistics.median(times) / one, 3) for name, times in seconds.items()}


def calls(
    target: TransformersTarget, *, repeats: int, max_new_tokens: int, say: Callable[[str], None]
) -> dict[str, Any]:
    """Return what whole calls take over transformers' plain decoding, and what the draft model gains on open chat."""
    items = core_workload()
    prompts: list[Sequence[int]] = [encode(item.messages, target.facts) for item in items]
    plain = TransformersArm(target.model)

    def own(strategy: Strategy, kernel: str) -> EngineArm:
        return EngineArm(target, attrs.evolve(strategy, kernel=kernel))

    arms: dict[str, Arm] = {
        "library plain": plain,
        "library plain again": plain,
        "library lookup 4": TransformersArm(target.model, prompt_lookup_num_tokens=4, max_matching_ngram_size=2),
        "library lookup 10": TransformersArm(target.model, prompt_lookup_num_tokens=10, max_matching_ngram_size=2),
        "plain, single": own(Strategy(), "single"),
        "plain, block:4": own(Strategy(), "block:4"),
        "plain, block:8": own(Strategy(), "block:8"),
        "plain, block:16": own(Strategy(), "block:16"),
        "lookup 3, block:4": own(lookup_strategy(3), "block:4"),
        "lookup 7, block:8": own(lookup_strategy(7), "block:8"),
        "lookup 7, block:16": own(lookup_strategy(7), "block:16"),
        "lookup 15, block:16": own(lookup_strategy(15), "block:16"),
        "lookup 3 from 1, block:4": own(lookup_strategy(3, min_ngram=1, length="fixed"), "block:4"),
        "lookup 7 from 1, block:8": own(lookup_strategy(7, min_ngram=1, length="fixed"), "block:8"),
        "lookup 15 from 1, block:16": own(lookup_strategy(15, min_ngram=1, length="fixed"), "block:16"),
        "draft 3, block:4": own(Strategy(name="draft", length=Length(max_tokens=3), drafters=DRAFT), "block:4"),
        "draft 3, block:8": own(Strategy(name="draft", length=Length(max_tokens=3), drafters=DRAFT), "block:8"),
    }
    timed = time_arms(arms, items, prompts, max_new_tokens=max_new_tokens, repeats=repeats, progress=say)
    over = {
        name: {"all": timed.compare(name, "library plain")}
        | {kind: timed.compare(name, "library plain", kind) for kind in KINDS}
        for name in arms
        if name != "library plain"
    }
    return {
        "prompts": len(items),
        "max_new_tokens": max_new_tokens,
        "chosen_width": target.kernel("block").width,
        "control_a_a": timed.compare("library plain again", "library plain"),
        "over_library_plain_bfloat16": over,
        "draft_over_plain_same_kernel_chat": {
            width: timed.compare(f"draft 3, block:{width}", f"plain, block:{width}", "chat") for width in (4, 8)
        },
        "matched_plain_same_kernel": {
            name: timed.compare(name, f"plain, {name.split(', ')[1]}")["matched"] for name in arms if "block" in name
        },
        "threads": torch.get_num_threads(),
        "seconds": {
            name: [[round(second, 4) for second in row] for row in rows] for name, rows in timed.seconds.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
