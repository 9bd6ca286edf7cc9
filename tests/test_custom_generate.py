"""``model.generate(custom_generate=...)``: the library's own greedy text, its laws, its streamers, and what is refused."""

from __future__ import annotations

import copy
import re
from collections import Counter

import numpy as np
import pytest
import torch
from models import PROMPT, library_greedy, save_model, shared_model, tiny_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
)
from transformers.generation import logits_process as library

from specframe import DrafterUse, IncompatibleManifest, InvalidRequest, Length, Strategy, as_custom_generate
from specframe.custom_generate import _policy
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.testing import byte_tokenizer

INPUTS = torch.tensor([PROMPT])
# A prompt that repeats itself, so that prompt lookup proposes.
LOOKUP = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7, 8, 9, 5, 6]])


def arguments(inputs=INPUTS, **changes):
    values = {"input_ids": inputs, "attention_mask": torch.ones_like(inputs), "max_new_tokens": 16, "do_sample": False}
    return {**values, **changes}


@pytest.fixture(scope="module")
def model():
    return shared_model()


def cycling_model():
    """Return a model whose greedy text soon repeats itself, so that most proposals are accepted."""
    model = tiny_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "self_attn" in name or "mlp" in name:
                parameter.mul_(0.05)
    return model


class StopAtLength(StoppingCriteria):
    def __init__(self, length):
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((input_ids.shape[0],), input_ids.shape[1] >= self.length)


class Repeats(StoppingCriteria):
    """Stop at the first id that was already there."""

    def __call__(self, input_ids, scores, **kwargs):
        return torch.tensor([bool((input_ids[0, :-1] == input_ids[0, -1]).any())])


GREEDY = [
    {},
    {"min_new_tokens": 9, "eos_token_id": list(range(0, 64, 2))},
    {"eos_token_id": list(range(0, 64, 5))},
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2},
    {"bad_words_ids": [[3], [7], [11, 12], [40], [21], [60]]},
    {"suppress_tokens": list(range(20, 64))},
    {"sequence_bias": {(9,): 3.0, (5, 6): -4.0}},
    {"max_new_tokens": None, "max_length": 20},
    {"max_new_tokens": 1},
    {"stopping_criteria": StoppingCriteriaList([StopAtLength(21)])},
    {"stopping_criteria": StoppingCriteriaList([Repeats()])},
    {"exponential_decay_length_penalty": (2, 1.5), "eos_token_id": 3},
    {"renormalize_logits": True},
    {"forced_eos_token_id": 4, "eos_token_id": 4},
]


@pytest.mark.parametrize("changes", GREEDY, ids=lambda changes: " ".join(changes) or "plain")
@pytest.mark.parametrize("inputs", [INPUTS, LOOKUP], ids=["prompt", "repeating"])
def test_greedy_text_is_the_librarys(changes, inputs):
    """An argument that is dropped or applied to one row only gives another text than the caller's code gave before."""
    model = cycling_model()
    expected = model.generate(**arguments(inputs, **changes))
    found = model.generate(**arguments(inputs, **changes), custom_generate=as_custom_generate())
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_prompt_lookup_does_speculate_here():
    """If nothing were proposed, equality with the library would show nothing."""
    model = cycling_model()
    function = as_custom_generate()
    forwards = []
    handle = model.register_forward_hook(lambda *_: forwards.append(1))
    output = model.generate(**arguments(LOOKUP, max_new_tokens=30), custom_generate=function)
    handle.remove()
    assert output.shape[1] == LOOKUP.shape[1] + 30
    assert len(forwards) < 20


def test_max_time_stops_as_a_criterion(model):
    """A criterion that is not asked lets a request run far beyond its time."""
    output = model.generate(**arguments(max_time=0.0), custom_generate=as_custom_generate())
    assert output.shape[1] == len(PROMPT) + 1
    criteria = StoppingCriteriaList([MaxTimeCriteria(max_time=1000.0)])
    output = model.generate(**arguments(stopping_criteria=criteria), custom_generate=as_custom_generate())
    assert tuple(output[0, len(PROMPT) :].tolist()) == library_greedy(model, PROMPT, 16)


