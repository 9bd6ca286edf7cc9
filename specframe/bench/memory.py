"""What a strategy costs in bytes: ``python -m specframe.bench.memory -o docs/results/memory.json none draft_model ...``.

Each strategy runs in a process of its own, which loads, generates once, and is watched from beginning to end: a draft that is
loaded beside the target may make a peak that steady decoding never shows. Five numbers are kept apart:

- artifact: the weight files on disk;
- logical, deduplicated and incremental: what target and drafters hold, see ``specframe/memory.py``;
- peak resident: of the process, with the timeline that it was read off, and beside it the system's own (``max_resident``),
  which no sampling can miss.

What drafters hold that do not tell it is unknown, and they are named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from specframe.files import write_whole
from specframe.memory import holders, max_resident, num_bytes, tensors_of, unknown_of

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
    held_by = holders(engine.target, engine.drafters)
    found = {**num_bytes(tensors_of(held_by)), "unknown": unknown_of(held_by)}
    identities = [engine.identity, *engine.draft_identities.values()]
    artifact = sum(identity.weights.num_bytes or 0 for identity in identities if identity is not None)
    engine.close()
    timeline.mark("closed")
    return {"strategy": strategy, "artifact": artifact, **found, **timeline.close(), "max_resident": max_resident()}


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
