"""Speed up existing transformers code: one more argument of ``model.generate``, and the same tokens.

Run it as ``python examples/custom_generate.py``.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import specframe

MAX_NEW_TOKENS = 64
MESSAGES = [
    {"role": "user", "content": "Put in order, one a line: pears, apples, cherries, plums, grapes, figs, dates."}
]


def main() -> None:
    target = specframe.load_target("demo")  # your code has a model and a tokenizer already
    model: Any = target.model
    tokenizer = target.tokenizer

    inputs = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    arguments = {**inputs, "max_new_tokens": MAX_NEW_TOKENS, "do_sample": False}
    speculate = specframe.as_custom_generate(strategy="prompt_lookup")  # make it once: it keeps its engine

    start = time.perf_counter()
    plain = model.generate(**arguments)
    between = time.perf_counter()
    fast = model.generate(**arguments, custom_generate=speculate)
    end = time.perf_counter()

    print(tokenizer.decode(fast[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    print(f"\ngenerate: {between - start:.2f} s; with custom_generate: {end - between:.2f} s")
    print(f"tokens identical: {'yes' if plain.tolist() == fast.tolist() else 'NO'}")
    sys.exit(plain.tolist() != fast.tolist())


if __name__ == "__main__":
    main()
