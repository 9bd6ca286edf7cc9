"""Drafts by name: folders and model ids, whole, reduced and borrowing; what does not fit is one error before output begins."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from drafts import drop, let_borrow, reduce_head, reshape, using
from models import save_model
from transformers import MambaConfig, MambaForCausalLM

import specframe
from specframe import IncompatibleManifest, InvalidRequest, InvalidStrategy, LoadError, UnsupportedModel
from specframe.manifest import source
from specframe.testing import byte_tokenizer

VOCAB_SIZE = len(byte_tokenizer())
IDS = [*range(60, 130), -1, 3]


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Return the folders of a target and of a draft for it."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    return save_model(tmp_path / "target"), save_model(tmp_path / "draft", num_hidden_layers=1)


def borrowing(folder, **options):
    """Make a draft borrow all that it can, behind a reduced head."""
    let_borrow(folder, IDS, **options)
    return folder


def network_of(engine):
    return engine.drafters["draft_model"].network


def test_a_folder_drafts(pair):
    """The way most users take."""
    target, draft = pair
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    engine = specframe.load(target, strategy=using(draft))
    assert engine.generate("hello", max_new_tokens=12).token_ids == expected
    assert engine.draft_identities["draft_model"].model.num_layers == 1


def test_the_target_itself_drafts(pair):
    """Loaded a second time, of another dtype if one likes."""
    target, _ = pair
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    for options, dtype in (({}, torch.float32), ({"dtype": "bfloat16"}, torch.bfloat16)):
        engine = specframe.load(target, strategy=using(target, **options))
        result = engine.generate("hello", max_new_tokens=12)
        assert result.token_ids == expected
        assert result.events == ()
        assert network_of(engine).runner.model.dtype == dtype


@pytest.mark.parametrize("is_borrowing", [False, True])
def test_a_model_id_means_what_its_folder_does(pair, monkeypatch, is_borrowing):
    """A map that is looked for in a folder of the id's name is not found: column i is then taken for id i, without a word."""
    target, draft = pair
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    ids = IDS if is_borrowing else [*reversed(range(VOCAB_SIZE))]
    let_borrow(draft, ids, ("embeddings", "head") if is_borrowing else ())
    monkeypatch.setattr(source, "_snapshot", lambda name, weights, code: draft)
    engine = specframe.load(target, strategy=using("someone/draft"))
    result = engine.generate("hello", max_new_tokens=12)
    assert result.token_ids == expected
    assert result.events == ()
    assert network_of(engine).target_ids.tolist() == ids


