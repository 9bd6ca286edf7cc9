"""Generate the same text with and without a drafter, and see what changes: the speed, and nothing else.

Run it with ``make demo``. The target is SmolLM2-135M-Instruct, which is converted on first use.
"""

from __future__ import annotations

import sys
from statistics import median

import specframe

NUM_REPEATS = 3
MAX_NEW_TOKENS = 128
STRATEGY = "prompt_lookup"

CODE = """\
def read_settings(path):
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            key, value = line.split("=", 1)
            settings[key.strip()] = value.strip()
    return settings
"""
TASK = "Fix the code below so that it also skips lines that start with a semicolon. Print all of it."
PROMPT = [{"role": "user", "content": f"{TASK}\n\n```python\n{CODE}```"}]


def main() -> None:
    print("target: SmolLM2-135M-Instruct, converted on first use, then loaded ...", flush=True)
    engines = [specframe.load("demo"), specframe.load("demo", strategy=STRATEGY)]
    print(f"prompt: {TASK}\n        (and {len(CODE.splitlines())} lines of Python)")
    print(f"generating {2 + 2 * NUM_REPEATS} times, by turns plain and with {STRATEGY} ...\n", flush=True)
    pairs = [
        [engine.generate(PROMPT, max_new_tokens=MAX_NEW_TOKENS) for engine in engines]
        for _ in range(1 + NUM_REPEATS)  # the first pair warms up
    ]
    ratios = [before.stats.total_s / after.stats.total_s for before, after in pairs[1:]]
    num_texts = len({result.token_ids for pair in pairs for result in pair})

    print(f"the target's answer, a small model's:\n\n{pairs[-1][0].text}\n")
    for name, result in zip(("plain", STRATEGY), pairs[-1], strict=True):
        show(name, result)
    in_turn = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"speed with {STRATEGY}: {median(ratios):.2f} times plain (in turn: {in_turn})")
    print(f"tokens identical in all {2 * len(pairs)} runs: {'yes' if num_texts == 1 else 'NO'}")
    sys.exit(num_texts != 1)


def show(name: str, result: specframe.Result) -> None:
    stats = result.stats
    print(f"{name}: {stats.num_tokens} tokens in {stats.total_s:.2f} s, {stats.tokens_per_call:.2f} per target call")
    for drafter, share in stats.drafters.items():
        print(f"  {drafter}: of {share.num_evaluated} judged tokens {share.num_accepted} accepted")


if __name__ == "__main__":
    main()
