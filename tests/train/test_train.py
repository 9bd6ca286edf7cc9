"""Draft training: a small draft for a tiny target, resumable, sealed prompts refused, and what it borrows checked."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import attrs
import numpy as np
import pytest
import torch
from models import KINDS, tiny_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Qwen2MoeConfig, SmolLM3Config
from typer.testing import CliRunner

import specframe
from specframe import DrafterUse, InvalidRequest, LoadError, Strategy, UnsupportedModel
from specframe import __version__ as VERSION
from specframe.cli import app
from specframe.manifest import collect, open_source
from specframe.train import shape
from specframe.train.corpus import Corpus, CorpusSettings, Prompts, Shard, write_shard
from specframe.train.distil import DistilSettings, acceptance
from specframe.train.prompts import prompt_digest, read_prompts, read_sealed, synthetic_prompts
from specframe.train.run import TrainSettings, train_draft
from specframe.train.script import Conversation, Script, texts_of
from specframe.train.shape import build_draft, choose_ids, go_on_from, own_parameters, with_more_layers

SETTINGS = TrainSettings(
    layers=1,
    columns=100,
    shards=2,
    dtype="float32",
    corpus=CorpusSettings(rows=4, length=60, dtype="float32"),
    distil=DistilSettings(steps=6, rows=2, warmup=2),
)
PROMPTS = ["tell me", "of the other", "hello there"]
THREE_LAYERS = {
    "gemma3": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    },
    "gpt2": {"n_layer": 3},
}


def process_environment():
    """Return surroundings in which a child finds what this process does, and has one thread as it has."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}


sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "manifest"))
from folders import edit, save_model  # noqa: E402


@pytest.fixture
def target(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    return save_model(tmp_path / "target", max_position_embeddings=128)


def using(folder):
    return Strategy(drafters=(DrafterUse("draft_model", {"model": str(folder)}),))


def test_a_trained_draft_runs_and_borrows(target, tmp_path, capfd):
    """The folder holds the draft's own tensors only; embeddings and head are the target's, and the text is too."""
    news = []
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=news.append)
    own = load_file(tmp_path / "draft" / "model.safetensors")
    assert not [name for name in own if "embed" in name or "head" in name]
    ids = json.loads((tmp_path / "draft" / "target_ids.json").read_text())
    assert ids == sorted({*ids})
    assert len(ids) == 100
    assert {270} <= {*ids}  # the end is always among them
    assert b"\n" not in (tmp_path / "draft" / "tokenizer.json").read_bytes()
    assert collect(open_source(tmp_path / "draft")).tokenizer == collect(open_source(target)).tokenizer
    assert {stage.stage for stage in news} == {"write", "learn"}
    assert news[-1].part == 1
    assert receipt["target"] == collect(open_source(target), weights=True).digest
    assert json.loads((tmp_path / "draft" / "provenance.json").read_text()) == receipt
    expected = specframe.load(target).generate("hello", max_new_tokens=16).token_ids
    capfd.readouterr()
    engine = specframe.load(target, strategy=using(tmp_path / "draft"))
    assert "[transformers]" not in capfd.readouterr().err  # gaps are on purpose
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
        train_draft(target, tmp_path / "parts", PROMPTS, SETTINGS, say=killed)
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
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, say=killed)
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
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, settings, say=news.append)
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
        talk = Conversation(script, [], frozenset({first, second}), is_whole=False)
        ids = iter(drawn)
        with pytest.raises(StopIteration):
            while True:
                talk.next(lambda ids=ids: next(ids))
        texts = {text.strip() for turn in talk.turns for text in texts_of(turn, script, tokenizer)}
        assert "of the other" in texts, drawn


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
    (tmp_path / "p.txt").write_bytes("\ufeffone\r\n\n \ntwo\u2028half\n".encode())
    (tmp_path / "p.jsonl").write_text('{"prompt": "one\\ntwo", "id": 1}\n\n')
    assert read_prompts(tmp_path / "p.txt") == ["one", "two\u2028half"]
    assert read_prompts(tmp_path / "p.jsonl") == ["one\ntwo"]
    drawn = list(synthetic_prompts(0))
    assert len({*drawn}) == len(drawn) > 1000
    assert drawn == list(synthetic_prompts(0)) != list(synthetic_prompts(1))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"text": "x"}', "KeyError: 'prompt'"),
        ("nonsense", "JSONDecodeError"),
        ('["prompt"]', "TypeError"),
        ("7", "TypeError"),
        ('{"prompt": 7}', "'prompt' is 7"),
        ('{"prompt": " "}', "'prompt' is ' '"),
        ('{"prompt": "\\ud800"}', "UnicodeEncodeError"),
        ("[" * 100_000, "RecursionError"),
    ],
)
def test_a_line_that_is_no_prompt_is_told_by_its_number(tmp_path, line, told):
    """In a file of a million."""
    (tmp_path / "p.jsonl").write_text('{"prompt": "x"}\n\n' + line + "\n")
    with pytest.raises(InvalidRequest, match=f"'prompts' must hold JSON objects.*p.jsonl, line 3.*{re.escape(told)}"):
        read_prompts(tmp_path / "p.jsonl")