def test_what_is_borrowed_is_not_copied(pair, capfd, caplog):
    """Embeddings are most of a small draft's bytes; and a library's bars and warnings of missing tensors say nothing here."""
    target, draft = pair
    borrowing(draft)
    capfd.readouterr()
    engine = specframe.load(target, strategy=using(draft))
    own, drafting = engine.target.model, network_of(engine).runner.model
    assert drafting.get_input_embeddings().weight.data_ptr() == own.get_input_embeddings().weight.data_ptr()
    rows = own.get_output_embeddings().weight[torch.tensor(IDS)]
    assert torch.equal(drafting.get_output_embeddings().weight, rows)
    assert capfd.readouterr().err == ""
    assert not [record for record in caplog.records if record.name == "transformers.modeling_utils"]
    whole = specframe.load(target, dtype="float64", strategy=using(draft))  # the draft's dtype is the target's
    assert network_of(whole).runner.model.dtype == torch.float64
    prompt = [70, 71, 72]
    assert (
        engine.generate(prompt, max_new_tokens=8).token_ids
        == specframe.load(target).generate(prompt, max_new_tokens=8).token_ids
    )


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("parts", [(), ("head",), ("embeddings",)], ids=str)
def test_a_reduced_head_goes_with_embeddings_of_any_number(tmp_path, monkeypatch, parts, kind):
    """A draft reads every id, whoever's embeddings it has, and proposes some; a configuration has one number for both."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    target, draft = save_model(tmp_path / "target", kind=kind), save_model(tmp_path / "draft", kind=kind)
    whole = specframe.load_draft(draft).runner.model
    reduce_head(draft, IDS)
    if parts:
        let_borrow(draft, parts=parts)
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    engine = specframe.load(target, strategy=using(draft))
    result = engine.generate("hello", max_new_tokens=12)
    assert result.token_ids == expected
    assert result.events == ()
    network = network_of(engine)
    assert (network.num_embeddings, network.target_ids.tolist()) == (VOCAB_SIZE, IDS)
    ids = torch.tensor([[70, 71, VOCAB_SIZE - 1]])
    with torch.no_grad():  # the draft is the target's copy, so that whoever lends, the rows are the same
        found, columns = network.runner.model(ids).logits, torch.tensor(IDS)
        assert torch.equal(found[..., columns >= 0], whole(ids).logits[..., columns[columns >= 0]])


def test_a_map_for_a_head_that_is_tied_is_told(pair):
    """Its rows are those of the embeddings, and column i would be taken for another id."""
    _, draft = pair
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    (draft / "target_ids.json").write_text(json.dumps(IDS))
    drop("lm_head.weight")(draft)
    with pytest.raises(LoadError, match=f"maps {len(IDS)} columns of a head that has {VOCAB_SIZE}; .* not tied"):
        specframe.load_draft(draft)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_a_borrowing_draft_of_another_dtype_is_refused(pair, dtype):
    """It would copy the whole table that it was made to share, and nobody would notice but the memory."""
    target, draft = pair
    with pytest.raises(
        InvalidRequest, match=r"'dtype' must be the target's, float32, for a draft that borrows .* leave it out"
    ):
        specframe.load(target, strategy=using(borrowing(draft), dtype=dtype))


@pytest.mark.parametrize("parts", [["norm"], "head", ["embeddings", 1], {"head": True}, None], ids=str)
def test_what_cannot_be_borrowed_is_told(pair, parts):
    """A misspelt part must not become a trace, nor a string its letters."""
    target, draft = pair
    let_borrow(draft, parts=())
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "specframe_borrows": parts}))
    with pytest.raises(LoadError, match="'specframe_borrows' must be a list of 'embeddings' and 'head'"):
        specframe.load(target, strategy=using(draft))


def test_a_tied_draft_borrows_both_or_none(pair):
    """The other half of a tie would be what the library made up."""
    target, draft = pair
    let_borrow(draft, parts=("embeddings",))
    config = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    with pytest.raises(LoadError, match="tied embeddings and borrows embeddings only"):
        specframe.load(target, strategy=using(draft))


def test_a_draft_that_borrows_is_no_target(pair):
    """It has no head of its own, and what the library makes up would generate noise."""
    _, draft = pair
    borrowing(draft)
    for load in (specframe.load, specframe.load_target, specframe.load_draft):
        with pytest.raises(LoadError, match="leaves its embeddings and head to a target; it is a draft"):
            load(draft)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            drop("model.layers.0.mlp.up_proj.weight"),
            "lacks 1 of its tensors, such as model.layers.0.mlp.up_proj.weight",
        ),
        (reshape, "could not be loaded"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"no"),
            "could not be loaded|its header cannot be read",
        ),
        (lambda folder: (folder / "model.safetensors").unlink(), "could not be loaded"),
    ],
    ids=["missing tensor", "wrong shape", "damaged file", "no file"],
)
@pytest.mark.parametrize("is_borrowing", [False, True])
def test_a_damaged_draft_is_told_before_output_begins(pair, damage, told, is_borrowing):
    """The library makes missing tensors up: a draft of noise that nobody told of."""
    target, draft = pair
    if is_borrowing:
        borrowing(draft)
    damage(draft)
    with pytest.raises(LoadError, match=told):
        specframe.load(target, strategy=using(draft))


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ([1, 2, 2], "Two output columns"),
        ([1, 2, VOCAB_SIZE], "names an id that the target"),
        ("abc", "must hold a list of target ids"),
    ],
)
def test_a_map_that_does_not_fit_is_told(pair, ids, told):
    """Before weights load, by the manifest."""
    target, draft = pair
    let_borrow(draft, [1, 2, 3])
    (draft / "target_ids.json").write_text(json.dumps(ids))
    with pytest.raises((IncompatibleManifest, InvalidRequest), match=told):
        specframe.load(target, strategy=using(draft))


def test_a_draft_of_another_tokenizer_is_refused(pair):
    """The manifest's business, here with a real plugin."""
    target, draft = pair
    vocabulary = json.loads((draft / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["A"], vocabulary["model"]["vocab"]["B"] = 66, 65
    (draft / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(IncompatibleManifest, match="id 65 is"):
        specframe.load(target, strategy=using(draft))


def test_a_draft_that_cannot_be_rolled_back_is_refused(pair):
    """Case D3: a recurrent draft would keep what was refused in its state, and skip words from then on."""
    target, draft = pair
    tokenizer = byte_tokenizer()
    special_ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=VOCAB_SIZE, state_size=4, **special_ids)
    MambaForCausalLM(config).save_pretrained(draft)
    with pytest.raises((UnsupportedModel, IncompatibleManifest), match=r"rolled back|recurrent"):
        specframe.load(target, strategy=using(draft))


def test_a_draft_with_more_columns_than_the_target_proposes_the_targets_ids(pair, tmp_path):
    """Padding of a head is common; its columns are no ids."""
    target, _ = pair
    draft = save_model(tmp_path / "padded", vocab_size=VOCAB_SIZE + 17)
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    engine = specframe.load(target, strategy=using(draft, min_confidence=0.05))
    result = engine.generate("hello", max_new_tokens=12)
    assert result.token_ids == expected
    assert result.events == ()
    assert network_of(engine).runner.facts.vocab_size == VOCAB_SIZE + 17


@pytest.mark.parametrize(
    ("options", "kind", "told"),
    [
        ({"dtype": "float33"}, InvalidRequest, "'dtype' must be one of"),
        ({"device": "nowhere"}, LoadError, "could not be loaded"),
        ({"model": "./nowhere"}, InvalidRequest, "there is no such folder"),
        ({"colour": "blue"}, InvalidStrategy, "colour"),
    ],
    ids=str,
)
def test_an_option_that_cannot_be_is_one_error(pair, options, kind, told):
    """Of ours, by its name."""
    target, draft = pair
    make = partial(using, **{"model": draft, **options}) if "model" not in options else partial(using, options["model"])
    with pytest.raises(kind, match=told):
        specframe.load(target, strategy=make())
