"""Damaged models and places: one clear error, and nothing wrong is remembered."""

from __future__ import annotations

import json
import os

import pytest

from specframe import InvalidManifest, InvalidRequest, LoadError, UnsupportedModel
from specframe.manifest import collect, compare, open_source, read
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


@pytest.mark.parametrize(
    "values",
    [
        {"rope_parameters": {"rope_theta": 1.0, "rope_type": "default", "odd": float("nan")}},
        {"rope_parameters": {"rope_theta": 1.0, "rope_type": "default", "parts": [{"b": 1, "a": [2]}, {}]}},
        {"rope_parameters": {"rope_theta": 1.0, "rope_type": "default", "name": "\ud83d"}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "notes": "\ud83d"}},
    ],
    ids=["nan", "tables in a list", "half an emoji", "half an emoji elsewhere"],
)
def test_any_configuration_can_be_written_and_equals_itself(copy_of, values, tmp_path):
    """JSON holds what TOML does not, and a number that is not equal to itself."""
    model = copy_of("model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | values))
    manifest = collect(open_source(model))
    write(manifest, tmp_path / "m.toml")
    assert read(tmp_path / "m.toml").flat() == manifest.flat()
    assert compare(manifest, manifest) == []


def test_ids_that_are_words_are_told(copy_of):
    """Letters of a word are no ids."""
    model = copy_of("model")
    (model / "generation_config.json").write_text('{"eos_token_id": "two"}')
    with pytest.raises(UnsupportedModel, match="'eos_token_id' must be an id or a list of ids"):
        collect(open_source(model))


def test_a_licence_is_read_from_the_front_matter_only(copy_of):
    """A card may well speak of other licences below."""
    model = copy_of("model")
    (model / "README.md").write_text("---\nname: x\n---\nlicense: gpl-3.0\n")
    assert collect(open_source(model)).license is None
    (model / "README.md").write_bytes(b"---\r\nname: x\r\nlicense: 'mit'\r\n---\r\n")
    assert collect(open_source(model)).license == "mit"


def test_a_dtype_that_no_forward_runs_in_is_told(copy_of):
    """A manifest of another dtype would pin a run that cannot be."""
    for dtype in ("int64", "float", "half precision"):
        with pytest.raises(InvalidRequest, match="'dtype' must be one of float32"):
            collect(open_source(copy_of(dtype)), dtype=dtype)


def test_a_manifest_is_replaced_as_a_whole(copy_of, tmp_path, monkeypatch):
    """A full disk or a kill must not leave half a manifest, or lose the old one."""
    manifest = collect(open_source(copy_of("model")))
    write(manifest, tmp_path / "m.toml")
    before = (tmp_path / "m.toml").read_text()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InvalidRequest, match="No space left"):
        write(manifest, tmp_path / "m.toml")
    assert (tmp_path / "m.toml").read_text() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["m.toml"]