def test_files_that_cannot_be_read_are_told(tmp_path):
    """By option and file."""
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    for name, read in (("prompts", read_prompts), ("sealed", read_sealed)):
        with pytest.raises(InvalidRequest, match=f"'{name}' must be a file that can be read .No such file"):
            read(tmp_path / "none.txt")
        with pytest.raises(InvalidRequest, match=f"'{name}' must be a UTF-8 file .invalid continuation byte at byte 3"):
            read(tmp_path / "latin.txt")
        with pytest.raises(InvalidRequest, match=f"'{name}' must hold at least one"):
            read(tmp_path / "empty.txt")
    digest = prompt_digest("x")
    (tmp_path / "sealed.txt").write_text(f"{digest.upper()}\n\n{digest[1:]}\n")
    with pytest.raises(InvalidRequest, match=r"64 hexadecimal digits, one a line, and does not in line 3"):
        read_sealed(tmp_path / "sealed.txt")
    (tmp_path / "sealed.txt").write_text(f" {digest.upper()}\r\n")
    assert read_sealed(tmp_path / "sealed.txt") == {digest}


def test_a_conversation_is_written_as_its_template_says():
    """Forced ids between turns are nobody's to learn; answers and their ends are."""
    script = Script(opening=(1, 2), to_assistant=(9, 3), to_user=(9, 4))
    drawn = iter([50, 9, 60, 61, 9, 70])
    talk = Conversation(script, [], frozenset({9}), is_whole=False)
    ids = [talk.next(lambda: next(drawn)) for _ in range(10)]
    assert ids == [1, 2, 50, 9, 3, 60, 61, 9, 4, 70]
    assert [token for token, is_answer in zip(talk.ids, talk.answers, strict=True) if is_answer] == [60, 61, 9]
    talk = Conversation(script, [7, 8], frozenset({9}))
    drawn = iter([60, 9])
    ids = [talk.next(lambda: next(drawn)) for _ in range(9)]
    assert ids == [1, 2, 7, 8, 9, 3, 60, 9, 4]
    assert [token for token, is_answer in zip(talk.ids, talk.answers, strict=True) if is_answer] == [60, 9]
    talk = Conversation(script, [7], frozenset({9}), is_whole=False)
    drawn = iter([8, 9, 60])
    ids = [talk.next(lambda: next(drawn)) for _ in range(7)]
    assert ids == [1, 2, 7, 8, 9, 3, 60]
    assert talk.turns == [[7, 8], [60]]


def test_the_targets_rows_are_those_of_its_text(target):
    """What the draft learns at a position is what the target says there, and greedy rows take the likeliest id."""
    loaded = specframe.load_target(target)
    settings = CorpusSettings(rows=2, length=40)
    script = Script.of(loaded.tokenizer)
    talks = [
        Conversation(script, first, loaded.facts.stop_ids, is_whole=is_whole)
        for first, is_whole in (([65, 66], True), ([], False))
    ]
    shard = write_shard(loaded, talks, settings, 0, progress=lambda part: None)
    logits = loaded.model(input_ids=torch.tensor(shard.ids).long()).logits.log_softmax(-1)
    for row in range(2):
        for position in range(12, 40):
            top = logits[row, position - 1].topk(16)
            assert np.allclose(shard.log_probs[row, position], top.values.detach().numpy(), atol=1e-2)
            if row == 0 and shard.is_answer[row, position]:
                assert shard.ids[row, position] == shard.likeliest[row, position, 0]
    assert shard.is_answer.any()


