"""Golden vectors of the reference interpreter: what a round emits for given rows, proposals, laws and draws.

They are the meaning of the three verification rules, apart from any code. ``python tests/testing/test_reference.py`` writes
them anew: to change one is to change what exactness means here, so it takes another version of the interpreter, a line in
the changelog, and this file's difference in a review.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from specframe.distribution import Distribution
from specframe.proposal import Proposal
from specframe.testing import LawRow, ScriptedRandom, reference
from specframe.verify import Coupled, Residual, verify

FILE = Path(__file__).parents[1] / "golden" / f"reference_v{reference.VERSION}.json"
NUM_CASES = 24
VOCAB = 4
FIRST_POS = 10


def made(case):
    """Return what the interpreter says of a case, as it stands in the file."""
    rows, ids, stop_ids = case["rows"], case["proposals"], set(case["stop_ids"])
    if case["rule"] == "greedy":
        result = reference.greedy_round(rows, ids, stop_ids)
    elif case["rule"] == "residual":
        uniforms = iter(case["uniforms"])
        result = reference.stochastic_round(rows, ids, case["laws"], stop_ids, lambda purpose, node: next(uniforms))
    else:
        noise = case["noise"]
        result = reference.coupled_round(rows, ids, stop_ids, lambda pos, x: noise[pos - FIRST_POS][x], FIRST_POS)
    return [list(result.emitted), result.num_accepted, result.token, result.is_correction, result.num_rounding]


def cases():
    """Yield cases whose numbers are exact in binary: sixteenths, odd 64ths and quarters."""
    source = np.random.default_rng(20260101)

    def law():
        cuts = sorted(source.integers(0, 17, VOCAB - 1).tolist())
        return (np.diff([0, *cuts, 16]) / 16).tolist()

    for index in range(3 * NUM_CASES):
        rule = ("greedy", "residual", "coupled")[index % 3]
        num = int(source.integers(0, 4))
        rows = [law() for _ in range(num + 1)]
        laws = [None if source.random() < 0.4 else (row if source.random() < 0.4 else law()) for row in rows[:num]]
        ids = [
            int(np.argmax(one or row) if source.random() < 0.8 else source.choice(np.flatnonzero(one or row)))
            for one, row in zip(laws, rows[:num], strict=True)
        ]
        stop_ids = ids[-1:] if source.random() < 0.5 else []
        case = {"rule": rule, "rows": rows, "proposals": ids, "stop_ids": stop_ids}
        if rule == "residual":
            case |= {"laws": laws, "uniforms": ((2 * source.integers(0, 32, 2 * num + 2) + 1) / 64).tolist()}
        if rule == "coupled":
            case["noise"] = (source.integers(-8, 9, (num + 1, VOCAB)) / 4 + np.arange(VOCAB) / 64).tolist()
        yield case


def golden():
    return json.loads(FILE.read_text(encoding="utf-8"))


def test_the_interpreter_says_what_it_always_said():
    """Another answer is another meaning of exactness, and takes another version."""
    assert golden()["version"] == reference.VERSION
    assert len(golden()["cases"]) == 3 * NUM_CASES
    for case in golden()["cases"]:
        assert made(case) == case["result"], case


def test_the_vectors_are_about_something():
    """Every rule with rejections, full acceptance, and a stop id that ends a round."""
    for rule in ("greedy", "residual", "coupled"):
        results = [case["result"] for case in golden()["cases"] if case["rule"] == rule]
        assert sum(is_correction for _, _, _, is_correction, _ in results) > 3
        assert sum(token is None for _, _, token, _, _ in results) > 0
        assert sum(accepted > 1 for _, accepted, _, _, _ in results) > 0


@pytest.mark.parametrize("rule", ["residual", "coupled"])
def test_the_shipped_verifier_gives_the_golden_rounds(rule):
    """The vectors hold the product itself, without the interpreter between."""
    for case in golden()["cases"]:
        if case["rule"] != rule:
            continue
        proposal = Proposal()
        for token, law in zip(case["proposals"], case.get("laws", [None] * len(case["proposals"])), strict=True):
            proposal.append(token, None if law is None else Distribution.from_probs(law), "golden")
        random = ScriptedRandom(case.get("uniforms", ()), case.get("noise", ()))
        rows = [LawRow(Distribution.from_probs(row), FIRST_POS + i) for i, row in enumerate(case["rows"])]
        shipped = Residual(random, 0) if rule == "residual" else Coupled(random)
        verdict = verify(rows.__getitem__, proposal, shipped, set(case["stop_ids"]).__contains__)
        last = [] if verdict.token is None else [verdict.token]
        emitted = [*proposal.ids[: verdict.num_accepted], *last]
        found = [emitted, verdict.num_accepted, verdict.token, verdict.is_correction, verdict.num_rounding]
        assert found == case["result"], case


def test_another_rule_does_not_give_them():
    """A negative control: the vectors tell a rule that accepts at equality from the right one."""
    case = {"rule": "residual", "rows": [[0.0, 1.0, 0, 0]] * 2, "proposals": [0], "stop_ids": [], "laws": [None]}
    assert made({**case, "uniforms": [0.0, 0.5]}) == [[1], 0, 1, True, 0]


if __name__ == "__main__":
    lines = [json.dumps({**case, "result": made(case)}) for case in cases()]
    body = ",\n  ".join(lines)
    FILE.write_text(f'{{"version": {reference.VERSION}, "cases": [\n  {body}\n]}}\n', encoding="utf-8")
