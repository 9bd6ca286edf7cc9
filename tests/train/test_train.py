"""Draft training: a small draft for a tiny target, resumable, sealed prompts refused, and what it borrows checked."""

from __future__ import annotations

import json
import os
import sys

import attrs
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import specframe
from specframe import DrafterUse, InvalidRequest, LoadError, Strategy
from specframe.manifest import collect, open_source
from specframe.train.corpus import Corpus, CorpusSettings, Shard, write_shard
from specframe.train.distil import DistilSettings, acceptance
from specframe.train.prompts import prompt_digest, read_prompts, read_sealed, synthetic_prompts
from specframe.train.run import TrainSettings, train_draft
from specframe.train.script import Conversation, Script
from specframe.train.shape import build_draft, choose_ids, choose_layers

SETTINGS = TrainSettings(
    layers=1,
    columns=100,
    shards=2,
    dtype="float32",
    corpus=CorpusSettings(rows=4, length=60, dtype="float32"),
    distil=DistilSettings(steps=6, rows=2, warmup=2, save_every_s=0.0),
)
PROMPTS = ["tell me", "of the other"]


@pytest.fixture
def target(tmp_path, monkeypatch):
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "manifest"))
    from folders import save_model

    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    return save_model(tmp_path / "target", max_position_embeddings=128)


def using(folder):
    return Strategy(drafters=(DrafterUse("draft_model", {"model": str(folder)}),))


def test_a_trained_draft_runs_and_borrows(target, tmp_path):
    """The folder holds the draft's own tensors only; embeddings and head are the target's, and the text is too."""
    news = []
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=news.append)
    own = load_file(tmp_path / "draft" / "model.safetensors")
    assert not [name for name in own if "embed" in name or "head" in name]
    ids = json.loads((tmp_path / "draft" / "target_ids.json").read_text())
    assert ids == sorted({*ids})
    assert len(ids) == 100
    assert {270} <= {*ids}  # the end is always among them
    assert {stage.stage for stage in news} == {"write", "learn"}
    assert news[-1].part == 1
    assert receipt["target"] == collect(open_source(target), weights=True).digest
    assert json.loads((tmp_path / "draft" / "provenance.json").read_text()) == receipt
    expected = specframe.load(target).generate("hello", max_new_tokens=16).token_ids
    engine = specframe.load(target, strategy=using(tmp_path / "draft"))
    result = engine.generate("hello", max_new_tokens=16)
    assert result.token_ids == expected
    assert result.events == ()
    runner = engine.drafters["draft_model"].network.runner.model
    assert (
        runner.get_input_embeddings().weight.data_ptr() == engine.target.model.get_input_embeddings().weight.data_ptr()
    )
    assert runner.get_output_embeddings().weight.shape == (100, 32)
    assert engine.draft_identities["draft_model"].model.output_map.is_complete


def test_a_killed_run_goes_on_where_it_was(target, tmp_path):
    """Hours of text and training must outlive a kill, and the result must be the one of a run in one piece."""
    whole = train_draft(target, tmp_path / "whole", PROMPTS, SETTINGS)
    for stop in ("write", "learn"):

        def killed(stage, stop=stop):
            if stage.stage == stop and stage.part > 0.5:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS, say=killed)
    parts = train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS)
    assert parts["data"] == whole["data"]
    assert parts["result"] == whole["result"]


def test_another_run_does_not_go_on_in_the_folder(target, tmp_path):
    """Half of one run and half of another is neither."""
    train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    with pytest.raises(InvalidRequest, match="remove its 'work' folder"):
        train_draft(target, tmp_path / "draft", PROMPTS[:1], SETTINGS)


def test_sealed_prompts_are_refused(target, tmp_path):
    """A draft that has seen the test cannot be judged by it."""
    (tmp_path / "sealed.txt").write_text(prompt_digest("  of the other\n") + "\n")
    sealed = read_sealed(tmp_path / "sealed.txt")
    with pytest.raises(InvalidRequest, match=r"sealed for evaluation.*1, the first being number 2"):
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, sealed=sealed)
    assert not (tmp_path / "draft").exists()
    (tmp_path / "sealed.txt").write_text("not a digest\n")
    with pytest.raises(InvalidRequest, match="64 hexadecimal digits"):
        read_sealed(tmp_path / "sealed.txt")


