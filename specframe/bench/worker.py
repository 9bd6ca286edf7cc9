"""What a worker adds to a proposal: prompt lookup here and in a process of its own, on a target that costs nothing.

``python -m specframe.bench.worker -o docs/results/worker.json`` takes seconds and needs no model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from specframe.bench.machine import machine_class
from specframe.bench.telling import tell
from specframe.engine import Engine
from specframe.records import DrafterShare
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.testing.table import TableTarget

VOCAB = 64
LENGTHS = (100, 4000)  # of the prompt, in tokens
NUM_ROUNDS, NUM_TOKENS = 400, 7
_BUDGET_MS = 60_000.0  # a machine that does something else for a moment is measured, not switched off


def measure() -> dict[str, Any]:
    """Return milliseconds of a proposal and of a commit, by prompt length and place, and what the worker adds."""
    found: dict[str, Any] = {"machine": machine_class(), "rounds": NUM_ROUNDS, "tokens_a_round": NUM_TOKENS}
    for num_prompt in LENGTHS:
        here, worker = (_shares(num_prompt, is_worker=is_worker) for is_worker in (False, True))
        found[f"prompt of {num_prompt} tokens"] = {
            "here": _figures(here),
            "worker": _figures(worker),
            "added_ms": round(_median_ms(worker) - _median_ms(here), 3),
        }
    return found


def _shares(num_prompt: int, *, is_worker: bool) -> list[DrafterShare]:
    """Return what each round's proposal took; every proposal is full, and accepted."""
    target = TableTarget(lambda ids: [token == (ids[-1] + 1) % VOCAB for token in range(VOCAB)], vocab_size=VOCAB)
    use = DrafterUse("prompt_lookup", {"length": "fixed"}, budget_ms=_BUDGET_MS, worker=is_worker)
    strategy = Strategy(drafters=(use,), length=Length(max_tokens=NUM_TOKENS))
    with Engine(target, strategy=strategy) as engine:
        prompt = [index % VOCAB for index in range(num_prompt)]
        records = engine.generate(prompt, max_new_tokens=NUM_ROUNDS * (NUM_TOKENS + 1)).records
    shares = [share for record in records[2:-1] for share in record.drafters]  # the first one opens the session
    assert all(share.num_accepted == NUM_TOKENS for share in shares)
    return shares


def _figures(shares: list[DrafterShare]) -> dict[str, float]:
    seconds = sorted(share.propose_s for share in shares)
    commits = statistics.median(share.seconds - share.propose_s for share in shares)
    return {
        "propose_ms": round(_median_ms(shares), 3),
        "propose_ms_p95": round(seconds[int(0.95 * len(seconds))] * 1e3, 3),
        "commit_ms": round(commits * 1e3, 3),
    }


def _median_ms(shares: list[DrafterShare]) -> float:
    return statistics.median(share.propose_s for share in shares) * 1e3


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.worker", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    options = parser.parse_args(arguments)
    tell(measure(), options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
