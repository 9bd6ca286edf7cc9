"""Kernel conformance: rounding is measured, and what is no rounding is caught."""

from __future__ import annotations

import pytest
import torch
from models import shared_model, tiny_model

from specframe import TransformersTarget
from specframe.target import Kernel
from specframe.testing import random_table
from specframe.testing.conformance import judge, measure

PROMPTS = [tuple((3 * step) % 61 for step in range(30)), tuple((step * step) % 61 for step in range(28))]
BLOCK = Kernel(8, is_certified=True)


def test_a_table_has_no_rounding():
    """Rows that depend on ids alone are equal to the bit."""
    found = measure(random_table(vocab_size=64), PROMPTS)
    assert found.largest_difference == found.bound == 0
    assert judge(found, Kernel()).status == "passed"
    assert found.num_rows == 48


def test_rows_of_a_real_model_differ_by_rounding():
    """In float32 by some units in the last place; far less than neighbouring rows do."""
    found = measure(TransformersTarget(tiny_model(dtype=torch.float32)), PROMPTS)
    assert set(found.differences) == {1, 2, 5, 13, 24}
    assert found.differences[1] == 0
    assert found.largest_difference < 1e-4 < found.shift
    assert judge(found, Kernel()).status == "passed"


@pytest.mark.parametrize("fault", ["shifted", "scaled"])
def test_what_is_no_rounding_fails(fault):
    """Negative controls: a row of the position before, and a row that is off by a tenth."""

    class Wrong(TransformersTarget):
        def run(self, ids, cache, num_rows):
            logits = super().run(ids, cache, num_rows)
            if ids.shape[1] == 1 or num_rows == 1:
                return logits
            return logits.roll(1, dims=1) if fault == "shifted" else 1.1 * logits

    found = measure(Wrong(shared_model()), PROMPTS)
    if fault == "shifted":
        assert judge(found, Kernel()).status == "failed"
    else:
        assert found.bound > 0.1  # told, and the bound that follows is in the certificate


def test_a_certified_block_allows_no_difference():
    """A trace of another row breaks the promise of a block."""

    class Wrong(TransformersTarget):
        leak = 0.0

        def forward(self, ids, *, num_rows):
            logits = super().forward(ids, num_rows=num_rows).clone()
            logits[0, 0] += self.leak * ids[-1]
            return logits

    target = Wrong(tiny_model(dtype=torch.float32))
    found = judge(measure(target, PROMPTS, BLOCK), BLOCK)
    assert found.status == "passed", found
    assert set(found.figures["differences"]) == {1, 2, 5, 8}
    target.leak = 1e-4
    assert judge(measure(target, PROMPTS, BLOCK), BLOCK).status == "failed"
