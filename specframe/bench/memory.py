"""What a strategy costs in bytes: ``python -m specframe.bench.memory -o docs/results/memory.json none draft_model ...``.

Each strategy runs in a process of its own, which loads, generates once, and is watched from beginning to end: a draft that is
loaded beside the target may make a peak that steady decoding never shows. Five numbers are kept apart:

- artifact: the weight files on disk;
- logical: every part as if it stood alone, weights and caches of target and drafters;
- deduplicated: storages counted once, however many parts share or tie them;
- incremental: what the strategy adds to plain decoding, deduplicated;
- peak resident: of the process, with the timeline that it was read off, and beside it the system's own (``max_resident``),
  which no sampling can miss.

What drafters hold that do not tell it is unknown, and they are named.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from specframe.files import write_whole
from specframe.proposal import HoldsTensors

if TYPE_CHECKING:
    import torch

    from specframe.engine import Engine
    from specframe.proposal import Drafter
    from specframe.target import Target

INTERVAL_S = 0.02
PROMPT = [{"role": "user", "content": "Write a short story about a lighthouse."}]


class Timeline:
    """Resident bytes of this process over time, watched by a thread; ``mark`` says what has just happened."""

    def __init__(self) -> None:
        self._process, self._started = psutil.Process(), time.monotonic()
        self._samples: list[tuple[float, int]] = []
        self._marks: list[tuple[float, str]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def mark(self, what: str) -> None:
        """Note an event."""
        self._marks.append((time.monotonic() - self._started, what))

    def close(self) -> dict[str, Any]:
        """End the watch; return the peak, and for each mark the resident bytes then and the peak since the one before."""
        self._is_over.set()
        self._thread.join()
        timeline, before = [], 0.0
        for at, what in self._marks:
            since = [resident for second, resident in self._samples if before <= second <= at + INTERVAL_S]
            timeline.append({"what": what, "resident": since[-1] if since else 0, "peak": max(since, default=0)})
            before = at
        return {"peak_resident": max(resident for _, resident in self._samples), "timeline": timeline}

    def _watch(self) -> None:
        while True:
            self._samples.append((time.monotonic() - self._started, self._process.memory_info().rss))
            if self._is_over.wait(INTERVAL_S):
                return


def holders_of(engine: Engine) -> dict[str, Target | Drafter]:
    """Return an engine's target and drafters, by name."""
    return {"target": engine.target, **engine.drafters}


def tensors_of(engine: Engine) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that an engine's target and drafters tell to hold, by part."""
    return {
        f"{name} {part}": list(tensors)
        for name, holder in holders_of(engine).items()
        if isinstance(holder, HoldsTensors)
        for part, tensors in holder.tensors().items()
    }


def unknown_of(engine: Engine) -> list[str]:
    """Return the names of those that do not tell what they hold."""
    return [name for name, holder in holders_of(engine).items() if not isinstance(holder, HoldsTensors)]


def num_bytes(parts: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, Any]:
    """Return the logical bytes of each part, and the deduplicated and incremental ones of all."""
    logical = {
        part: sum(tensor.numel() * tensor.element_size() for tensor in tensors) for part, tensors in parts.items()
    }
    storages: dict[int, int] = {}
    plain: dict[int, int] = {}
    for part, tensors in parts.items():
        for tensor in tensors:
            storage = tensor.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
            if part.startswith("target "):
                plain[storage.data_ptr()] = storage.nbytes()
    total = sum(storages.values())
    return {"logical": logical, "deduplicated": total, "incremental": total - sum(plain.values())}


def measure(model: str, strategy: str, *, max_new_tokens: int) -> dict[str, Any]:
    """Load, generate and tear down in this process, and return all five numbers."""
    timeline = Timeline()
    import specframe

    timeline.mark("libraries imported")
    target = specframe.load_target(model, dtype="float32")
    timeline.mark("target loaded")
    engine = specframe.Engine(target, strategy=strategy)
    timeline.mark("drafters made")
    engine.generate(PROMPT, max_new_tokens=1)
    timeline.mark("prompt read")
    engine.generate(PROMPT, max_new_tokens=max_new_tokens)
    timeline.mark("text generated")
    found = {**num_bytes(tensors_of(engine)), "unknown": unknown_of(engine)}
    identities = [engine.identity, *engine.draft_identities.values()]
    artifact = sum(identity.weights.num_bytes or 0 for identity in identities if identity is not None)
    engine.close()
    timeline.mark("closed")
    return {"strategy": strategy, "artifact": artifact, **found, **timeline.close(), "max_resident": max_resident()}


def max_resident() -> int:
    """Return the most bytes that this process was ever resident with, as the system counts."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(arguments: list[str] | None = None) -> int:
    """Measure strategies one after another, each in a fresh process."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.memory", description=__doc__.split("\n")[0])
    parser.add_argument("strategies", nargs="+", metavar="STRATEGY")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measure(options.model, options.strategies[0], max_new_tokens=options.max_new_tokens)))
        return 0
    results = []
    for strategy in options.strategies:
        command = [sys.executable, "-m", "specframe.bench.memory", "--here", strategy, "--model", options.model]
        command += ["--max-new-tokens", str(options.max_new_tokens)]
        print(f"measuring {strategy} ...", file=sys.stderr, flush=True)
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
    text = json.dumps({"what": "bytes, float32, one request", "strategies": results}, indent=2) + "\n"
    if options.output:
        write_whole(options.output, text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
