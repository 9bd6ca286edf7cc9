"""Generate the same text with and without a drafter, and see what changes: the speed, and nothing else.

Run it with ``make demo``. The target is SmolLM2-135M-Instruct, which is converted on first use.
"""

from __future__ import annotations

import sys
from statistics import median

import specframe

NUM_REPEATS = 3
MAX_NEW_TOKENS = 128

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
EDIT = f"{TASK}\n\n```python\n{CODE}```"
CHAT = "Tell me in a few sentences why the sea is salty."
RUNS = {"prompt_lookup": EDIT, "draft_model": CHAT}  # one copies from the prompt, the other is a small model of its own


def main() -> None:
    print("target: SmolLM2-135M-Instruct, converted on first use, then loaded ...", flush=True)
    plain = specframe.load("demo")
    print(f"each prompt is answered {2 + 2 * NUM_REPEATS} times, by turns plain and with a drafter")
    is_same = [compare(plain, strategy, prompt) for strategy, prompt in RUNS.items()]
    sys.exit(not all(is_same))


def compare(plain: specframe.Engine, strategy: str, prompt: str) -> bool:
    """Generate by turns plain and with a strategy, print what came, and return whether all tokens were identical."""
    print(f"\n== {strategy}: {prompt.splitlines()[0]}", flush=True)
    engines = [plain, specframe.Engine(plain.target, strategy=strategy)]
    message = [{"role": "user", "content": prompt}]
    pairs = [
        # A prefix that one keeps would save the other its prefill.
        [engine.generate(message, max_new_tokens=MAX_NEW_TOKENS, keep_prefix=False) for engine in engines]
        for _ in range(1 + NUM_REPEATS)  # the first pair warms up
    ]
    ratios = [before.stats.total_s / after.stats.total_s for before, after in pairs[1:]]
    is_same = len({result.token_ids for pair in pairs for result in pair}) == 1

    print(f"the target's answer, a small model's:\n\n{pairs[-1][0].text}\n")
    for name, result in zip(("plain", strategy), pairs[-1], strict=True):
        show(name, result)
    in_turn = ", ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"speed with {strategy}: {median(ratios):.2f} times plain (in turn: {in_turn})")
    print(f"tokens identical in all {2 * len(pairs)} runs: {'yes' if is_same else 'NO'}")
    return is_same


def show(name: str, result: specframe.Result) -> None:
    stats = result.stats
    print(f"{name}: {stats.num_tokens} tokens in {stats.total_s:.2f} s, {stats.tokens_per_call:.2f} per target call")
    for drafter, share in stats.drafters.items():
        print(f"  {drafter}: of {share.num_evaluated} judged tokens {share.num_accepted} accepted")


if __name__ == "__main__":
    main()