@pytest.mark.parametrize("kind", KINDS)
def test_a_draft_begins_as_the_targets_layers(kind, target):
    """All layers and all ids: the draft is the target, and agrees with it everywhere, whatever its layers are called."""
    model = tiny_model(kind, dtype=torch.float32, **THREE_LAYERS.get(kind, {"num_hidden_layers": 3}))
    draft = build_draft(model, 3, range(64)).eval()
    ids = torch.arange(20)[None]
    expected = model(input_ids=ids, output_hidden_states=True)
    assert torch.allclose(draft(input_ids=ids).logits, expected.logits, atol=1e-5)
    first = build_draft(model, 1, range(10)).eval()
    assert first(input_ids=ids).logits.shape == (1, 20, 10)
    own, whole = first.state_dict(), model.state_dict()
    borrowed = {id(first.get_input_embeddings().weight), id(first.get_output_embeddings().weight)}
    for name, parameter in first.named_parameters():
        assert id(parameter) in borrowed or torch.equal(own[name], whole[name]), name


def test_what_is_listed_for_every_layer_is_cut():
    """Two lists of SmolLM 3, one of which decides whether a layer rotates; token ids may be as many by chance."""
    config = SmolLM3Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        no_rope_layers=[1, 0, 1, 1],
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=[1, 2, 3, 4],
        tie_word_embeddings=False,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    draft = build_draft(model, 2, range(64)).eval()
    assert (draft.config.no_rope_layers, draft.config.eos_token_id) == ([1, 0], [1, 2, 3, 4])
    assert len(draft.config.layer_types) == 2
    ids = torch.arange(20)[None]
    expected = model(input_ids=ids, output_hidden_states=True).hidden_states[2]
    assert torch.allclose(draft.base_model(ids).last_hidden_state, model.model.norm(expected), atol=1e-6)


def test_the_commonest_ids_are_chosen():
    """And stop ids, without which a draft never ends."""
    shard = Shard(np.array([[5, 5, 9, 7]], np.int32), np.array([[True, True, False, True]]), *[None] * 4)
    assert choose_ids([shard], 3, 100, frozenset({99})) == [5, 7, 99]
    assert choose_ids([shard], 100, 100, frozenset()) == list(range(100))


