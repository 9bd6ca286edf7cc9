"""Accounts of memory: what is shared counts once, and what nobody tells is unknown, not nothing."""

from __future__ import annotations

import torch
from drafts import drafter
from models import random_table, shared_model, tiny_model

from specframe import Engine, TransformersTarget
from specframe.memory import holders, max_resident, num_bytes, tensors_of, unknown_of
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
    held_by = holders(engine.target, engine.drafters)
    parts = tensors_of(held_by)
    assert set(parts) == {
        f"{name} {part}" for name in ("target", "short") for part in ("weights", "prepacked", "cache")
    }
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
    assert unknown_of(held_by) == ["oracle"]
    engine.close()
    assert tensors_of(held_by)["target cache"] == tensors_of(held_by)["short cache"] == []


def test_weights_are_weighed_once(monkeypatch):
    """To walk a model takes a millisecond, which every request would pay for a receipt that nobody asks for."""
    model, walked = tiny_model(), []
    inner = TransformersTarget._weights

    def walk(target):
        walked.append(target)
        yield from inner(target)

    monkeypatch.setattr(TransformersTarget, "_weights", walk)
    engine = Engine(TransformersTarget(model), {"d": drafter(first_layers(model, 1))})
    accounts = [engine.generate([5, 6, 7], max_new_tokens=count).receipt.memory for count in (2, 60, 2)]
    assert walked == [engine.target, engine.drafters["d"].network.runner]
    expected = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
    assert [account.parts["target weights"] for account in accounts] == [expected] * 3
    caches = [account.parts["target cache"] for account in accounts]
    assert 0 < caches[0] <= caches[1]
    assert all(account.incremental > 0 for account in accounts)


def test_a_target_that_tells_nothing_is_unknown():
    """A table has no tensors to tell of; the account says so."""
    engine = Engine(random_table(), {"d": drafter(shared_model())})
    held_by = holders(engine.target, engine.drafters)
    assert unknown_of(held_by) == ["target"]
    assert set(tensors_of(held_by)) == {"d weights", "d prepacked", "d cache"}


def test_the_systems_peak_is_in_bytes():
    """Kilobytes on one system, bytes on another."""
    assert 2**26 < max_resident() < 2**40