def test_a_custom_processor_that_is_not_pure_is_honoured(model):
    """A caller's own processor that is skipped, or replayed although it keeps state, gives another text."""

    class Alternating(library.LogitsProcessor):
        def __init__(self):
            self.num_calls = 0

        def __call__(self, input_ids, scores):
            self.num_calls += 1
            return scores.index_fill(-1, torch.arange(self.num_calls % 2, 64, 2), -torch.inf)

    expected = model.generate(**arguments(), logits_processor=LogitsProcessorList([Alternating()]))
    found = model.generate(
        **arguments(), logits_processor=LogitsProcessorList([Alternating()]), custom_generate=as_custom_generate()
    )
    assert torch.equal(found, expected)
    assert not torch.equal(found, model.generate(**arguments()))


SAMPLING = [
    {"temperature": 0.7, "top_k": 0},
    {"temperature": 1.3, "top_k": 7},
    {"top_p": 0.8, "top_k": 0},
    {"min_p": 0.05, "top_k": 0},
    {"typical_p": 0.6, "top_k": 0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.02, "typical_p": 0.9},
    {"epsilon_cutoff": 0.02, "top_k": 0},
    {"temperature": 0.7, "top_k": 5, "renormalize_logits": True},
    {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 9},
]


@pytest.mark.parametrize("changes", SAMPLING, ids=" ".join)
def test_a_sampling_configuration_becomes_the_same_law(model, changes):
    """A warper that is lost, doubled or taken in another order gives another law at every token."""
    config = GenerationConfig(do_sample=True, **changes)
    processors = model._get_logits_processor(config, input_ids_seq_length=len(PROMPT))
    policy = _policy(processors, do_sample=True)
    logits = model(input_ids=INPUTS).logits[0, -1].detach()
    expected = processors(INPUTS, logits[None].clone())[0].softmax(-1).numpy()
    pipeline = Pipeline(policy, vocab_size=64, stop_ids=frozenset(), num_prompt=len(PROMPT))
    law = pipeline.distribution(logits, Prefix(PROMPT, None, "cpu"), len(PROMPT)).dense()
    assert np.array_equal(law > 0, expected > 0)
    assert np.allclose(law, expected, rtol=0, atol=1e-12)
    assert not policy.is_greedy
    if not {"epsilon_cutoff", "renormalize_logits"} & changes.keys():
        # Warpers became fields, which run in float64 on the host; only what has no field stays a processor.
        assert len(policy.processors) == int("repetition_penalty" in changes)
        assert {field: getattr(policy, field) for field in changes if getattr(policy, field, None)} == {
            field: value for field, value in changes.items() if value and field != "repetition_penalty"
        }


def test_sampling_follows_the_librarys_law(model):
    """The first token's frequencies over many seeds; a false alarm once in 10,000 runs."""
    from scipy import stats

    function = as_custom_generate()
    call = arguments(do_sample=True, temperature=0.4, top_k=6, max_new_tokens=1)
    counts = Counter(
        int(model.generate(**call, custom_generate=function, spec_seed=seed)[0, -1]) for seed in range(200)
    )
    logits = model(input_ids=INPUTS).logits[0, -1].detach() / 0.4
    top = logits.topk(6)
    probs = top.values.softmax(-1).numpy()
    observed = [counts[token] for token in top.indices.tolist()]
    assert sum(observed) == 200
    assert stats.chisquare(observed, probs * 200).pvalue > 1e-4
    assert stats.chisquare(observed, np.roll(probs, 1) * 200).pvalue < 1e-4  # the control: another law is told


def test_sampling_repeats_under_torchs_seed_and_under_its_own(model):
    """A run that ``torch.manual_seed`` does not repeat breaks the caller's own reproducibility."""
    function = as_custom_generate()
    call = arguments(do_sample=True, temperature=1.0, custom_generate=function)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first, second = model.generate(**call), model.generate(**call)
        torch.manual_seed(1)
        assert torch.equal(model.generate(**call), first)
        assert not torch.equal(first, second)
        state = torch.get_rng_state()
        seeded = model.generate(**call, spec_seed=9)
        assert torch.equal(model.generate(**call, spec_seed=9), seeded)
        assert torch.equal(torch.get_rng_state(), state)
        model.generate(**arguments(custom_generate=function))
        assert torch.equal(torch.get_rng_state(), state)  # greedy draws nothing


