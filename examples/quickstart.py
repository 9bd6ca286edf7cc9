"""Generate the same text with and without a drafter, and see what changes: the speed, and nothing else.

Run it with ``make demo``. The target is SmolLM2-135M-Instruct, which is converted on first use.
"""

from __future__ import annotations

from statistics import median

import specframe

NUM_REPEATS = 3
MAX_NEW_TOKENS = 128
STRATEGY = "prompt_lookup"

CODE = '''\
def summary(orders):
    total = 0
    largest = None
    for order in orders:
        total += order.price * order.count
        if largest is None or order.price > largest.price:
            largest = order
    return total, largest
'''
PROMPT = [
    {"role": "user", "content": f"Rename the variable `total` to `amount` and print the whole function:\n\n```python\n{CODE}```"}
]


def main() -> None:
    plain = specframe.load("demo")
    fast = specframe.load("demo", strategy=STRATEGY)

    ratios, texts = [], set()
    for index in range(NUM_REPEATS + 1):
        before = plain.generate(PROMPT, max_new_tokens=MAX_NEW_TOKENS)
        after = fast.generate(PROMPT, max_new_tokens=MAX_NEW_TOKENS)
        texts |= {before.token_ids, after.token_ids}
        if index:  # the first pair reads the prompt and warms up
            ratios.append(before.stats.total_s / after.stats.total_s)

    print(after.text)
    print(f"\n{'':>16} {'seconds':>8} {'tokens/s':>9} {'tokens per target call':>23}  acceptance")
    for name, stats in (("plain", before.stats), (STRATEGY, after.stats)):
        acceptance = ", ".join(
            f"{drafter}: {share.num_accepted} of {share.num_evaluated}" for drafter, share in stats.drafters.items()
        )
        print(
            f"{name:>16} {stats.total_s:8.2f} {stats.num_tokens / stats.total_s:9.1f} {stats.tokens_per_call:23.2f}  "
            f"{acceptance}"
        )
    print(f"\nspeed ratio: {median(ratios):.2f} (median of {NUM_REPEATS} interleaved pairs: {', '.join(f'{r:.2f}' for r in ratios)})")
    print(f"tokens identical in all {2 * (NUM_REPEATS + 1)} runs: {'yes' if len(texts) == 1 else 'NO'}")
    if len(texts) != 1:
        raise SystemExit("the texts differ: this is a bug, or a near-tie of this machine's arithmetic")


if __name__ == "__main__":
    main()
