"""What an arm costs in bytes: ``python -m specframe.bench.memory [-o FILE] [none draft_model ...]``; by default each strategy.

Each arm (a strategy, or transformers' own, see ``specs.py``) runs in a process of its own, which loads, generates once, and is
watched from beginning to end: a draft that is loaded beside the target may make a peak that steady decoding never shows. Five
numbers are kept apart:

- artifact: the weight files on disk;
- logical, deduplicated and incremental: what target and drafters hold, see ``specframe/memory.py``;
- peak resident: of the process, with the timeline that it was read off, and beside it the system's own (``max_resident``),
  which no sampling can miss.

What drafters hold that do not tell it is unknown, and they are named.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from specframe.bench.telling import tell
from specframe.errors import LoadError
from specframe.memory import holders, max_resident, num_bytes, tensors_of, unknown_of
from specframe.strategy import shipped

INTERVAL_S = 0.02
_CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
PROMPT = [{"role": "user", "content": "Write a short story about a lighthouse."}]


class Timeline:
    """Resident bytes of this process over time, watched by a thread; ``mark`` says what has just happened."""

    def __init__(self) -> None:
        self._process, self._started = psutil.Process(), time.monotonic()
        self._samples: list[tuple[float, int]] = []
        self._marks: list[tuple[str, float, int]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def mark(self, what: str) -> None:
        """Note an event."""
        self._marks.append((what, *self._sample()))

    def close(self) -> dict[str, Any]:
        """End the watch; return the peak, and for each mark the resident bytes then and the peak since the one before."""
        self._is_over.set()
        self._thread.join()
        timeline, before = [], 0.0
        for what, at, resident in self._marks:
            peak = max(found for second, found in self._samples if before <= second <= at)
            timeline.append({"what": what, "resident": resident, "peak": peak})
            before = at
        return {"peak_resident": max(resident for _, resident in self._samples), "timeline": timeline}

    def _sample(self) -> tuple[float, int]:
        sample = time.monotonic() - self._started, self._process.memory_info().rss
        self._samples.append(sample)
        return sample

    def _watch(self) -> None:
        while True:
            self._sample()
            if self._is_over.wait(INTERVAL_S):
                return


def reset_peak_resident() -> bool:
    """Let the system count this process's peak anew; False where it cannot."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True


def tracked_peak_resident() -> int | None:
    """Return the most bytes that this process was resident with since the peak was reset; None where the system tells none."""
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)


def measure(
    model: str, spec: str, *, dtype: str | None, device: str | None, kernel: str | None, max_new_tokens: int
) -> dict[str, Any]:
    """Load, generate and tear down in this process; return all five numbers and the seconds that loading took."""
    timeline = Timeline()
    import specframe
    from specframe.bench.arms import AssistedArm, EngineArm
    from specframe.bench.specs import LibraryArm, build, parse
    from specframe.manifest.collector import collect_all
    from specframe.manifest.source import open_source
    from specframe.prompt import encode

    named, _ = parse(spec)
    timeline.mark("libraries imported")
    start = time.perf_counter()
    # What transformers runs by itself uses no packed weights: their bytes are not its own.
    prepack = False if isinstance(named, LibraryArm) else None
    target = specframe.load_target(model, dtype=dtype, device=device, prepack=prepack)
    target_load_s = time.perf_counter() - start
    timeline.mark("target loaded")
    start = time.perf_counter()
    arm = build(spec, target, kernel=kernel)
    drafters_load_s = time.perf_counter() - start
    timeline.mark("drafters made")
    prompt_ids = encode(
        PROMPT if getattr(target.tokenizer, "chat_template", None) else PROMPT[0]["content"], target.facts
    )
    arm(prompt_ids, 1)
    timeline.mark("prompt read")
    arm(prompt_ids, max_new_tokens)
    timeline.mark("text generated")
    if isinstance(arm, EngineArm):
        held_by = holders(arm.engine.target, arm.engine.drafters)
        parts, unknown = tensors_of(held_by), unknown_of(held_by)
    else:
        parts, unknown = {"target weights": list(target.tensors()["weights"])}, ["transformers' cache"]
        if isinstance(arm, AssistedArm):
            parts["assistant weights"] = list(arm.assistant.parameters())
    found = {**num_bytes(parts), "unknown": unknown}
    arm.reset()
    timeline.mark("closed")
    found |= {**timeline.close(), "max_resident": max_resident()}
    # Last, for weighing files takes memory of its own.
    identities = [collect_all(open_source(model))]
    if isinstance(arm, EngineArm):
        identities += arm.engine.draft_identities.values()
    elif isinstance(named, LibraryArm) and named.assistant is not None:
        identities.append(collect_all(open_source(named.assistant)))
    artifact = sum(identity.weights.num_bytes or 0 for identity in identities)
    return {
        "arm": spec,
        "target_load_s": target_load_s,
        "drafters_load_s": drafters_load_s,
        "artifact": artifact,
        **found,
    }


def _end_with(parent: int) -> None:
    """End this process when the one that started it is gone: it would disturb whatever is measured next."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os._exit(1)


def measure_apart(
    model: str,
    spec: str,
    *,
    dtype: str | None = None,
    device: str | None = None,
    kernel: str | None = None,
    max_new_tokens: int = 64,
) -> dict[str, Any]:
    """Measure an arm in a process of its own. Raises ``LoadError`` with what that process said where it fails."""
    command = [sys.executable, "-m", "specframe.bench.memory", "--here", spec, "--model", model]
    command += ["--max-new-tokens", str(max_new_tokens), "--parent", str(os.getpid())]
    for name, value in (("dtype", dtype), ("device", device), ("kernel", kernel)):
        command += [f"--{name}", value] if value is not None else []
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise LoadError(f"arm '{spec}' could not be measured in a process of its own: {_why(done)}")
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


def _why(done: subprocess.CompletedProcess[str]) -> str:
    if done.returncode < 0:
        return (
            f"it was ended by {signal.Signals(-done.returncode).name}; SIGKILL may be the system's, for want of memory"
        )
    return (done.stderr.strip().splitlines() or ["it said nothing"])[-1]


def main(arguments: list[str] | None = None) -> int:
    """Measure arms one after another, each in a fresh process."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.memory", description=__doc__.split("\n")[0])
    parser.add_argument("arms", nargs="*", metavar="ARM", default=["none", *shipped()])
    parser.add_argument("--model", default="demo")
    for name in ("--dtype", "--device", "--kernel"):
        parser.add_argument(name)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    settings = {name: getattr(options, name) for name in ("dtype", "device", "kernel", "max_new_tokens")}
    if options.parent is not None:
        threading.Thread(target=_end_with, args=(options.parent,), daemon=True).start()
    if options.here:
        print(json.dumps(measure(options.model, options.arms[0], **settings)))
        return 0
    results = []
    for spec in options.arms:
        print(f"measuring {spec} ...", file=sys.stderr, flush=True)
        results.append(measure_apart(options.model, spec, **settings))
    what = f"bytes and seconds, dtype {options.dtype or 'of the model'}, one request of {options.max_new_tokens} tokens"
    tell({"what": what, "arms": results}, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