def test_the_strategy_does_not_change_the_text(model):
    """Plain, lookup and residual strategies go through one path; coupled text may not depend on the drafter."""
    call = arguments(LOOKUP, do_sample=True, temperature=0.6, spec_seed=4)
    texts = [
        model.generate(**call, custom_generate=as_custom_generate(strategy))
        for strategy in (
            "none",
            "prompt_lookup",
            Strategy(drafters=(DrafterUse("prompt_lookup"),), length=Length("fixed", 2)),
        )
    ]
    assert torch.equal(texts[0], texts[1])
    assert torch.equal(texts[0], texts[2])


class Recorder:
    def __init__(self):
        self.values, self.is_ended = [], False

    def put(self, value):
        assert not self.is_ended
        self.values.append(value)

    def end(self):
        self.is_ended = True


def test_a_streamer_gets_what_the_librarys_own_loop_gives(model):
    """A streamer that expects the prompt first and one id at a time must not see a block, nor a wrong shape."""
    expected = Recorder()
    output = model.generate(**arguments(), streamer=expected)
    found = Recorder()
    again = model.generate(**arguments(), custom_generate=as_custom_generate(), spec_streamer=found)
    assert torch.equal(again, output)
    assert found.is_ended
    assert len(found.values) == len(expected.values)
    assert all(torch.equal(a, b) for a, b in zip(found.values, expected.values, strict=True))


def test_text_streamers_and_stop_strings():
    """Stop strings need the tokenizer under its own name; the text ends where the library's ends."""
    tokenizer = byte_tokenizer()
    model = tiny_model("llama", vocab_size=len(tokenizer))
    inputs = torch.tensor([tokenizer("abc abc")["input_ids"]])
    call = arguments(inputs, suppress_tokens=[*range(97), *range(123, len(tokenizer))])
    text = tokenizer.decode(model.generate(**call)[0, inputs.shape[1] :])
    stop = text[5:7]
    index = text.index(stop) + 2
    expected = model.generate(**call, stop_strings=[stop], tokenizer=tokenizer)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    found = model.generate(
        **call, custom_generate=as_custom_generate(), spec_tokenizer=tokenizer, spec_stop=[stop], spec_streamer=streamer
    )
    assert torch.equal(found, expected)
    assert "".join(streamer) == text[:index]
    with pytest.raises(InvalidRequest, match="tokenizer"):
        model.generate(**call, custom_generate=as_custom_generate(), spec_stop=[stop])


def test_a_dictionary_output_holds_the_sequences(model):
    """Code that asked for a dictionary reads ``.sequences``."""
    output = model.generate(**arguments(return_dict_in_generate=True), custom_generate=as_custom_generate())
    assert torch.equal(output.sequences, model.generate(**arguments()))


def prefilled(model):
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=INPUTS[:, :4], past_key_values=cache)
    return cache


REFUSALS = [
    ("batch", lambda model: arguments(INPUTS.repeat(2, 1))),
    (
        "attention_mask",
        lambda model: arguments(attention_mask=torch.tensor([[0, *[1] * (len(PROMPT) - 1)]])),
    ),
    ("inputs_embeds", lambda model: {"inputs_embeds": torch.zeros(1, 3, 32, dtype=torch.float64), "max_new_tokens": 2}),
    ("cache", lambda model: arguments(past_key_values=prefilled(model))),
    ("num_beams", lambda model: arguments(num_beams=2)),
    ("num_return_sequences", lambda model: arguments(num_return_sequences=2, do_sample=True)),
    ("output_scores", lambda model: arguments(output_scores=True, return_dict_in_generate=True)),
    ("output_hidden_states", lambda model: arguments(output_hidden_states=True, return_dict_in_generate=True)),
]


@pytest.mark.parametrize(("name", "make"), REFUSALS, ids=[name for name, _ in REFUSALS])
@pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")
def test_what_cannot_be_honoured_is_refused_by_name(model, name, make):
    """An argument that is silently ignored gives a result that is not what was asked."""
    call = make(model)
    forwards = []
    handle = model.register_forward_hook(lambda *_: forwards.append(1))
    try:
        with pytest.raises(InvalidRequest, match=name):
            model.generate(**call, custom_generate=as_custom_generate())
    finally:
        handle.remove()
    assert not forwards
    expected = model.generate(**arguments())
    assert torch.equal(model.generate(**arguments(), custom_generate=as_custom_generate()), expected)