def test_special_ids_without_a_column_stay_the_targets(tmp_path, monkeypatch):
    """A padding id beyond the reduced vocabulary is an error in torch, and a draft with other stop ids is refused."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    target = save_model(tmp_path / "target", max_position_embeddings=128, pad_token_id=271, bos_token_id=269)
    edit(target / "generation_config.json", lambda config: config.update(eos_token_id=[270, 271]))
    train_draft(target, tmp_path / "draft", PROMPTS, attrs.evolve(SETTINGS, columns=20))
    config = json.loads((tmp_path / "draft" / "config.json").read_text())
    assert [config[f"{name}_token_id"] for name in ("pad", "bos", "eos")] == [None] * 3
    engine = specframe.load(target, strategy=using(tmp_path / "draft"))
    result = engine.generate("hello", max_new_tokens=8)
    assert (result.token_ids, result.events) == (
        specframe.load(target).generate("hello", max_new_tokens=8).token_ids,
        (),
    )


def test_a_template_that_opens_with_nothing_is_written(tmp_path, monkeypatch):
    """A conversation must begin with some id; a forward over none fails."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    target = save_model(tmp_path / "target", max_position_embeddings=128)
    template = (
        "{% for m in messages %}{{ m['content'] }}{% if m['role'] == 'user' %} -> {% else %} <- {% endif %}{% endfor %}"
    )
    (target / "chat_template.jinja").write_text(template)
    receipt = train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    assert receipt["data"]["num_conversations"] == {"held_out": 4, "learned": 8}
    (target / "chat_template.jinja").write_text("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    with pytest.raises(UnsupportedModel, match="puts nothing between turns"):
        train_draft(target, tmp_path / "other", PROMPTS, SETTINGS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layers": 0}, "'layers' must be an integer >= 1 .got 0."),
        ({"layers": 3}, "'layers' must be 1 to 2, the target's .got 3."),
        ({"columns": 1}, "'columns' must be more than the target's 1 stop ids .got 1."),
        ({"shards": 0}, "'shards' must be an integer >= 1"),
        ({"dtype": "int8"}, "'dtype' must be one of float32, bfloat16, float16 .got 'int8'."),
        ({"corpus": {"dtype": "float61"}}, "'dtype' must be one of float32, bfloat16"),
        ({"corpus": {"length": 129}}, "'length' must be at most 128, the target's context"),
        ({"corpus": {"rows": 0}}, "'rows' must be"),
        ({"corpus": {"temperature": -1.0}}, "'temperature' must be >= 0"),
        ({"corpus": {"seed": -1}}, "'seed' must be"),
        ({"distil": {"steps": 0}}, "'steps' must be"),
        ({"distil": {"steps": None}}, "'steps' must be given where minutes are not"),
        ({"distil": {"minutes": 0.0}}, "'minutes' must be > 0"),
        ({"distil": {"minutes": float("nan")}}, "'minutes' must be > 0"),
        ({"distil": {"rate": 0}}, "'rate' must be > 0"),
        ({"distil": {"hard": 1.5}}, "'hard' must be >= 0 and <= 1"),
    ],
)
def test_settings_are_checked_before_anything_is_written(target, tmp_path, change, told):
    """An hour of text for a typing error."""
    with pytest.raises(InvalidRequest, match=told):
        settings = attrs.evolve(
            SETTINGS,
            **{
                name: attrs.evolve(getattr(SETTINGS, name), **value) if isinstance(value, dict) else value
                for name, value in change.items()
            },
        )
        train_draft(target, tmp_path / "draft", PROMPTS, settings)
    assert not (tmp_path / "draft").exists()


def test_wrong_options_of_the_command_are_one_line(target, tmp_path):
    """With the option's name."""
    for options, told in (
        (["--steps", "0"], "'steps' must be an integer >= 1 (got 0)"),
        (["--minutes", "-1"], "'minutes' must be > 0 (got -1.0)"),
        (["--rate", "0"], "'rate' must be > 0"),
        (["--dtype", "half"], "'dtype' must be one of float32, bfloat16 (got 'half')"),
        (["--prompts", str(tmp_path / "none.txt")], "'prompts' must be a file that can be read"),
    ):
        result = CliRunner().invoke(app, ["train-draft", str(target), "-o", str(tmp_path / "draft"), *options])
        assert result.exit_code == 2
        assert told in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "draft").exists()


def test_a_target_that_cannot_be_cut_is_refused_before_it_writes(target, tmp_path, monkeypatch):
    """Not after."""
    monkeypatch.setattr("specframe.train.run.build_draft", refuse)
    with pytest.raises(UnsupportedModel, match="no plain stack"):
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    assert not (tmp_path / "draft").exists()


def refuse(*arguments):
    raise UnsupportedModel("no plain stack")


def test_a_loss_without_bounds_ends_the_training(target, tmp_path):
    """A draft of NaN is written to nobody's use."""
    settings = attrs.evolve(SETTINGS, distil=attrs.evolve(SETTINGS.distil, rate=1e30, warmup=0))
    with pytest.raises(InvalidRequest, match=r"'rate' must be smaller: the loss is (nan|inf) in step"):
        train_draft(target, tmp_path / "draft", PROMPTS, settings)


def test_a_folder_that_cannot_be_written_is_told_at_once(target, tmp_path):
    """As a file where the folder should be."""
    (tmp_path / "file").write_text("")
    for output in (tmp_path / "file", tmp_path / "file" / "draft"):
        with pytest.raises(InvalidRequest, match=r"'output' must be a folder that can be written.*file' is a file"):
            train_draft(target, output, PROMPTS, SETTINGS)


