"""Draws from drafters' rows: what a greedy one is."""

from __future__ import annotations

import itertools

import pytest
import torch

from specframe import ProposalError
from specframe.drawing import DraftContext
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.sampling import SamplingPolicy
from specframe.verify import Greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "ids", [None, [1, 4, 6, 7], [7, 1, 6, 4], [1, -1, 6, 99]], ids=["none", "ascending", "mixed", "with gaps"]
)
def test_a_greedy_draw_is_the_choice_from_the_row_over_all_ids(monkeypatch, ids, dtype):
    """The argmax over columns is the argmax over ids, the lowest of equals; a row that is none is told alike."""
    pipeline = Pipeline(SamplingPolicy(), vocab_size=8, stop_ids=frozenset(), num_prompt=1)
    context = DraftContext(Prefix([1], None, "cpu"), pipeline, Greedy, "cpu")
    rows = [torch.tensor(row, dtype=dtype) for row in itertools.product([0.0, 1.0, -torch.inf, torch.nan], repeat=4)]
    rows.append(torch.tensor([0.0, torch.inf, 0.0, 1.0], dtype=dtype))

    def draw(row):
        before = row.clone()
        try:
            return context.draw(row, ids, 0)
        except ProposalError as error:
            return str(error)
        finally:
            assert torch.equal(row.nan_to_num(9), before.nan_to_num(9))

    found = [draw(row) for row in rows]
    assert len({*found}) >= 3
    monkeypatch.setattr(Pipeline, "is_plain", lambda self, prefix: False)
    assert found == [draw(row) for row in rows]
