"""A strategy pins a manifest: a run whose identity differs is refused, field by field, before weights load."""

from __future__ import annotations

import json
import os

import attrs
import numpy as np
import pytest
from folders import edit
from models import random_table
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import specframe
from specframe import (
    DrafterUse,
    Engine,
    Features,
    Identity,
    IncompatibleManifest,
    InvalidManifest,
    InvalidRequest,
    InvalidStrategy,
    LoadError,
    Needs,
    SamplingPolicy,
    Strategy,
    TransformersTarget,
)
from specframe.manifest import collect, compare, of_target, open_source, sampling_digest, write
from specframe.manifest.identity import Decoding
from specframe.plugins import DrafterEntry, Plugin, Plugins
from specframe.resolve import check_needs


@pytest.fixture
def pinned(copy_of, tmp_path):
    """Return a model's folder and a strategy file that pins its manifest."""
    folder = copy_of("model")
    write(collect(open_source(folder), weights=True), tmp_path / "model.toml")
    (tmp_path / "strategies").mkdir()
    strategy = tmp_path / "strategies" / "pinned.toml"
    strategy.write_text('[identity]\nmanifest = "../model.toml"\n')
    return folder, strategy


def index(content):
    def replace(folder):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps(content))

    return replace


@pytest.fixture
def no_weights(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    return lambda: monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


def test_the_pinned_model_runs_and_states_its_identity(pinned):
    """A pin that refuses the very model that it was made from is of no use."""
    folder, strategy = pinned
    engine = specframe.load(folder, strategy=strategy)
    assert engine.generate("hello", max_new_tokens=3).token_ids
    assert engine.identity == collect(open_source(folder), weights=True)
    assert {"tokenizer.digest", "template.digest", "weights.digest"} <= engine.identity.flat().keys()


@pytest.mark.parametrize(
    ("file", "values", "told"),
    [
        ("config.json", {"rms_norm_eps": 0.1}, "model.computation: pinned computation-v1:"),
        ("config.json", {"max_position_embeddings": 32}, "positions.context_limit: pinned 64, this run has 32"),
        ("generation_config.json", {"eos_token_id": [270, 271]}, r"boundaries.stop_ids: pinned \[270\], this run has"),
        ("tokenizer_config.json", {"pad_token": "<eot>"}, "boundaries.pad_id: pinned none, this run has 271"),
    ],
)
def test_another_identity_is_refused_before_weights_load(pinned, no_weights, file, values, told):
    """What a benchmark or a certificate was made for must be what runs."""
    folder, strategy = pinned
    edit(folder / file, lambda data: data | values)
    no_weights()
    with pytest.raises(IncompatibleManifest, match=told) as caught:
        specframe.load(folder, strategy=strategy)
    assert "manifest 'model.toml' pins" in str(caught.value)


def test_every_field_is_told(pinned, no_weights):
    """Differences that come out one at a time cost a start each."""
    folder, strategy = pinned
    edit(folder / "config.json", lambda data: data | {"rms_norm_eps": 0.1, "max_position_embeddings": 32})
    no_weights()
    with pytest.raises(IncompatibleManifest) as caught:
        specframe.load(folder, strategy=strategy, dtype="float64")
    told = "\n".join([str(caught.value), *caught.value.__notes__])
    fields = [difference.field for difference in caught.value.findings]
    assert fields == ["model.computation", "numerics.dtype", "positions.context_limit"]
    assert all(field in told for field in fields)


def test_other_weights_are_refused_before_they_load(pinned, no_weights):
    """The same configuration with other weights is another model."""
    folder, strategy = pinned
    tensors = {name: tensor.copy() for name, tensor in load_file(folder / "model.safetensors").items()}
    tensors["lm_head.weight"][0, 0] += np.float32(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    no_weights()
    with pytest.raises(IncompatibleManifest, match=r"weights\.digest"):
        specframe.load(folder, strategy=strategy)


def test_a_target_made_by_hand_is_held_to_the_pin(pinned):
    """What is in memory counts: weights that were changed after loading are refused."""
    folder, strategy = pinned
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    target = TransformersTarget(model.eval(), tokenizer)
    assert Engine(target, strategy=strategy).identity == collect(open_source(folder), weights=True)
    model.lm_head.weight.data[0, 0] += 1
    with pytest.raises(IncompatibleManifest, match=r"weights\.digest"):
        Engine(target, strategy=strategy)


def test_a_target_without_an_identity_cannot_be_pinned(pinned):
    """A table has no configuration; pretending that it is the pinned model would be worse than an error."""
    with pytest.raises(IncompatibleManifest, match="states no identity"):
        Engine(random_table(), strategy=pinned[1])
    assert Engine(random_table()).identity is None


def test_pins_that_cannot_be_read_are_told(copy_of, tmp_path, no_weights):
    """A misspelt path must not mean an unpinned run."""
    no_weights()
    for text, told in (
        ('"none.toml"', "none.toml', which is not there; in a strategy file the path is relative"),
        ("3", "'identity.manifest' must be"),
    ):
        (tmp_path / "s.toml").write_text(f"[identity]\nmanifest = {text}\n")
        with pytest.raises((InvalidManifest, InvalidStrategy), match=told):
            specframe.load(copy_of(f"model{text[1:2]}"), strategy=tmp_path / "s.toml")


def test_a_pinned_policy_is_the_only_one(copy_of, tmp_path):
    """A manifest may pin the sampling law too."""
    folder = copy_of("model")
    greedy = Decoding(sampling=sampling_digest(SamplingPolicy()))
    write(collect(open_source(folder), weights=True, decoding=greedy), tmp_path / "greedy.toml")
    engine = specframe.load(folder, strategy=Strategy(identity=Identity(str(tmp_path / "greedy.toml"))))
    assert engine.generate("hello", max_new_tokens=2).token_ids
    with pytest.raises(InvalidRequest, match="'policy' must be the one that the strategy's manifest pins"):
        engine.generate("hello", max_new_tokens=2, temperature=0.5)


def test_files_that_changed_after_loading_are_not_what_runs(copy_of):
    """A digest that is read late must not describe other weights than those in memory."""
    folder = copy_of("model")
    engine = specframe.load(folder)
    os.utime(folder / "model.safetensors", ns=(1, 1))
    with pytest.raises(IncompatibleManifest, match="changed after it was loaded"):
        _ = engine.identity


@pytest.mark.parametrize("name", ["tokenizer_config.json", "model.safetensors", "README.md"])
def test_files_that_change_while_loading_are_told(copy_of, monkeypatch, name):
    """What was admitted must be what is loaded: files may be replaced while gigabytes are read."""
    folder = copy_of("model")
    load = AutoModelForCausalLM.from_pretrained

    def load_and_touch(*args, **kwargs):
        model = load(*args, **kwargs)
        (folder / name).touch()
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_and_touch)
    with pytest.raises(LoadError, match="changed while it was loaded"):
        specframe.load(folder)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\x02" + b"\0" * 7 + b"[]"),
            "header cannot be read",
        ),
        (index({"weight_map": {"a": "gone.safetensors"}}), "gone.safetensors is missing"),
        (index({"weight_map": 3}), "the weight index 'model.safetensors.index.json' cannot be read"),
        (index([]), "the weight index 'model.safetensors.index.json' cannot be read"),
    ],
)
def test_damaged_weights_under_a_pin_are_told(pinned, damage, told):
    """Weighing comes before loading, so it meets the damage first."""
    folder, strategy = pinned
    damage(folder)
    with pytest.raises(LoadError, match=told):
        specframe.load(folder, strategy=strategy)


