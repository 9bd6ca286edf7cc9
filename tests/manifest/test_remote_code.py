"""Code that comes with a model runs only where the caller says so; a strategy file is no caller."""

from __future__ import annotations

import builtins
import contextlib
import json

import pytest
import torch
from transformers import dynamic_module_utils

import specframe
from specframe import InvalidRequest, LoadError
from specframe.manifest import collect, open_source

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

Path({ran!r}).write_text("yes")

class OwnConfig(LlamaConfig):
    model_type = {kind!r}

class OwnModel(LlamaForCausalLM):
    config_class = OwnConfig

class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """The file that is there once a model's code ran; whoever asks the user is an error."""

    def ask(*_):
        raise AssertionError("the user was asked")

    monkeypatch.setattr(builtins, "input", ask)
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    return tmp_path / "ran"


@pytest.fixture
def own(copy_of, ran):
    """Return what makes a folder of a tiny model that brings code of its own."""

    def make(name, kind, *, tokenizer=False):
        folder = copy_of(name)
        (folder / "own.py").write_text(CODE.format(ran=str(ran), kind=kind))
        config = json.loads((folder / "config.json").read_text())
        config |= {
            "model_type": kind,
            "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
        }
        (folder / "config.json").write_text(json.dumps(config))
        if tokenizer:
            told = json.loads((folder / "tokenizer_config.json").read_text())
            told |= {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]}}
            (folder / "tokenizer_config.json").write_text(json.dumps(told))
        return folder

    return make


@pytest.mark.parametrize(
    "use",
    [
        specframe.load,
        specframe.load_target,
        specframe.load_draft,
        lambda folder: collect(open_source(folder)),
        lambda folder: collect(open_source(folder), weights=True),
    ],
    ids=["load", "load_target", "load_draft", "manifest", "whole manifest"],
)
def test_a_model_that_needs_code_is_refused(own, ran, use):
    """Nothing runs, nobody is asked, and the error says how it would."""
    with pytest.raises(InvalidRequest, match=r"must not need code of its own .*; read that code") as caught:
        use(own("needs", "specframe_own_a"))
    assert "\n" not in str(caught.value)
    assert not ran.exists()


def test_code_that_is_not_needed_does_not_run(own, ran):
    """A folder may bring code for a model that the library knows; the library's is taken."""
    target = specframe.load_target(own("known", "llama"))
    assert type(target.model).__module__.startswith("transformers.")
    assert not ran.exists()


def test_a_tokenizer_that_brings_code_runs_none(own, ran):
    """Where the tokenizer cannot be read without it, the model is refused; the library may well read it."""
    folder = own("tokens", "llama", tokenizer=True)
    with contextlib.suppress(InvalidRequest, LoadError):
        specframe.load_target(folder)
    assert not ran.exists()


def test_a_strategy_file_cannot_trust(own, ran, tmp_path):
    """A draft that is named in a file is loaded without its code, and no option can change that."""
    draft = str(own("draft", "specframe_own_b"))
    for option in ("", ", trust_remote_code = true"):
        path = tmp_path / "mine.toml"
        path.write_text(f"[[drafters]]\nuse = 'draft_model'\noptions = {{ model = {json.dumps(draft)}{option} }}\n")
        with pytest.raises(specframe.SpecframeError):
            specframe.load(own(f"target{len(option)}", "llama"), strategy=path)
    assert not ran.exists()


def test_a_model_whose_code_is_trusted_decodes(own, ran):
    """The caller's word lets the code run, and the model is decoded like any other."""
    folder = own("trusted", "specframe_own_c")
    engine = specframe.load(folder, trust_remote_code=True)
    assert ran.exists()
    model = engine.target.model
    assert type(model).__name__ == "OwnModel"
    ids = [5, 6, 7]
    generated = engine.generate(ids, max_new_tokens=4, stop_ids=[]).token_ids
    with torch.no_grad():
        expected = int(model(torch.tensor([ids])).logits[0, -1].argmax())
    assert generated[0] == expected
    assert engine.generate(ids, max_new_tokens=4).receipt.hashes.target_weights.startswith("weights-v1")


def test_code_that_breaks_is_told(own, ran):
    """Trusted code may be broken."""
    folder = own("broken", "specframe_own_d")
    (folder / "own.py").write_text("raise RuntimeError('it fell')")
    with pytest.raises((InvalidRequest, LoadError, RuntimeError), match="it fell"):
        specframe.load(folder, trust_remote_code=True)


def test_pickled_weights_cannot_run_code(copy_of, tmp_path):
    """A checkpoint from before safetensors is a pickle; its tensors load, and what else is in it does not run."""

    class Bomb:
        def __reduce__(self):
            return (open, (str(tmp_path / "ran"), "w"))

    folder = copy_of("old")
    model = specframe.load_target(copy_of("new")).model
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    assert specframe.load_target(folder).model.config.vocab_size == model.config.vocab_size
    torch.save({**model.state_dict(), "x": Bomb()}, folder / "pytorch_model.bin")
    with pytest.raises(LoadError):
        specframe.load_target(folder)
    assert not (tmp_path / "ran").exists()
