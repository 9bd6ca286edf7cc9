"""Receipts of models from disk: whose digests they hold, and what they keep alive."""

from __future__ import annotations

import gc
import weakref

import attrs
import pytest
from folders import save_model
from models import tiny_model

import specframe
from specframe import Engine, IncompatibleManifest, Receipt, Strategy, TransformersTarget
from specframe.manifest.digest import digest
from specframe.manifest.identity import plain
from specframe.receipt import NONE, UNKNOWN
from specframe.strategy import DrafterUse, Length
from specframe.testing import Oracle, byte_tokenizer

PROMPT = [5, 6, 7]


def test_the_digests_are_the_manifests(copy_of):
    """A receipt is compared with manifests: what it calls the target must be what they do."""
    engine = specframe.load(copy_of("model"), strategy="prompt_lookup")
    receipt = engine.generate(PROMPT, max_new_tokens=4, stop_ids=[]).receipt
    identity, hashes = engine.identity, receipt.hashes
    assert hashes.target == identity.digest
    assert hashes.target_weights == identity.weights.digest
    assert hashes.tokenizer == identity.tokenizer.digest
    assert hashes.chat_template == identity.template.digest
    assert hashes.adapter_chain == NONE
    assert hashes.position_policy == digest("position-policy-v1", plain(identity.positions))
    assert receipt.drafters == dict.fromkeys(("prompt_lookup", "prompt_lookup#2"), NONE)
    assert {"target weights", "target cache"} <= set(receipt.memory.parts)


def test_a_draft_model_is_told_by_its_weights(copy_of, tmp_path):
    """Where a draft lies is nobody's business; which one it is, the digest says."""
    receipts = []
    for name in ("here", "there"):
        draft = save_model(tmp_path / name, num_hidden_layers=1)
        strategy = Strategy(drafters=(DrafterUse("draft_model", {"model": str(draft)}),), length=Length("fixed", 3))
        engine = specframe.load(copy_of(f"target-{name}"), strategy=strategy)
        receipts.append(engine.generate(PROMPT, max_new_tokens=6, stop_ids=[]).receipt)
        assert receipts[-1].drafters == {"draft_model": engine.draft_identities["draft_model"].weights.digest}
        assert receipts[-1].memory.parts["draft_model weights"] > 0
    first, second = receipts
    salted = dict.fromkeys(("stops", "prompt", "output"), NONE)
    assert attrs.evolve(first.hashes, **salted) == attrs.evolve(second.hashes, **salted)


def test_a_model_in_memory_is_told_by_its_tensors():
    """An engine that was made by hand has a manifest too; a drafter that was, none."""
    target = TransformersTarget(tiny_model(vocab_size=len(byte_tokenizer())), byte_tokenizer())
    engine = Engine(target, {"mine": Oracle([1, 2, 3])})
    receipt = engine.generate(PROMPT, max_new_tokens=4).receipt
    assert receipt.hashes.target_weights == engine.identity.weights.digest
    assert receipt.drafters == {"given-1": UNKNOWN}
    assert receipt.memory.unknown == ("given-1",)


def test_a_run_from_disk_is_replayed_by_a_new_engine(copy_of, tmp_path):
    """The use: a receipt from yesterday, and the same model."""
    folder = copy_of("model")
    arguments = {"max_new_tokens": 12, "temperature": 0.8, "stop_ids": []}
    result = specframe.load(folder, strategy="prompt_lookup").generate([5, 6, 7, 5, 6], seed=3, **arguments)
    result.receipt.write(tmp_path / "run.json")
    engine = specframe.load(folder, strategy="prompt_lookup")
    replay = engine.replay(Receipt.read(tmp_path / "run.json"), [5, 6, 7, 5, 6], **arguments)
    assert replay.is_same, replay
    other = save_model(
        tmp_path / "other", initializer_range=0.5, rope_parameters={"rope_theta": 5.0, "rope_type": "default"}
    )
    told = [
        item.field
        for item in specframe.load(other, strategy="prompt_lookup")
        .replay(result.receipt, [5, 6, 7, 5, 6], **arguments)
        .inputs
    ]
    assert {"hashes.target", "hashes.position_policy"} <= set(told)
    assert "hashes.tokenizer" not in told


def test_a_result_does_not_keep_a_model(copy_of):
    """Who keeps results for their receipts must not keep half a gigabyte with each."""
    engine = specframe.load(copy_of("model"), strategy="prompt_lookup")
    result = engine.generate(PROMPT, max_new_tokens=4)
    model, drafter = weakref.ref(engine.target.model), weakref.ref(engine.drafters["prompt_lookup"])
    del engine
    gc.collect()
    assert model() is None
    assert drafter() is None
    assert result.receipt.hashes.target_weights.startswith("weights-v1")


def test_weights_that_changed_are_not_what_ran(copy_of):
    """A receipt with the digest of other weights would be a lie."""
    folder = copy_of("model")
    engine = specframe.load(folder)
    result = engine.generate(PROMPT, max_new_tokens=4)
    save_model(folder, num_hidden_layers=1)
    with pytest.raises(IncompatibleManifest, match="weight files changed"):
        _ = result.receipt
