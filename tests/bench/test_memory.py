"""Accounts of memory: what is shared counts once, and what nobody tells is unknown, not nothing."""

from __future__ import annotations

import pytest
import torch
from drafts import drafter
from models import random_table, shared_model, tiny_model

from specframe import Engine, LoadError, TransformersTarget
from specframe.bench.memory import (
    max_resident,
    measure_apart,
    num_bytes,
    reset_peak_resident,
    tensors_of,
    tracked_peak_resident,
    unknown_of,
)
from specframe.testing import Oracle
from specframe.views import first_layers


def test_storages_are_counted_once():
    """A view of another dtype or length is the same bytes; an incremental byte is one that plain decoding lacks."""
    table, own = torch.zeros(10, 4), torch.zeros(6)
    parts = {"target weights": [table, table], "d weights": [table[:5], own], "d cache": []}
    assert num_bytes(parts) == {
        "logical": {"target weights": 320, "d weights": 104, "d cache": 0},
        "deduplicated": 184,
        "incremental": 24,
    }


def test_an_engine_tells_what_its_parts_hold():
    """Buffers that are not saved are held too, and the layers that a draft shares add nothing but its cache."""
    model = tiny_model(tie_word_embeddings=True)
    short = drafter(first_layers(model, 1))
    engine = Engine(TransformersTarget(model), {"short": short, "oracle": Oracle([1, 2, 3])})
    engine.generate([5, 6, 7], max_new_tokens=4)
    parts = tensors_of(engine)
    assert set(parts) == {"target weights", "target cache", "short weights", "short cache"}
    held = {id(tensor) for tensor in parts["target weights"]}
    assert {id(tensor) for tensor in (*model.parameters(), *model.buffers())} == held
    assert "model.rotary_emb.inv_freq" not in model.state_dict()
    ties = [tensor for tensor in parts["target weights"] if tensor is model.lm_head.weight]
    assert len(ties) == 2
    assert len(parts["target cache"]) == 4
    assert len(parts["short cache"]) == 2
    cache = sum(tensor.nbytes for tensor in parts["short cache"])
    rope = sum(tensor.nbytes for tensor in short.network.runner.model.model.rotary_emb.buffers())
    assert num_bytes(parts)["incremental"] == cache + rope
    assert unknown_of(engine) == ["oracle"]
    engine.close()
    assert tensors_of(engine)["target cache"] == tensors_of(engine)["short cache"] == []


def test_a_target_that_tells_nothing_is_unknown():
    """A table has no tensors to tell of; the account says so."""
    engine = Engine(random_table(), {"d": drafter(shared_model())})
    assert unknown_of(engine) == ["target"]
    assert set(tensors_of(engine)) == {"d weights", "d cache"}


def test_the_systems_peak_is_in_bytes():
    """Kilobytes on one system, bytes on another."""
    assert 2**26 < max_resident() < 2**40


def test_an_arm_is_measured_in_a_process_of_its_own(model):
    """What loading takes, in seconds and bytes; a process that fails says why."""
    found = measure_apart(str(model), "prompt_lookup", dtype="float32", max_new_tokens=4)
    assert found["target_load_s"] > found["drafters_load_s"] > 0
    assert 0 < found["artifact"] < found["deduplicated"] <= sum(found["logical"].values()) < found["max_resident"]
    assert set(found["logical"]) == {"target weights", "target cache"}
    assert found["unknown"] == ["prompt_lookup"]
    with pytest.raises(
        LoadError, match=r"arm 'none' could not be measured in a process of its own: .*invalid int value"
    ):
        measure_apart(str(model), "none", max_new_tokens="few")


def test_the_peak_of_a_while_is_the_systems():
    """What was resident before does not count, what came and went does."""
    if not reset_peak_resident():
        pytest.skip("this system cannot reset the peak")
    before = tracked_peak_resident()
    block = bytearray(b"x") * (64 * 2**20)
    del block
    assert tracked_peak_resident() > before + 48 * 2**20
    assert reset_peak_resident()
    assert tracked_peak_resident() < before + 48 * 2**20