@contextmanager
def files_of_at_most(size):
    """Let every write past so many bytes of a file fail, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_error_and_a_next_run_goes_on(target, tmp_path):
    """What is there is whole: no half of a file under its name, and no weights without their map."""
    whole = train_draft(target, tmp_path / "whole", PROMPTS, SETTINGS)
    sizes = {file.name: file.stat().st_size for file in sorted((tmp_path / "whole").rglob("*")) if file.is_file()}
    output = tmp_path / "draft"
    for limit in sorted({0, *(size - 1 for size in sizes.values())}):
        with (
            files_of_at_most(limit),
            pytest.raises(InvalidRequest, match=r"'output' must be a folder .* disk with room"),
        ):
            train_draft(target, output, PROMPTS, SETTINGS)
        assert (output / "target_ids.json").is_file() or not (output / "model.safetensors").exists()
        assert not (output / "provenance.json").exists()
    assert train_draft(target, output, PROMPTS, SETTINGS)["result"] == whole["result"]


def test_damaged_work_is_told(target, tmp_path):
    """Disks forget."""
    train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
    work = tmp_path / "draft" / "work"
    (checkpoint,) = work.glob("training-*/checkpoint.pt")
    for file in (checkpoint, work / "corpus" / "shard-00001.npz"):
        content = file.read_bytes()
        file.write_bytes(content[:200])
        with pytest.raises(LoadError, match=f"{file.name}' is damaged .*remove it"):
            train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)
        file.write_bytes(content)
    (work / "corpus" / "started.json").write_text("{")
    with pytest.raises(InvalidRequest, match=r"started.json is damaged.*to begin anew"):
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS)


def test_a_run_of_the_command_that_is_killed_twice_gives_the_same(target, tmp_path):
    """Kill -9 in the middle of the text, then in the middle of the training; no handler of ours runs."""
    wide = save_model(tmp_path / "wide", max_position_embeddings=512)
    options = ["--shards", "1", "--steps", "300", "--columns", "100", "--layers", "1", "--json"]
    for stage in ("write", "learn"):
        arguments = [
            sys.executable,
            "-m",
            "specframe.cli",
            "train-draft",
            str(wide),
            "-o",
            str(tmp_path / "parts"),
            *options,
        ]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=process_environment()) as process:
            for line in process.stdout:
                told = json.loads(line)
                if told.get("stage") == stage and (stage == "write" or told["part"] > 0.2):
                    time.sleep(0.5 if stage == "write" else 0)  # it tells of its text every ten seconds only
                    process.kill()
                    break
        assert process.returncode == -signal.SIGKILL
        assert not (tmp_path / "parts" / "provenance.json").exists()
    assert len(list((tmp_path / "parts" / "work").glob("training-*/checkpoint.pt"))) == 1
    receipts = []
    for folder in ("parts", "whole"):
        result = CliRunner().invoke(app, ["train-draft", str(wide), "-o", str(tmp_path / folder), *options])
        assert result.exit_code == 0, result.output
        receipts.append(json.loads(result.stdout.splitlines()[-1]))
    assert [receipt["result"] for receipt in receipts] == [receipts[1]["result"]] * 2
    assert [receipt["data"] for receipt in receipts] == [receipts[1]["data"]] * 2
    steps = [line for line in result.stdout.splitlines() if '"learn"' in line]
    assert json.loads(steps[-1])["step"] == 300


def test_learning_raises_acceptance(target, tmp_path):
    """A loop that learns nothing would pass every other test here."""
    loaded = specframe.load_target(target)
    settings = attrs.evolve(
        SETTINGS,
        columns=272,
        shards=8,
        corpus=attrs.evolve(SETTINGS.corpus, rows=32),
        distil=DistilSettings(steps=150, rows=8, warmup=5, rate=3e-3),
    )
    train_draft(target, tmp_path / "draft", [f"prompt {index}" for index in range(12)], settings)
    held_out = next(iter(Corpus(tmp_path / "draft" / "work" / "corpus", settings.corpus, 1)))
    before = acceptance(build_draft(loaded.model, 1, range(272)), held_out, range(272))
    receipt = json.loads((tmp_path / "draft" / "provenance.json").read_text())
    assert receipt["result"]["held_out_acceptance"] > before.overall + 0.04


def test_training_goes_on_from_another_draft(target, tmp_path):
    """What one training has learned is where the next begins, with its columns; the receipt holds the first one's."""
    first = train_draft(target, tmp_path / "first", PROMPTS, SETTINGS)
    resting = attrs.evolve(
        SETTINGS,
        corpus=attrs.evolve(SETTINGS.corpus, seed=1),
        distil=attrs.evolve(SETTINGS.distil, rate=1e-30),
    )
    second = train_draft(target, tmp_path / "second", PROMPTS, resting, start=tmp_path / "first")
    assert second["begun_with"] == {"weights": first["result"]["weights"], "layers": 1, "receipt": first}
    assert second["data"]["corpus"] != first["data"]["corpus"]
    assert second["result"]["weights"] == first["result"]["weights"]
    for name in ("target_ids.json", "model.safetensors"):
        assert (tmp_path / "second" / name).read_bytes() == (tmp_path / "first" / name).read_bytes()
    alone = train_draft(target, tmp_path / "second", PROMPTS, resting)
    assert alone["begun_with"] is None
    assert alone["result"]["weights"] != first["result"]["weights"]
    (tmp_path / "first" / "provenance.json").unlink()
    third = train_draft(
        target, tmp_path / "second", PROMPTS, attrs.evolve(resting, distil=SETTINGS.distil), start=tmp_path / "first"
    )
    assert third["begun_with"] == {"weights": first["result"]["weights"], "layers": 1, "receipt": None}
    assert third["result"]["weights"] != first["result"]["weights"]


