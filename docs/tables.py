"""Tables of the documentation from stored results (``docs/results/``); ``make.py`` writes them into the pages.

A result that is not stored has an empty table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent


def exactness(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Equal texts of the demo target, by what was compared."""
    yield ["compared, float32, `single`", "equal texts", "near-ties"]
    for group, counts in results.items():
        if isinstance(counts, dict) and "matched" in counts:
            yield [group, f"{counts['matched']}/{counts['compared']}", len(counts["near_ties"])]


def exactness_block(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Equal texts and rows under blocks."""
    yield ["compared, `block`", "equal texts", "bitwise equal rows"]
    for group, counts in results.items():
        if "texts" in counts:
            rows = f"{counts['equal_rows']}/{counts['rows']}" if "rows" in counts else ""
            yield [group, f"{counts['matched']}/{counts['texts']}", rows]


def core(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time over transformers' plain decoding, float32."""
    yield ["float32, time over transformers' plain decoding", "all", "edit", "quote", "json", "chat", "equal texts"]
    for arm, kinds in results["over_library_plain"].items():
        figures = [kinds[kind]["total_over_total"] for kind in ("all", "edit", "quote", "json", "chat")]
        yield [arm, *figures, kinds["all"]["matched"]]


def adaptive(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time of adaptive prompt lookup over transformers' plain decoding, and over plain decoding by stratum."""
    dtypes = ("float32", "bfloat16")
    yield ["time of adaptive prompt lookup over", *(f"{dtype}, `{results[dtype]['kernel']}`" for dtype in dtypes)]
    told = {"all": "transformers' plain decoding, the core's prompts"}
    for kind in results["float32"]["adaptive_over_library_plain"]:
        figures = [results[dtype]["adaptive_over_library_plain"][kind]["total_over_total"] for dtype in dtypes]
        yield [told.get(kind, f"... {kind}"), *figures]
    for against, told_of in {"plain": "plain decoding", "best_fixed": "the best fixed length"}.items():
        for stratum in results["float32"]["adaptive_over_best_fixed"]:
            kept = [results[dtype][f"adaptive_over_{against}"][stratum]["median_of_ratios"] for dtype in dtypes]
            yield [f"{told_of}, {stratum.replace('_', ' ')}", *kept]


def grammar_speed(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time under a JSON Schema, over decoding under the same masks."""
    yield ["JSON under a schema, float32", "tokenisation `any`", "tokenisation `canonical`"]
    for name, told in {
        "control_a_a": "transformers with the same masks, again, over itself",
        "plain_over_library": "plain decoding over transformers",
        "lookup_over_plain": "prompt lookup over plain decoding",
        "grammar_and_lookup_over_library": "grammar and lookup over transformers",
        "grammar_and_lookup_over_plain": "grammar and lookup over plain decoding",
    }.items():
        yield [told, *(results["speed"][way][name]["total_over_total"] for way in ("any", "canonical"))]


def grammar_masks(results: dict[str, Any]) -> Iterable[list[Any]]:
    """What compiling and masks cost."""
    yield [f"milliseconds, {results['masks']['ids']} ids: median (most)", "regex", "JSON Schema"]
    for name in ("compile", "new_state", "seen_state"):
        spreads = [results["masks"][language][name] for language in ("regex", "json_schema")]
        yield [
            name.replace("_", " "),
            *(f"{_told(spread['median_ms'])} ({_told(spread['max_ms'])})" for spread in spreads),
        ]


def kernel_forwards(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time of a forward over that of one row as it comes."""
    places = [(dtype, place) for dtype in ("float32", "bfloat16") for place in results[f"forwards_{dtype}"]]
    yield ["rows of a forward", *(f"{dtype}, {place}" for dtype, place in places)]
    for shape in results["forwards_float32"][places[0][1]]:
        yield [shape, *(results[f"forwards_{dtype}"][place][shape] for dtype, place in places)]


def kernel_prepacked(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time of a forward as it comes, with prepacked weights and without, over that of one row without."""
    places = [(dtype, place) for dtype in ("float32", "bfloat16") for place in results[f"prepacked_{dtype}"]]
    yield ["weights, rows of a forward", *(f"{dtype}, {place}" for dtype, place in places)]
    for shape in results["prepacked_float32"][places[0][1]]:
        yield [shape, *(results[f"prepacked_{dtype}"][place][shape] for dtype, place in places)]


def kernel_calls(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time over transformers' plain decoding, bfloat16."""
    kinds = ("all", "edit", "quote", "json", "chat")
    yield ["bfloat16, time over transformers' plain decoding", *kinds, "equal texts"]
    for arm, found in results["over_library_plain_bfloat16"].items():
        yield [arm, *(found[kind]["total_over_total"] for kind in kinds), found["all"]["matched"]]


def draft(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Survival and costs of the demo draft."""
    survival, verify = results["survival"]["length 8"], results["milliseconds"]["verify"]
    yield [f"position i, in answers of up to {results['max_new_tokens']} tokens", *range(1, 9)]
    yield ["S_i: the first i proposals accepted, eight a round", *survival]
    yield ["the same, one a round", *results["survival"]["length 1"], *[""] * 7]
    yield [
        "V(i): verification of i proposals over that of none",
        *(round(verify[str(i)] / verify["0"], 2) for i in range(1, 9)),
    ]
    yield ["d_i: a draft token over V(0)", *[round(results["milliseconds"]["draft_token"] / verify["0"], 3)] * 8]


def demo_draft(receipt: dict[str, Any]) -> Iterable[list[Any]]:
    """How the demo draft was made, by its receipt: the trainings that it went through, the last one last."""
    trainings = [receipt]
    while (begun_with := trainings[0].get("begun_with")) and begun_with["receipt"]:
        trainings.insert(0, begun_with["receipt"])
    yield ["the demo draft", *(f"training {number}" for number in range(1, len(trainings) + 1))]
    for told, value in {
        "layers": lambda made: made["settings"]["layers"],
        "columns of its head": lambda made: made["settings"]["columns"],
        "conversations learned from": lambda made: made["data"]["num_conversations"]["learned"],
        "held out": lambda made: made["data"]["num_conversations"]["held_out"],
        "ids of each": lambda made: made["settings"]["corpus"]["length"],
        "training steps": lambda made: made["training"]["steps"],
        "conversations a step": lambda made: made["settings"]["distil"]["rows"],
        "minutes": lambda made: f"{made['training']['minutes']:g}",
        "its likeliest id is the target's, on held-out answers": lambda made: made["result"]["held_out_acceptance"],
        "the same, on greedy ones": lambda made: made["result"]["held_out_acceptance_greedy"],
    }.items():
        yield [told, *map(value, trainings)]


def draft_speed(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Time of the demo draft and of transformers' assisted generation with the same layers, open chat."""
    yield ["float32, open chat", "time, all together", "median of ratios", "equal texts"]
    for name, told in {
        "control_a_a": "transformers' plain decoding over itself",
        "draft_over_plain": "the draft over plain decoding",
        "draft_over_library_plain": "the draft over transformers' plain decoding",
        "assisted_over_library_plain": "assisted generation over transformers' plain decoding",
        "assisted_over_draft": "assisted generation over the draft",
    }.items():
        found = results[name]
        yield [told, found["total_over_total"], found["median_of_ratios"], found["matched"]]


def draft_forwards(results: dict[str, Any]) -> Iterable[list[Any]]:
    """What the draft model costs besides forwards."""
    found = results["forwards"]
    yield ["draft model, two proposals a round", "specframe", "transformers' assisted generation"]
    yield ["part of the time that is forwards", found["ours"], found["transformers"]]
    yield ["the drafter's milliseconds a token outside forwards", found["drafter_ms_per_token_outside_forwards"], ""]


def worker(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Milliseconds of a proposal, in this process and in a worker."""
    yield ["milliseconds, median", "proposal here", "in a worker", "added", "commit here", "to a worker"]
    for prompt, found in results.items():
        if isinstance(found, dict) and "added_ms" in found:
            here, there = found["here"], found["worker"]
            figures = here["propose_ms"], there["propose_ms"], found["added_ms"], here["commit_ms"], there["commit_ms"]
            yield [prompt, *figures]


def memory(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Bytes of every strategy by what is counted."""
    parts = "artifact", "logical, target", "logical, drafters", "deduplicated", "incremental", "peak resident"
    yield ["megabytes", *parts, "not told by"]
    for arm in results["arms"]:
        of_target = {part: size for part, size in arm["logical"].items() if part.startswith("target ")}
        target, whole = sum(of_target.values()), sum(arm["logical"].values())
        sizes = arm["artifact"], target, whole - target, arm["deduplicated"], arm["incremental"], arm["max_resident"]
        yield [f"`{arm['arm']}`", *(round(size / 1e6, 1) for size in sizes), ", ".join(arm["unknown"])]


def memory_timeline(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Resident bytes of every strategy from load to end."""
    arms = results["arms"]
    yield ["megabytes resident then, and at most since the line before", *(f"`{arm['arm']}`" for arm in arms)]
    for marks in zip(*(arm["timeline"] for arm in arms), strict=True):
        yield [marks[0]["what"], *(f"{mark['resident'] / 1e6:.0f}, {mark['peak'] / 1e6:.0f}" for mark in marks)]


def failures(results: dict[str, Any]) -> Iterable[list[Any]]:
    """What comes of each fault."""
    yield ["what breaks", "what the user sees", "what is emitted", "the next request"]
    for part, faults in results.items():
        for fault, row in faults.items():
            told = row["sees"].replace("|", "\\|").replace("\n", " ")
            yield [f"{part}: {fault}", told, row["emitted"], row["afterwards"]]


def soak(results: dict[str, Any]) -> Iterable[list[Any]]:
    """Counts of the soak."""
    yield ["requests", "threads", "strategies", *(f"ended: {end}" for end in results["ends"]), "faults that happened"]
    ends, happened = results["ends"].values(), sum(results["faults"].values())
    yield [results["requests"], results["threads"], len(results["strategies"]), *ends, happened]


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], Iterable[list[Any]]]]] = {
    "exactness": ("exactness", exactness),
    "exactness_block": ("exactness_block", exactness_block),
    "core": ("core", core),
    "adaptive": ("adaptive", adaptive),
    "grammar_speed": ("grammar", grammar_speed),
    "grammar_masks": ("grammar", grammar_masks),
    "kernel_forwards": ("kernel", kernel_forwards),
    "kernel_prepacked": ("kernel", kernel_prepacked),
    "kernel_calls": ("kernel", kernel_calls),
    "draft": ("draft", draft),
    "draft_speed": ("draft", draft_speed),
    "draft_forwards": ("draft", draft_forwards),
    "demo_draft": ("../../plugins/specframe_draft_model/demo/provenance", demo_draft),
    "worker": ("worker", worker),
    "memory": ("memory", memory),
    "memory_timeline": ("memory", memory_timeline),
    "failures": ("failures", failures),
    "soak": ("soak", soak),
}


def table(name: str) -> str:
    """Return a table as Markdown, or an empty text where nothing is stored."""
    stored, rows_of = TABLES[name]
    file = DOCS / "results" / f"{stored}.json"
    if not file.is_file():
        return ""
    header, *rows = [[_told(cell) for cell in row] for row in rows_of(json.loads(file.read_text(encoding="utf-8")))]
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _told(cell: Any) -> str:
    """Spell a number as far as it can be trusted; the stored result has the rest."""
    if not isinstance(cell, float):
        return str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:#.3g}"