@pytest.mark.parametrize(
    "wrong", [{"hidden_size": 0}, {"hidden_size": "32"}, {"layers": (-1,)}, {"layers": ("2",)}, {"weights": "mine"}]
)
def test_features_that_mean_nothing_are_told(wrong):
    """A plugin author's slip must not pass every check."""
    with pytest.raises(ValueError, match=f"'{next(iter(wrong))}' must be"):
        Features(**wrong)


@attrs.frozen
class Options:
    model: str | None = None


def needy(needs):
    return Plugins([Plugin("p", "p", "1", drafters={"d": DrafterEntry("d", lambda *_: None, Options, needs)})])


def needed(identity, needs, **options):
    return check_needs(Strategy(drafters=(DrafterUse("d", options),)), needy(needs), lambda: identity)


def test_feature_heads_are_compared_with_what_they_read(copy_of):
    """Heads made for another width fail inside the first forward, heads on a layer that is not there as well."""
    whole = collect(open_source(copy_of("model")), weights=True)
    fitting = Features(hidden_size=32, layers=(0, 2), weights=whole.weights.digest)
    needed(whole, Needs(features=fitting))
    needed(whole, Needs(features=Features()))
    needed(whole, Needs(features=Features(weights="weights-v1:sha256:" + "0" * 64)))  # slower, not wrong
    with pytest.raises(IncompatibleManifest, match=r"another size.*target: 32, draft: 64"):
        needed(whole, Needs(features=Features(hidden_size=64)))
    with pytest.raises(IncompatibleManifest, match="a layer that the target does not have"):
        needed(whole, Needs(features=Features(layers=(1, 3))))