def test_prompts_are_read_as_lines_or_json_lines(tmp_path):
    """What people have."""
    (tmp_path / "p.txt").write_text("one\n\ntwo\n")
    (tmp_path / "p.jsonl").write_text('{"prompt": "one\\ntwo"}\n')
    assert read_prompts(tmp_path / "p.txt") == ["one", "two"]
    assert read_prompts(tmp_path / "p.jsonl") == ["one\ntwo"]
    for content in ("", '{"text": "x"}\n', "nonsense\n"):
        (tmp_path / "p.jsonl").write_text(content)
        with pytest.raises(InvalidRequest, match="'prompts' must"):
            read_prompts(tmp_path / "p.jsonl")
    drawn = list(synthetic_prompts(0))
    assert len({*drawn}) == len(drawn) > 1000
    assert drawn == list(synthetic_prompts(0)) != list(synthetic_prompts(1))


def test_a_conversation_is_written_as_its_template_says():
    """Forced ids between turns are nobody's to learn; answers and their ends are."""
    script = Script(opening=(1, 2), to_assistant=(9, 3), to_user=(9, 4))
    drawn = iter([50, 9, 60, 61, 9, 70])
    talk = Conversation(script, None, frozenset({9}))
    ids = [talk.next(lambda: next(drawn)) for _ in range(10)]
    assert ids == [1, 2, 50, 9, 3, 60, 61, 9, 4, 70]
    assert [token for token, is_answer in zip(talk.ids, talk.answers, strict=True) if is_answer] == [60, 61, 9]
    talk = Conversation(script, [7, 8], frozenset({9}))
    drawn = iter([60, 9])
    ids = [talk.next(lambda: next(drawn)) for _ in range(9)]
    assert ids == [1, 2, 7, 8, 9, 3, 60, 9, 4]
    assert [token for token, is_answer in zip(talk.ids, talk.answers, strict=True) if is_answer] == [60, 9]


def test_the_targets_rows_are_those_of_its_text(target):
    """What the draft learns at a position is what the target says there, and greedy rows take the likeliest id."""
    loaded = specframe.load_target(target)
    settings = CorpusSettings(rows=2, length=40)
    shard = write_shard(loaded, Script.of(loaded.tokenizer), [[65, 66], None], settings, 0, progress=lambda part: None)
    logits = loaded.model(input_ids=torch.tensor(shard.ids).long()).logits.log_softmax(-1)
    for row in range(2):
        for position in range(12, 40):
            top = logits[row, position - 1].topk(16)
            assert np.allclose(shard.log_probs[row, position], top.values.detach().numpy(), atol=1e-2)
            if row == 0 and shard.is_answer[row, position]:
                assert shard.ids[row, position] == shard.likeliest[row, position, 0]
    assert shard.is_answer.any()


def test_a_draft_begins_as_the_targets_layers(target):
    """All layers and all ids: the draft is the target, and agrees with it everywhere."""
    model = specframe.load_target(target).model
    draft = build_draft(model, [0, 1], range(272)).eval()
    ids = torch.arange(20)[None]
    assert torch.allclose(draft(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)
    assert choose_layers(30, 3) == [0, 14, 29]
    assert choose_layers(30, 1) == [0]
    with pytest.raises(InvalidRequest, match="'layers' must be 1 to 2"):
        choose_layers(2, 3)
    shard = Shard(np.array([[5, 5, 9, 7]], np.int32), np.array([[True, True, False, True]]), *[None] * 2)
    assert choose_ids([shard], 3, 100, frozenset({99})) == [5, 7, 99]
    assert choose_ids([shard], 100, 100, frozenset()) == list(range(100))


def test_learning_raises_acceptance(target, tmp_path):
    """A loop that learns nothing would pass every other test here."""
    loaded = specframe.load_target(target)
    settings = attrs.evolve(
        SETTINGS,
        columns=272,
        corpus=attrs.evolve(SETTINGS.corpus, rows=16),
        distil=DistilSettings(steps=60, rows=8, warmup=5),
    )
    train_draft(target, tmp_path / "draft", PROMPTS, settings)
    held_out = next(iter(Corpus(tmp_path / "draft" / "work" / "corpus", settings.corpus)))
    before = acceptance(build_draft(loaded.model, [0], range(272)), held_out, range(272))
    receipt = json.loads((tmp_path / "draft" / "provenance.json").read_text())
    assert receipt["result"]["held_out_acceptance"] > before + 0.05


def test_a_draft_that_borrows_from_the_wrong_target_is_told(target, tmp_path):
    """Lent tensors of another width would fail inside the first forward."""
    train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    from folders import save_model

    wide = save_model(tmp_path / "wide", hidden_size=48, head_dim=12)
    with pytest.raises(LoadError, match=r"borrows embeddings of width 32, the target's have 48"):
        specframe.load(wide, strategy=using(tmp_path / "draft"))
    file = tmp_path / "draft" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if name[-11:] != "norm.weight"}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(LoadError, match="lacks"):
        specframe.load(target, strategy=using(tmp_path / "draft"))
