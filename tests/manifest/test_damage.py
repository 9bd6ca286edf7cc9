"""Damaged models and places: one clear error, and nothing wrong is remembered."""

from __future__ import annotations

import json

import pytest

from specframe import InvalidManifest, InvalidRequest, LoadError
from specframe.manifest import collect, open_source
from specframe.manifest.file import loads, write


def damaged(folder, name, text):
    (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", '{"garb'),
        ("tokenizer.json", "[]"),
        ("generation_config.json", "{"),
        ("tokenizer_config.json", "nonsense"),
    ],
)
def test_a_damaged_file_is_not_a_missing_one(copy_of, name, text):
    """A tokenizer that cannot be read taken for none would give the pair another identity."""
    model = copy_of("model")
    whole = collect(open_source(model))
    kept = (model / name).read_bytes() if (model / name).exists() else None
    with pytest.raises(LoadError, match="repair its files"):
        collect(open_source(damaged(model, name, text)))
    if kept is None:
        (model / name).unlink()
    else:
        (model / name).write_bytes(kept)
    assert collect(open_source(model)) == whole


def test_a_manifest_that_cannot_be_written_is_told(copy_of, tmp_path):
    """A traceback after all weights were read says nothing of the way out."""
    with pytest.raises(InvalidRequest, match="must be a file that can be written"):
        write(collect(open_source(copy_of("model"))), tmp_path / "no" / "such" / "folder.toml")


@pytest.mark.parametrize("text", ["a=" + "[" * 5000, "format = " + "9" * 6000])
def test_a_manifest_that_breaks_the_reader_is_no_manifest(text):
    """A hand-edited file must not end in the parser's own error."""
    with pytest.raises(InvalidManifest):
        loads(text)


def test_a_quantisation_tells_no_path_of_its_maker(copy_of):
    """GPTQ configurations name folders of the machine that made them: one model in two places is one model."""
    manifests = []
    for home in ("alice", "bob"):
        model = copy_of(home)
        config = json.loads((model / "config.json").read_text())
        origins = {"dataset": f"/home/{home}/d.json", "model_name_or_path": f"/home/{home}/m"}
        config["quantization_config"] = {"quant_method": "gptq", "bits": 4, **origins}
        (model / "config.json").write_text(json.dumps(config))
        manifests.append(collect(open_source(model)))
    assert manifests[0] == manifests[1]
    assert manifests[0].weights.quantization == {"bits": 4, "quant_method": "gptq"}
