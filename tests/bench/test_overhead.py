"""What the engine costs beside forwards, and what a round copies: that the figures say what their names say."""

from __future__ import annotations

import torch
from models import tiny_model

from specframe import TransformersTarget
from specframe.bench.overhead import copied_per_round, outside_forwards


def test_what_an_engine_costs_is_over_a_forward_that_there_was():
    """A drafter that proposes in every round leaves no one-row forward, and a time over an infinite one is a proud zero."""
    target = TransformersTarget(tiny_model(dtype=torch.float32))
    found = outside_forwards(target, [1, 2] * 8, max_new_tokens=12, repeats=1)
    assert len(found) == 8
    for name, figures in found.items():
        assert all(value > 0 for value in figures.values()), name
        assert figures["ms_per_row_evaluated"] <= figures["ms_per_round"], name


def test_a_round_at_a_long_context_copies_its_own_rows_only():
    """The figure is of use only if the same count sees what the library's cache copies."""
    target = TransformersTarget(tiny_model(dtype=torch.float32, max_position_embeddings=512))
    found = copied_per_round(target, num_positions=400, num_rows=4)
    assert found["copied_megabytes"] < 0.5 * found["past_megabytes"] < found["copied_megabytes_with_transformers_cache"]