def test_a_quantized_cache_is_refused_by_name(model):
    """Quantised values cannot be rolled back exactly."""
    config = GenerationConfig(max_length=20, cache_implementation="quantized")
    with pytest.raises(InvalidRequest, match="quantized"):
        as_custom_generate()(model, INPUTS, LogitsProcessorList(), StoppingCriteriaList(), config)


def test_nothing_of_the_models_is_changed():
    """Code that goes on with the model's own ``generate`` must find it as it was."""
    model = tiny_model()
    before = copy.deepcopy((model.config.to_dict(), model.generation_config.to_dict()))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model.generate(**arguments())
    config = GenerationConfig(max_new_tokens=8, do_sample=True, temperature=0.5)
    config_before = config.to_dict()
    model.generate(INPUTS, generation_config=config, custom_generate=as_custom_generate(), spec_seed=1)
    assert config.to_dict() == config_before
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.generate(**arguments()), expected)


def test_new_weights_are_seen_by_the_next_call():
    """A prefix that is kept across calls is stale once the caller has trained a step."""
    model = tiny_model()
    function = as_custom_generate()
    model.generate(**arguments(), custom_generate=function)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(-1.1)
    expected = model.generate(**arguments())
    assert torch.equal(model.generate(**arguments(), custom_generate=function), expected)


def test_one_function_serves_several_models(model):
    """An engine that is kept for the model before would answer with the wrong one."""
    function = as_custom_generate()
    other = shared_model("mistral")
    for one in (model, other, model):
        assert torch.equal(one.generate(**arguments(), custom_generate=function), one.generate(**arguments()))


def test_a_failing_streamer_leaves_the_function_usable(model):
    """An exception of the caller's own streamer must not leave the engine taken."""

    class Broken(Recorder):
        def put(self, value):
            super().put(value)
            if len(self.values) == 3:
                raise OSError("pipe closed")

    function = as_custom_generate()
    with pytest.raises(OSError, match="pipe closed"):
        model.generate(**arguments(), custom_generate=function, spec_streamer=Broken())
    assert torch.equal(model.generate(**arguments(), custom_generate=function), model.generate(**arguments()))


def test_a_grammar_holds_under_generate():
    """The text matches, with and without drafts; the tokenizer is needed for it."""
    tokenizer = byte_tokenizer()
    model = tiny_model(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    prompt = torch.tensor([list(b"name: ")])
    found = [
        model.generate(
            **arguments(prompt, max_new_tokens=30),
            custom_generate=as_custom_generate(strategy),
            spec_tokenizer=tokenizer,
            spec_regex="(?:é|x){2}, done",
            spec_grammar_tokenization="canonical",
        )[0, prompt.shape[1] :].tolist()
        for strategy in ("none", "grammar")
    ]
    assert found[0] == found[1]
    assert re.fullmatch("(?:é|x){2}, done", tokenizer.decode(found[0], skip_special_tokens=True))
    with pytest.raises(InvalidRequest, match="'regex' needs a target with a tokenizer"):
        model.generate(**arguments(prompt), custom_generate=as_custom_generate("none"), spec_regex="a")


def test_a_draft_model_is_told_that_it_needs_the_tokenizer(tmp_path, monkeypatch):
    """Only generate has the tokenizer, so the remedy of the rule alone would lead nowhere."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    save_model(tmp_path / "target")
    draft = save_model(tmp_path / "draft", num_hidden_layers=1)
    target = AutoModelForCausalLM.from_pretrained(tmp_path / "target")
    drafted = as_custom_generate(Strategy(drafters=(DrafterUse("draft_model", {"model": str(draft)}),)))
    with pytest.raises(IncompatibleManifest, match="tokenizer-known") as error:
        target.generate(**arguments(), custom_generate=drafted)
    assert "give it as spec_tokenizer=" in error.value.__notes__[-1]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "target")
    ids = target.generate(**arguments(), custom_generate=drafted, spec_tokenizer=tokenizer)
    assert ids.tolist() == target.generate(**arguments()).tolist()
