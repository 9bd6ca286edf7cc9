"""The draft that comes for the demo target: small, only its own tensors, and what its receipt and its manifest say of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from specframe.bench.workload import read_workload
from specframe.layout import RECEIPT
from specframe.manifest import collect, open_source, read, require_equal
from specframe.manifest.tensors import entries, weigh_folder
from specframe.train.prompts import prompt_digest, read_sealed
from specframe_draft_model.options import DEMO_FOLDER

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "manifests" / "models"
SEALED = ROOT / "manifests" / "sealed" / "spec-bench.txt"


@pytest.fixture(scope="module")
def receipt():
    return json.loads((DEMO_FOLDER / RECEIPT).read_text(encoding="utf-8"))


def test_it_is_small_and_holds_no_tensor_of_the_targets():
    """It is in everyone's wheel."""
    assert sum(file.stat().st_size for file in DEMO_FOLDER.rglob("*") if file.is_file()) <= 24_000_000
    names = [entry.name for entry in entries(DEMO_FOLDER / "model.safetensors")]
    assert not [name for name in names if "embed" in name or "head" in name]


def test_its_receipt_is_of_these_weights_and_of_this_target(receipt):
    """A draft that was trained again without its receipt would be told of as the one before."""
    assert receipt["result"]["weights"] == weigh_folder(DEMO_FOLDER).digest
    assert receipt["target"] == read(MODELS / "smollm2-135m-instruct.toml").digest


def test_its_manifest_is_its_own():
    """A draft that was trained again has another; `make manifests` writes it."""
    shipped = MODELS / "smollm2-135m-instruct-draft.toml"
    require_equal(read(shipped), collect(open_source(DEMO_FOLDER), weights=True), name=shipped.name)


def test_the_prompts_that_judge_it_were_sealed(receipt):
    """Every prompt that the benchmark asks stands in the list that training refused."""
    sealed = read_sealed(SEALED)
    for file in sorted((ROOT / "tests" / "data" / "spec_bench").glob("*.jsonl")):
        items = read_workload(file)
        assert items
        assert {prompt_digest(item.prompt) for item in items} <= sealed, file.name
    assert receipt["data"]["sealed"] == {
        "list": hashlib.sha256("\n".join(sorted(sealed)).encode()).hexdigest(),
        "num_digests": len(sealed),
    }