def test_needs_without_a_target_identity_are_told():
    """An engine on a table cannot promise that a draft model's ids mean the same."""
    with pytest.raises(IncompatibleManifest, match="drafter 'd' needs a target whose tokenizer"):
        needed(None, Needs(features=Features(hidden_size=1)))
    assert needed(None, Needs()) == {}


def test_a_drafter_that_names_no_model_needs_a_tokenizer_all_the_same(copy_of):
    """A drafter of bytes on a target of ids only would fail inside its first round."""
    folder = copy_of("model")
    assert needed(collect(open_source(folder)), Needs(tokenizer="bytes", model="model")) == {}
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(IncompatibleManifest, match="needs the target's tokenizer, and the target has none"):
        needed(collect(open_source(folder)), Needs(tokenizer="bytes"))


def test_models_without_tokenizers_are_refused_as_a_pair(copy_of):
    """Nobody can tell what the ids of two models without tokenizers mean."""
    folders = [copy_of(name) for name in ("target", "draft")]
    for folder in folders:
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
    target = collect(open_source(folders[0]))
    assert target.tokenizer is None
    with pytest.raises(IncompatibleManifest, match="tokenizer-known"):
        needed(target, Needs(tokenizer="same", model="model"), model=str(folders[1]))


def test_a_loaded_target_and_its_folder_have_one_identity(copy_of):
    """Two ways to the same model must not differ."""
    folder = copy_of("model")
    engine = specframe.load(folder)
    by_hand = TransformersTarget(engine.target.model, engine.target.tokenizer)
    assert compare(of_target(by_hand), collect(open_source(folder))) == []
    facts, manifest = engine.target.facts, engine.target.facts.identity
    assert (facts.context_limit, facts.speculation_limit) == (
        manifest.positions.context_limit, manifest.positions.block_limit,
    )  # fmt: skip
    assert facts.stop_ids == set(manifest.boundaries.stop_ids)
    assert facts.vocab_size == manifest.model.head_width


def test_adapters_count_in_their_order(copy_of, tmp_path):
    """Two adapters applied the other way round are another model."""
    adapters = []
    for name, scale in (("first", 1.0), ("second", 2.0)):
        adapter = tmp_path / name
        adapter.mkdir()
        config = {"peft_type": "LORA", "r": 2, "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": name}
        (adapter / "adapter_config.json").write_text(json.dumps(config))
        save_file({"lora_A": np.full((2, 2), scale, np.float32)}, adapter / "adapter_model.safetensors")
        adapters.append(adapter)
    source = open_source(copy_of("model"))
    plain, forward, back = (collect(source, adapters=chain) for chain in ([], adapters, adapters[::-1]))
    assert len({manifest.digest for manifest in (plain, forward, back)}) == 3
    assert [difference.field for difference in compare(forward, back)] == ["weights.adapters"]
    config = {"peft_type": "LORA", "r": 2, "target_modules": ["v_proj", "q_proj"], "base_model_name_or_path": "moved"}
    (adapters[0] / "adapter_config.json").write_text(json.dumps(config))
    assert collect(source, adapters=adapters).digest == forward.digest
    (adapters[0] / "adapter_model.safetensors").unlink()
    with pytest.raises(LoadError, match="adapter 'first' holds no weights"):
        collect(source, adapters=adapters)