def test_a_draft_that_training_cannot_begin_with_is_told(target, tmp_path):
    """Before an hour of text, where its configuration tells."""
    train_draft(target, tmp_path / "first", PROMPTS, attrs.evolve(SETTINGS, layers=2))
    for change, told in (
        ({"layers": 1}, r"'layers' must be at least 2, which the draft has that is begun with .got 1."),
        ({"columns": 90}, r"'columns' must be 100, as the draft has that is begun with .got 90."),
    ):
        with pytest.raises(InvalidRequest, match=told):
            train_draft(target, tmp_path / "draft", PROMPTS, attrs.evolve(SETTINGS, **change), start=tmp_path / "first")
        assert not (tmp_path / "draft").exists()
    wide = save_model(tmp_path / "wide", hidden_size=48, head_dim=12)
    deep = save_model(tmp_path / "deep", num_hidden_layers=3)
    train_draft(deep, tmp_path / "deep draft", PROMPTS, attrs.evolve(SETTINGS, layers=3))
    with pytest.raises(InvalidRequest, match=r"'start' must be a draft of this target, with at most 2 layers .got 3."):
        train_draft(target, tmp_path / "draft", PROMPTS, SETTINGS, start=tmp_path / "deep draft")
    settings = attrs.evolve(SETTINGS, layers=2)
    with pytest.raises(InvalidRequest, match=r"'start' must be a draft of this target, with vectors of 48 .got 32."):
        train_draft(wide, tmp_path / "draft", PROMPTS, settings, start=tmp_path / "first")
    assert not (tmp_path / "draft").exists()
    ids = json.loads((tmp_path / "first" / "target_ids.json").read_text())
    (tmp_path / "first" / "target_ids.json").write_text(json.dumps([-1, *ids[1:]]))
    with pytest.raises(InvalidRequest, match=r"'start' must be a draft that borrows .* has an id for every column"):
        train_draft(target, tmp_path / "other", PROMPTS, settings, start=tmp_path / "first")
    (tmp_path / "first" / "provenance.json").write_text("{")
    with pytest.raises(LoadError, match=r"provenance.json' is damaged"):
        train_draft(target, tmp_path / "other", PROMPTS, settings, start=tmp_path / "first")


