"""Loading: what is refused, before weights where the configuration tells, and what a folder gives."""

from __future__ import annotations

import pytest
import torch
from models import PROMPT, engine_on, library_greedy, tiny_config, tiny_model
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    CpmAntConfig,
    CpmAntForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaModel,
    MambaConfig,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
    RoFormerConfig,
    RoFormerForCausalLM,
    T5Config,
)

import specframe
from specframe import InvalidRequest, InvalidStrategy, TransformersTarget, UnknownName, UnsupportedModel
from specframe.testing import Oracle, byte_tokenizer


@pytest.fixture
def no_weights(monkeypatch):
    """Fail if weights are loaded."""

    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)


def test_a_folder_gives_the_model_its_tokenizer_and_its_dtype(tmp_path):
    """A model that is loaded in another dtype, or without its tokenizer, is another target."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", vocab_size=len(tokenizer), dtype=torch.float32)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    engine = specframe.load(tmp_path)
    assert engine.target.facts.dtype == "float32"
    assert engine.target.tokenizer is not None
    assert (
        engine.generate("hello", max_new_tokens=8).token_ids
        == library_greedy(model, tokenizer("hello")["input_ids"], 8, pad_token_id=0)[:8]
    )
    assert specframe.load(str(tmp_path), dtype="float64").target.facts.dtype == "float64"
    assert not engine.target.model.training


def test_a_folder_without_a_tokenizer_serves_ids(tmp_path):
    """A model of ids only is no error; text for it is."""
    model = tiny_model("llama", dtype=torch.float32)
    model.save_pretrained(tmp_path)
    engine = specframe.load(tmp_path, strategy="prompt_lookup")
    assert engine.generate(PROMPT, max_new_tokens=6).token_ids == library_greedy(model, PROMPT, 6)
    with pytest.raises(InvalidRequest, match="tokenizer"):
        engine.generate("text", max_new_tokens=1)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("name", ["no/such folder", "./nowhere", "missing.gguf"])
def test_an_unknown_model_is_one_error(tmp_path, monkeypatch, name):
    """A library's trace about hubs and revisions does not say that the folder is not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises((InvalidRequest, FileNotFoundError)) as caught:
        specframe.load(name)
    assert name.removeprefix("./") in str(caught.value)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    "config",
    [
        T5Config(d_model=16, d_ff=16, d_kv=4, num_layers=1, num_heads=2, vocab_size=32),
        BertConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=32),
        MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=32, state_size=4),
    ],
    ids=["encoder-decoder", "bidirectional", "recurrent"],
)
def test_an_unsupported_type_is_refused_before_weights(tmp_path, config):
    """Gigabytes that are loaded before a configuration is read are minutes of waiting for an error."""
    config.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel):
        specframe.load(tmp_path)


@pytest.mark.parametrize(
    ("make", "rule"),
    [
        (
            lambda: AutoModelForSeq2SeqLM.from_config(
                T5Config(d_model=16, d_ff=16, d_kv=4, num_layers=1, num_heads=2, vocab_size=32)
            ),
            "encoder-decoder",
        ),
        (lambda: BertForMaskedLM(small_bert()), "not a causal language model"),
        (lambda: BertLMHeadModel(small_bert()), "reads what comes after a token too: 'is_decoder' is false"),
        (lambda: RoFormerForCausalLM(RoFormerConfig(**SMALL_BERT)), "reads what comes after a token too"),
        (lambda: LlamaModel(tiny_config("llama")), "not a causal language model"),
        (
            lambda: AutoModelForCausalLM.from_config(
                MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=32, state_size=4)
            ),
            "cannot be rolled back",
        ),
    ],
    ids=[
        "encoder-decoder",
        "masked",
        "bidirectional with a head",
        "bidirectional, older",
        "without a head",
        "recurrent",
    ],
)
def test_an_unsupported_model_is_refused_by_its_property(make, rule):
    """A model that sees the future, or whose state cannot be rolled back, would give another text without an error."""
    with pytest.raises(UnsupportedModel, match=rule):
        TransformersTarget(make().eval())


SMALL_BERT = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def small_bert(**options):
    return BertConfig(**SMALL_BERT, **options)


@pytest.mark.parametrize(
    "make",
    [lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**SMALL_BERT)), lambda: BertLMHeadModel(small_bert(is_decoder=True))],
    ids=["gpt-neox", "bert as a decoder"],
)
def test_a_model_is_causal_by_its_attention_and_not_by_its_configuration(tmp_path, make):
    """GPT-NeoX's configuration says that it is no decoder, and nothing reads it: every Pythia model was refused."""
    torch.manual_seed(0)
    model = make().eval()
    model.generation_config.eos_token_id = None
    expected = library_greedy(model, PROMPT, 12)
    model.save_pretrained(tmp_path)
    for target in (TransformersTarget(model), specframe.load_target(tmp_path)):
        engine = engine_on(target, Oracle(expected, wrong_at=2))
        assert engine.generate(PROMPT, max_new_tokens=12, stop_ids=[]).token_ids == expected


@pytest.mark.parametrize(
    "make",
    [
        lambda: OpenAIGPTLMHeadModel(OpenAIGPTConfig(n_embd=16, n_layer=1, n_head=2, vocab_size=32, n_positions=64)),
        lambda: CpmAntForCausalLM(
            CpmAntConfig(
                hidden_size=16, num_hidden_layers=1, num_attention_heads=2, dim_head=8, dim_ff=16, vocab_size=32
            )
        ),
    ],
    ids=["no cache", "prompt tokens of its own"],
)
def test_a_model_that_does_not_keep_its_cache_as_told_is_refused(make):
    """Without its past, or with positions that nobody counts, every token after the first is another one, silently."""
    engine = engine_on(TransformersTarget(make().eval()))
    with pytest.raises(UnsupportedModel, match="does not keep in its cache one position for each id"):
        engine.generate(PROMPT, max_new_tokens=4, stop_ids=[])


def test_a_hybrid_of_attention_and_recurrence_is_refused():
    """One recurrent layer among many is enough to make a rollback wrong."""
    model = tiny_model()
    model.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(UnsupportedModel, match="linear_attention"):
        TransformersTarget(model)


def test_a_model_in_training_mode_is_refused():
    """Dropout makes every forward another one."""
    with pytest.raises(UnsupportedModel, match=r"call model.eval\(\) first"):
        TransformersTarget(tiny_model().train())


@pytest.mark.parametrize("model", [5, None, b"demo"])
def test_a_model_is_named_by_a_text_or_a_path(model):
    """A bare TypeError from the standard library names neither the argument nor what it may be."""
    with pytest.raises(
        InvalidRequest, match=r"'model' must be 'demo', a model folder, a .gguf file or a model id \(got"
    ):
        specframe.load(model)


@pytest.mark.usefixtures("no_weights")
def test_strategy_and_dtype_are_checked_before_weights(tmp_path):
    """A misspelt drafter that is told after loading costs the loading."""
    tiny_config().save_pretrained(tmp_path)
    with pytest.raises(UnknownName, match="did you mean 'prompt_lookup'"):
        specframe.load(tmp_path, strategy="prompt_lokup")
    with pytest.raises(InvalidStrategy, match="kernel"):
        specframe.load(tmp_path, kernel="blocks")
    with pytest.raises(InvalidRequest, match="dtype"):
        specframe.load(tmp_path, dtype="float33")
