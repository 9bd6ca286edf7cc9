"""Swap the strategy by a TOML file: the program stays as it is, the speed changes, the text does not.

Run it as ``python examples/swap_strategies.py``, or with strategy files of your own as arguments. It is no benchmark: the
first file pays for warming up; ``specframe compare`` takes turns.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import specframe

FILES = sorted((Path(__file__).parent / "strategies").glob("*.toml"))
MAX_NEW_TOKENS = 64
PROMPT = [
    {
        "role": "user",
        "content": "Repeat this list, then add one fruit: apples, apricots, cherries, figs, grapes, pears, plums.",
    }
]


def main(files: Sequence[Path]) -> None:
    target = specframe.load_target("demo")
    texts = set()
    for file in files:
        with specframe.Engine(target, strategy=file) as engine:
            result = engine.generate(PROMPT, max_new_tokens=MAX_NEW_TOKENS)
        texts.add(result.text)
        stats = result.stats
        print(f"{file.name:14} {stats.total_s:5.2f} s, {stats.tokens_per_call:.2f} tokens per target call")
    print(f"texts identical: {'yes' if len(texts) == 1 else 'NO'}\n\n{texts.pop()}")
    sys.exit(bool(texts))


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]] or FILES)