def test_a_draft_may_begin_with_fewer_layers_than_it_gets(target, tmp_path):
    """A deeper draft begins with what the other one says, to the digit, and learns with all of its layers."""
    train_draft(target, tmp_path / "first", PROMPTS, SETTINGS)
    loaded = specframe.load_target(target, dtype="float32", prepack=False)
    one, ids = go_on_from(tmp_path / "first", loaded, 1)
    two, same_ids = go_on_from(tmp_path / "first", loaded, 2)
    prompt = torch.tensor([[1, 2, 3, 5, 8]])
    assert same_ids == ids
    assert two.config.num_hidden_layers == 2
    torch.testing.assert_close(two(prompt).logits, one(prompt).logits, rtol=0, atol=0)
    settings = attrs.evolve(SETTINGS, layers=2, dtype="float32")
    made = train_draft(target, tmp_path / "second", PROMPTS, settings, start=tmp_path / "first")
    assert made["begun_with"]["receipt"]["settings"]["layers"] == 1
    assert made["result"]["layers_of_the_target"] == [1]
    learned = dict(own_parameters(go_on_from(tmp_path / "second", loaded, 2)[0]))
    for name, parameter in own_parameters(two):  # decay alone would leave the directions as they were
        decayed = parameter * learned[name].norm() / parameter.norm().clamp(min=1e-9)
        assert not torch.allclose(learned[name], decayed, rtol=0, atol=1e-6), name


SILENT = {
    "llama": {},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {},
    "qwen3": {},
    "gemma": {},
    "mistral": {},
}


@pytest.mark.parametrize("kind", SILENT)
def test_layers_that_are_added_are_silent(kind):
    """What a draft has learned is kept, biases and all."""
    model = tiny_model(kind.split()[0], dtype=torch.float32, num_hidden_layers=3, **SILENT[kind])
    one = build_draft(model, 1, range(64)).eval()
    three = with_more_layers(one, 3, model, range(64)).eval()
    ids = torch.arange(20)[None]
    assert three.config.num_hidden_layers == 3
    assert torch.equal(three(input_ids=ids).logits, one(input_ids=ids).logits)
    assert not torch.equal(build_draft(model, 3, range(64))(input_ids=ids).logits, one(input_ids=ids).logits)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3", "gpt2"])
def test_layers_that_would_not_be_silent_are_not_added(kind):
    """Of other names, or with a norm behind their products, which makes the least of what they add as large as all else."""
    model = tiny_model(kind, dtype=torch.float32, **THREE_LAYERS.get(kind, {"num_hidden_layers": 3}))
    one = build_draft(model, 1, range(64))
    with pytest.raises(
        UnsupportedModel, match=r"cannot be added to a draft.*; give --layers 1, as many as the draft has"
    ):
        with_more_layers(one, 3, model, range(64))


def test_layers_of_experts_are_not_added():
    """What their experts add stands in tensors of other names."""
    config = Qwen2MoeConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=32,
        num_experts=4,
        num_experts_per_tok=2,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with pytest.raises(UnsupportedModel, match=r"layers of Qwen2MoeForCausalLM cannot be added to a draft"):
        with_more_layers(build_draft(model, 1, range(64)), 2, model, range(64))


def test_what_cannot_be_gone_on_from_is_refused_before_the_target_writes(target, tmp_path, monkeypatch):
    """It would be found out after hours of text."""
    train_draft(target, tmp_path / "first", PROMPTS, SETTINGS)
    monkeypatch.setattr(shape, "_ADDS", (".o_proj",))
    with pytest.raises(UnsupportedModel, match=r"cannot be added to a draft"):
        settings = attrs.evolve(SETTINGS, layers=2)
        train_draft(target, tmp_path / "second", PROMPTS, settings, start=tmp_path / "first")
    assert not (tmp_path / "second").exists()
    with pytest.raises(
        InvalidRequest, match=r"'start' must be made of layers such as the target's .got 'LlamaForCausalLM'"
    ):
        wide = tiny_model(dtype=torch.float32, intermediate_size=48)
        with_more_layers(build_draft(wide, 1, range(64)), 2, tiny_model(dtype=torch.float32), range(64))


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
