"""Compare strategies on your machine, and open the report: a plan, fixed before anything is measured; a run; a page.

Run it as ``python examples/compare_strategies.py my-comparison``. It takes a few minutes; interrupted and run again, it goes on
where it was. ``specframe compare`` does the same, and more. It needs ``specframe[report]``.
"""

from __future__ import annotations

import sys
import webbrowser
from pathlib import Path
from typing import Any

from specframe.bench.metrics import summarise
from specframe.bench.plan import read_plan
from specframe.bench.planning import CONTROL, PLAIN, draw_up, require_unchanged
from specframe.bench.report.write import write_report
from specframe.bench.run import Progress, run
from specframe.bench.tables import show
from specframe.bench.workload import Corpus

ARMS = {PLAIN: "none", CONTROL: "none", "lookup": "prompt_lookup", "draft": "draft_model"}
CORPUS = Corpus(("chat", "code"), limit=3)
SETTINGS: dict[str, Any] = {"max_new_tokens": 48, "repeats": 2}


def main(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    file, results = folder / "plan.json", folder / "results.jsonl"
    if not file.exists():
        draw_up(ARMS, CORPUS, **SETTINGS).write(file)
    plan = read_plan(file)
    require_unchanged(plan)

    show(summarise(run(plan, results, say=tell)))
    page, *_ = write_report(results, folder / "report")
    print(f"\nthe report: {page}")
    webbrowser.open(page.resolve().as_uri())


def tell(progress: Progress) -> None:
    print(f"{progress.num_done} of {progress.num_all}: {progress.doing}", file=sys.stderr)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "my-comparison"))
