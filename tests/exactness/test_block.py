"""The demo target under ``block(W)``: speculation computes plain decoding to the bit, in bfloat16 as in float32.

No near-ties here: every token, every row that was read and every key and value of a committed position must be equal. CI
runs a fixed fraction; ``make exactness`` runs all, and stores ``docs/results/exactness_block.json``.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from models import RecordingTarget

import specframe
from specframe.bench.arms import TransformersArm, lookup_strategy
from specframe.bench.workload import core_workload
from specframe.engine import Engine
from specframe.prompt import encode
from specframe.strategy import DrafterUse, Length, Strategy

pytestmark = [pytest.mark.real_model, pytest.mark.timeout(0)]

POLICIES: dict[str, dict[str, Any]] = {"greedy": {}, "coupled": {"temperature": 0.8, "top_p": 0.95, "seed": 0}}
DRAFT = DrafterUse("draft_model", {"layers": 8})  # the target's own: many of its proposals are wrong, some are right
SPECULATION = {
    "prompt lookup": lookup_strategy(12),
    "draft model": Strategy(name="draft", length=Length(max_tokens=4), drafters=(DRAFT,)),
    "mix": Strategy(
        name="mix", length=Length(max_tokens=7), drafters=(DrafterUse("prompt_lookup", {"max_tokens": 3}), DRAFT)
    ),
}


@attrs.frozen
class Run:
    """What one session of this file runs and stores."""

    is_full: bool
    results: dict[str, Any]
    targets: dict[str, RecordingTarget] = attrs.field(factory=dict)

    def target(self, dtype: str) -> RecordingTarget:
        """Return the demo target in a dtype, recording; one is loaded at a time."""
        if dtype not in self.targets:
            self.targets.clear()
            loaded = specframe.load_target("demo", dtype=dtype)
            self.targets[dtype] = RecordingTarget(loaded.model, loaded.tokenizer)
            self.targets[dtype].facts = loaded.facts
        return self.targets[dtype]

    def prompts(self, dtype: str) -> list[tuple[str, list[int]]]:
        """Return names and ids of the prompts: all 16 in bfloat16, one of each kind in float32, 2 in CI."""
        facts = self.target(dtype).facts
        items = [*core_workload(), *core_workload("tune")][:16]
        kinds = [next(group) for _, group in itertools.groupby(items[:12], lambda item: item.kind)]
        chosen = (items if dtype == "bfloat16" else kinds) if self.is_full else kinds[1:2]
        return [(item.name, encode(item.messages, facts)) for item in chosen]


@pytest.fixture(scope="module")
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    this = Run(request.config.getoption("--full"), {})
    yield this
    path = request.config.getoption("--results")
    if path is not None:
        path = path.with_name(f"{path.stem}_block{path.suffix}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(this.results, indent=2) + "\n")


class Turns(NamedTuple):
    """Requests that followed one another on one cache: results, the row of every position, and what the cache holds."""

    results: list[specframe.Result]
    rows: list[dict[int, torch.Tensor]]
    layers: list[torch.Tensor]


def decode(
    target: RecordingTarget, strategy: Strategy, prompts: list[list[int]], num_tokens: int, policy: dict[str, Any]
) -> Turns:
    """Generate for one prompt after the other, from an empty cache."""
    engine = Engine(target, strategy=attrs.evolve(strategy, kernel="block"))
    assert engine.kernel.is_certified
    engine.reset()
    results, rows = [], []
    for prompt in prompts:
        target.read.clear()
        results.append(engine.generate(prompt, max_new_tokens=num_tokens, **policy))
        rows.append(dict(target.read))
    return Turns(results, rows, target.layers())


def compare(run: Run, group: str, prompts: list[list[int]], plain: Turns, other: Turns) -> None:
    """Count equal texts and rows; fail unless all are, keys and values included."""
    counts = run.results.setdefault(group, {"texts": 0, "matched": 0, "rows": 0, "equal_rows": 0, "accepted": 0})
    for turn, prompt in enumerate(prompts):
        expected, found = plain.results[turn], other.results[turn]
        # The row at the last id of the prompt gives the first token, and so on.
        positions = range(len(prompt) - 1, len(prompt) - 1 + len(expected.token_ids))
        counts["texts"] += 1
        counts["matched"] += expected.token_ids == found.token_ids
        counts["rows"] += len(positions)
        counts["equal_rows"] += sum(
            position in other.rows[turn] and torch.equal(plain.rows[turn][position], other.rows[turn][position])
            for position in positions
        )
        counts["accepted"] += found.stats.num_accepted
        assert found.exactness == "bitwise"
    assert counts["matched"] == counts["texts"], group
    assert counts["equal_rows"] == counts["rows"], group
    assert all(torch.equal(one, two) for one, two in zip(plain.layers, other.layers, strict=True)), group


def check(run: Run, dtype: str, group: str, prompts: list[list[int]], num_tokens: int, policy: str) -> None:
    """Compare every kind of speculation with plain decoding on one chain of prompts."""
    target = run.target(dtype)
    plain = decode(target, Strategy(), prompts, num_tokens, POLICIES[policy])
    for name, strategy in SPECULATION.items():
        other = decode(target, strategy, prompts, num_tokens, POLICIES[policy])
        compare(run, f"{group}, {name}, {policy}", prompts, plain, other)
    run.results.setdefault("kernel", {})[dtype] = plain.results[0].kernel


@pytest.mark.parametrize(
    ("dtype", "policy"),
    [
        ("bfloat16", "coupled"),
        pytest.param("bfloat16", "greedy", marks=pytest.mark.slow),
        pytest.param("float32", "coupled", marks=pytest.mark.slow),
        pytest.param("float32", "greedy", marks=pytest.mark.slow),
    ],
)
def test_speculation_is_bitwise_plain_decoding(run: Run, dtype: str, policy: str) -> None:
    """Tokens, rows, keys and values over the prompts of the core, whoever proposes."""
    for _, prompt in run.prompts(dtype):
        check(run, dtype, dtype, [prompt], 128 if run.is_full else 12, policy)
    accepted = [counts["accepted"] for group, counts in run.results.items() if group.startswith(dtype)]
    assert sum(accepted) > 0


@pytest.mark.slow
@pytest.mark.parametrize("edge", [512, 2048])
def test_contexts_that_cross_an_edge(run: Run, edge: int) -> None:
    """Kernels change their ways at certain key lengths; decoding crosses them."""
    dtype = "bfloat16"
    (_, prompt), *_ = run.prompts(dtype)
    num_tokens = 48
    long = (prompt[:-8] * (edge // len(prompt) + 2))[: edge - num_tokens // 2 - 8] + prompt[-8:]
    check(run, dtype, f"{dtype} across {edge}", [long], num_tokens, "greedy")


@pytest.mark.slow
def test_three_turns_of_a_chat(run: Run) -> None:
    """The prefix that an earlier turn left is that of plain decoding, so later turns compute from the same keys."""
    dtype = "bfloat16"
    target = run.target(dtype)
    messages = [{"role": "user", "content": "Name three rivers."}]
    prompts = []
    for question in ("And three lakes?", "Which of them is the longest?", ""):
        prompts.append(encode(messages, target.facts))
        answer = decode(target, Strategy(), prompts, 24, {}).results[-1]
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": question}]
    check(run, dtype, f"{dtype}, three turns", prompts, 24, "greedy")


@pytest.mark.slow
def test_rows_as_they_come_change_the_text(run: Run) -> None:
    """A negative control, and what others do: transformers' prompt lookup in bfloat16 against its own plain decoding."""
    target = run.target("bfloat16")
    plain = TransformersArm(target.model)
    lookup = TransformersArm(target.model, prompt_lookup_num_tokens=4)
    prompts = [prompt for _, prompt in run.prompts("bfloat16")]
    matched = sum(plain(prompt, 128) == lookup(prompt, 128) for prompt in prompts)
    run.results["transformers' prompt lookup, bfloat16"] = {"texts": len(prompts), "matched": matched}
    assert matched < len(prompts)
