"""Train a draft model for the demo target, then generate with it. A run as small as this one learns next to nothing.

Run it as ``python examples/train_draft.py my-draft``. It takes well under a minute; ``specframe train-draft demo -o my-draft``
is the real thing. Killed and run again, either goes on where it was.
"""

from __future__ import annotations

import sys
from pathlib import Path

import specframe
from specframe.train.corpus import CorpusSettings
from specframe.train.distil import DistilSettings
from specframe.train.prompts import synthetic_prompts
from specframe.train.run import Stage, TrainSettings, train_draft

SETTINGS = TrainSettings(
    layers=2,
    columns=2048,
    shards=2,
    corpus=CorpusSettings(rows=8, length=96),
    distil=DistilSettings(steps=20, rows=4, warmup=4),
)
MAX_NEW_TOKENS = 32


def main(folder: Path) -> None:
    receipt = train_draft("demo", folder, list(synthetic_prompts(seed=0)), SETTINGS, say=tell)
    print(f"held-out acceptance: {receipt['result']['held_out_acceptance']:.2f}")

    use = specframe.DrafterUse("draft_model", {"model": str(folder)})
    strategy = specframe.Strategy(length=specframe.Length(max_tokens=2), drafters=(use,))
    engine = specframe.load("demo", strategy=strategy)
    result = engine.generate([{"role": "user", "content": "Tell me about tides."}], max_new_tokens=MAX_NEW_TOKENS)
    drafted = result.stats.drafters["draft_model"]
    print(f"{result.text}\n[{drafted.num_accepted} of {drafted.num_evaluated} drafted tokens accepted]")


def tell(stage: Stage) -> None:
    print(f"{stage.part:4.0%} {stage.told}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "my-draft"))
