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
from specframe import __version__ as VERSION
from specframe.manifest import collect, open_source
from specframe.train.corpus import Corpus, CorpusSettings, Prompts, Shard, write_shard
from specframe.train.distil import DistilSettings, acceptance
from specframe.train.prompts import prompt_digest, read_prompts, synthetic_prompts
from specframe.train.run import TrainSettings, train_draft
from specframe.train.script import Conversation, Script, texts_of
from specframe.train.shape import build_draft, choose_ids, choose_layers

SETTINGS = TrainSettings(
    layers=1,
    columns=100,
    shards=2,
    dtype="float32",
    corpus=CorpusSettings(rows=4, length=60, dtype="float32"),
    distil=DistilSettings(steps=6, rows=2, warmup=2),
)
PROMPTS = ["tell me", "of the other"]


sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "manifest"))
from folders import save_model  # noqa: E402


@pytest.fixture
def target(tmp_path, monkeypatch):
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
            train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS, say=killed, save_every_s=0)
    parts = train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS)
    assert parts["data"] == whole["data"]
    assert parts["result"] == whole["result"]
    assert parts["training"]["steps"] == whole["training"]["steps"] == 6


def test_a_target_with_dropout_is_taken_up_alike(tmp_path, monkeypatch):
    """Dropout's random state would be lost with the process."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    target = save_model(tmp_path / "target", max_position_embeddings=128, attention_dropout=0.5)

    def killed(stage):
        if stage.stage == "learn" and stage.part > 0.5:
            raise KeyboardInterrupt

    whole = train_draft(target, tmp_path / "whole", PROMPTS, SETTINGS)
    with pytest.raises(KeyboardInterrupt):
        train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS, say=killed, save_every_s=0)
    torch.manual_seed(7)
    assert train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS)["result"] == whole["result"]


def test_text_of_another_origin_is_refused_and_other_training_begins_anew(target, tmp_path):
    """Half of one run and half of another is neither; hours of text are not thrown away for another learning rate."""
    first = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    with pytest.raises(InvalidRequest, match=r"corpus: prompts.*remove '.*corpus' to begin anew"):
        train_draft(target, tmp_path / "draft", ["another", "list"], SETTINGS)
    hotter = attrs.evolve(SETTINGS, corpus=attrs.evolve(SETTINGS.corpus, temperature=1.0))
    with pytest.raises(InvalidRequest, match=r"corpus: settings.temperature'"):
        train_draft(target, tmp_path / "draft", PROMPTS, hotter)
    for change in (
        {"distil": attrs.evolve(SETTINGS.distil, rate=1e-4)},
        {"layers": 2, "columns": 90, "shards": 1},
        {"distil": attrs.evolve(SETTINGS.distil, rows=3, steps=4)},
    ):
        other = attrs.evolve(SETTINGS, **change)
        news = []
        second = train_draft(target, tmp_path / "draft", PROMPTS, other, say=news.append)
        assert {stage.stage for stage in news} == {"learn"}
        assert second == {
            **train_draft(target, tmp_path / "fresh", PROMPTS, other),
            "training": second["training"],
        }
    news = []
    again = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=news.append)
    assert (again["result"], news) == (first["result"], [])


def test_other_code_is_told_and_in_the_receipt(target, tmp_path, monkeypatch):
    """A draft that two versions made is not the draft of either."""
    from specframe.train import work

    def killed(stage):
        if stage.stage == "learn":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=killed, save_every_s=0)
    monkeypatch.setattr(work, "__version__", "99.0")
    news = []
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=news.append)
    (notice,) = [stage.told for stage in news if stage.stage == "notice"]
    assert notice.startswith(
        f"the training was begun by other code and goes on with this: specframe {VERSION} -> 99.0;"
    )
    assert [code["specframe"] for code in receipt["code"]["corpus"]] == [VERSION]
    assert [code["specframe"] for code in receipt["code"]["training"]] == [VERSION, "99.0"]


def test_training_ends_with_its_time(target, tmp_path):
    """An hour that was asked for is an hour, over all runs; the rate has fallen by then."""
    settings = attrs.evolve(SETTINGS, distil=attrs.evolve(SETTINGS.distil, steps=None, minutes=0.01))
    news = []
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, settings, say=news.append, save_every_s=0)
    assert receipt["training"]["steps"] > 1
    assert news[-1].part == 1
    again = train_draft(target, tmp_path / "draft", PROMPTS, settings)
    assert (again["training"], again["result"]) == (receipt["training"], receipt["result"])


def test_prompts_of_the_held_out_text_are_not_learned(target, tmp_path):
    """A draft that has learned what it is measured by says nothing of others."""
    prompts = [f"prompt {index}" for index in range(12)]
    settings = attrs.evolve(SETTINGS, shards=6, corpus=attrs.evolve(SETTINGS.corpus, rows=16, length=40))
    parted = Prompts([*prompts, " prompt 3\n"], settings.corpus)
    assert len(parted.held_out) == 4
    assert sorted(parted.held_out + parted.learned, key=prompts.index) == prompts
    news = []
    receipt = train_draft(target, tmp_path / "draft", prompts, settings, say=news.append)
    held_out, *shards = Corpus(tmp_path / "draft" / "work" / "corpus", settings.corpus, 7)
    assert set(map(prompt_digest, parted.held_out)) <= set(held_out.prompts)
    learned = np.concatenate([shard.prompts for shard in shards])
    assert set(map(prompt_digest, parted.learned)) <= set(learned)
    assert not set(learned) & set(held_out.prompts)
    assert set(held_out.is_greedy[::4]) == set(held_out.is_greedy[1::4]) == {True, False}
    assert [stage.told for stage in news if stage.stage == "notice"] == [
        "8 prompts for 24 conversations: they are used again"
    ]
    assert receipt["data"]["num_prompts"] == {"held_out": 4, "learned": 8}
    with pytest.raises(InvalidRequest, match=r"'prompts' must be at least 5 different ones .got 4.; 4 are held out"):
        Prompts([*prompts[:4], *prompts[:4]], settings.corpus)


def test_a_sealed_prompt_that_the_target_wrote_itself_is_counted(target, tmp_path):
    """A target may know the sealed prompts by heart; what it writes is as good as a list."""
    train_draft(target, tmp_path / "free", PROMPTS, SETTINGS)
    free = list(Corpus(tmp_path / "free" / "work" / "corpus", SETTINGS.corpus, 3))
    sealed = frozenset({str(free[1].prompts[1]), str(free[2].prompts[3])})
    assert not sealed & set(map(prompt_digest, PROMPTS))
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, sealed=sealed)
    rest = list(Corpus(tmp_path / "draft" / "work" / "corpus", SETTINGS.corpus, 3))
    assert receipt["data"]["num_left_out"] == {"sealed": 2, "like_held_out": 0}
    assert receipt["data"]["sealed"]["num_digests"] == 2
    assert (rest[1].ids == free[1].ids[[0, 2, 3]]).all()
    assert (rest[2].ids == free[2].ids[:3]).all()


def test_sealed_prompts_are_known_behind_markers(target):
    """A model may end a turn by another stop id than the template's, or write a turn's heading itself."""
    tokenizer = specframe.load_target(target).tokenizer
    other, first, second = 269, 270, 271
    script = Script.of(tokenizer)
    prompt, heading = tokenizer.encode("  of the other\n"), tokenizer.encode("<user>")
    for drawn in (
        [*prompt, first],
        [*prompt, second],
        [65, second, *prompt, first],
        [65, first, 66, first, *prompt, second],
        [65, first, 66, other, *heading, *prompt, other, 67],
    ):
        talk = Conversation(script, None, frozenset({first, second}))
        ids = iter(drawn)
        with pytest.raises(StopIteration):
            while True:
                talk.next(lambda ids=ids: next(ids))
        texts = {text.strip() for turn in talk.turns for text in texts_of(turn, script, tokenizer)}
        assert "of the other" in texts, drawn


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
    script = Script.of(loaded.tokenizer)
    talks = [Conversation(script, first, loaded.facts.stop_ids) for first in ([65, 66], None)]
    shard = write_shard(loaded, talks, settings, 0, progress=lambda part: None)
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
    assert choose_layers(30, 3) == [0, 1, 2]
    assert choose_layers(2, 2) == [0, 1]
    with pytest.raises(InvalidRequest, match="'layers' must be 1 to 2"):
        choose_layers(2, 3)
    shard = Shard(np.array([[5, 5, 9, 7]], np.int32), np.array([[True, True, False, True]]), *[None] * 4)
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
    held_out = next(iter(Corpus(tmp_path / "draft" / "work" / "corpus", settings.corpus, 1)))
    before = acceptance(build_draft(loaded.model, [0], range(272)), held_out, range(272))
    receipt = json.loads((tmp_path / "draft" / "provenance.json").read_text())
    assert receipt["result"]["held_out_acceptance"] > before.overall + 0.05
    assert receipt["result"]["held_out_acceptance_greedy"] > before.greedy + 0.05


def test_a_draft_that_borrows_from_the_wrong_target_is_told(target, tmp_path):
    """Lent tensors of another width would fail inside the first forward."""
    train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    wide = save_model(tmp_path / "wide", hidden_size=48, head_dim=12)
    with pytest.raises(LoadError, match=r"borrows embeddings of width 32, the target's have 48"):
        specframe.load(wide, strategy=using(tmp_path / "draft"))
    file = tmp_path / "draft" / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items() if name[-11:] != "norm.weight"}
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(LoadError, match="lacks"):
        specframe.load(target, strategy=using(tmp_path / "draft"))
