"""Cases D: the KV cache and rollback."""

from __future__ import annotations

import pytest
import torch
from models import PROMPT, SLIDING_KINDS, engine_on, random_table, shared_model, tiny_model
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    MambaConfig,
    StoppingCriteriaList,
)

from specframe import GenerationError, InvalidRequest, Ticket, TransformersTarget, UnsupportedModel, as_custom_generate
from specframe.cache import BufferLayer
from specframe.testing import Adversary, Oracle, RandomOffers


def assert_layers_equal_a_fresh_prefill(target, ids):
    """Compare every layer's keys and values with those of a new cache that was fed the ids at once."""
    fresh = TransformersTarget(target.model)
    session = fresh.open(1, max_tokens=len(ids))
    session.prefill(Ticket(1, 0, 0), ids)
    session.close()
    assert target.cache.ids == list(ids)
    target.cache.check(list(ids))
    for layer, expected in zip(target.cache.layers, fresh.cache.layers, strict=True):
        assert layer.length == expected.length == len(ids)
        for name in ("keys", "values"):
            found, want = (getattr(one, name)[:, :, : len(ids)] for one in (layer, expected))
            assert torch.allclose(found, want, rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_rejected", [0, 1, 3, 4])
@pytest.mark.parametrize("window", [4, 8])
@pytest.mark.parametrize("kind", SLIDING_KINDS)
def test_d2_a_sliding_window_gives_back_the_keys_that_it_passed(kind, window, num_rejected):
    """A layer that drops keys at the window's edge has none to give back when a block is rejected."""
    target = TransformersTarget(shared_model(kind, window=window))
    session = target.open(1, max_tokens=40)
    session.prefill(Ticket(1, 0, 0), PROMPT)
    block = (3, 9, 27, 41)
    session.verify_linear(Ticket(1, 1, 0), 50, block)
    num_accepted = 4 - num_rejected
    session.commit(Ticket(1, 1, 0), 1 + num_accepted)
    committed = (*PROMPT, 50, *block[:num_accepted])
    assert_layers_equal_a_fresh_prefill(target, committed)
    # A second block, all of it rejected, and a cut across the commits before it, as a stop string needs.
    session.verify_linear(Ticket(1, 2, 0), 2, block)
    session.commit(Ticket(1, 2, 0), 1)
    assert_layers_equal_a_fresh_prefill(target, (*committed, 2))
    session.close()
    for length in (len(committed), len(committed) - 2, len(PROMPT) - 1, 3):
        target.cache.truncate(length)
        assert_layers_equal_a_fresh_prefill(target, committed[:length])


@pytest.mark.parametrize("kind", SLIDING_KINDS)
def test_d2_a_request_that_goes_on_before_a_cut_reads_exact_keys(kind):
    """After a cut across the window's edge the next request must read what a fresh one would read."""
    model = shared_model(kind, window=4)
    target = TransformersTarget(model)
    engine = engine_on(target, RandomOffers(seed=3))
    engine.generate(PROMPT, max_new_tokens=12)
    for prompt in ((*PROMPT[:9], 1), PROMPT, (*PROMPT[:2], 60, 61, 62)):
        expected = engine_on(TransformersTarget(model)).generate(prompt, max_new_tokens=6, log_probs=True)
        found = engine.generate(prompt, max_new_tokens=6, log_probs=True)
        assert found.token_ids == expected.token_ids
        assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-10)


class Stuck(BufferLayer):
    """A layer whose rollback does nothing, as a recurrent state's or a quantised cache's."""

    @property
    def length(self):
        return self._length

    @length.setter
    def length(self, value):
        self._length = max(value, getattr(self, "_length", 0))


def test_d3_a_layer_that_does_not_roll_back_is_told_in_its_round():
    """Rejected tokens that stay in one layer skip or repeat words, and no later error says why."""
    target = TransformersTarget(shared_model())
    stuck = Stuck()
    target.cache.layers[1] = target.cache._buffers[1] = stuck
    expected = engine_on(TransformersTarget(shared_model())).generate(PROMPT, max_new_tokens=8).token_ids
    assert engine_on(target, Oracle(expected)).generate(PROMPT, max_new_tokens=6).token_ids == expected[:6]
    target.cache.layers[1] = target.cache._buffers[1] = Stuck()
    target.cache.truncate(0)
    with pytest.raises(GenerationError, match="layer 1 holds"):
        engine_on(target, Oracle(expected, wrong_at=1)).generate(PROMPT, max_new_tokens=8)


def test_d3_what_cannot_be_rolled_back_is_refused_at_load():
    """A capability that is found missing in the middle of a text comes too late."""
    config = MambaConfig(hidden_size=16, num_hidden_layers=1, vocab_size=32, state_size=4)
    with pytest.raises(UnsupportedModel, match="cannot be rolled back"):
        TransformersTarget(AutoModelForCausalLM.from_config(config).eval())
    hybrid = tiny_model()
    hybrid.config.layer_types = ["full_attention", "mamba"]
    with pytest.raises(UnsupportedModel, match=r"cannot be rolled back \(mamba\)"):
        TransformersTarget(hybrid)
    quantized = GenerationConfig(max_length=20, cache_implementation="quantized")
    call = (shared_model(), torch.tensor([PROMPT]), LogitsProcessorList(), StoppingCriteriaList(), quantized)
    with pytest.raises(InvalidRequest, match="quantized"):
        as_custom_generate()(*call)


@pytest.mark.parametrize("wrong_at", [0, 1, 3, None])
def test_d3_after_every_round_every_layer_is_that_of_the_text(wrong_at):
    """Length alone may agree where contents do not: keys of a rejected token that another one's replaced too late."""
    target = TransformersTarget(shared_model())
    expected = engine_on(TransformersTarget(shared_model())).generate(PROMPT, max_new_tokens=12).token_ids
    text = list(PROMPT)
    for piece in engine_on(target, Oracle(expected, wrong_at)).stream(PROMPT, max_new_tokens=12):
        text += piece.token_ids
        assert_layers_equal_a_fresh_prefill(target, text[:-1])


BATCHES = {
    "lists": [[1, 2], [3, 4, 5, 6, 7], [5] * 9],
    "tensor": torch.tensor([[0, 0, 1], [0, 2, 3], [4, 5, 6]]),
    "one row and an empty one": [[1, 2], []],
    "texts": ["one", "two"],
}


@pytest.mark.parametrize("prompt", BATCHES.values(), ids=BATCHES)
def test_d5_a_batch_is_refused(prompt):
    """Rows with different accept counts cannot share one length; a batch must not be decoded as if they could."""
    target = random_table()
    engine = engine_on(target, RandomOffers(seed=0))
    for call in (engine.generate, engine.stream):
        with pytest.raises(InvalidRequest, match="prompt"):
            call(prompt, max_new_tokens=3)
    assert target.num_forwards == 0


def test_d5_a_padded_batch_is_refused_by_custom_generate():
    """Left padding shifts positions, and pad ids match as n-grams."""
    model = shared_model()
    inputs = torch.tensor([[0, 0, 0, 5, 6], [1, 2, 3, 4, 5]])
    mask = torch.tensor([[0, 0, 0, 1, 1], [1] * 5])
    function = as_custom_generate()
    with pytest.raises(InvalidRequest, match="batch size 1"):
        model.generate(inputs, attention_mask=mask, max_new_tokens=2, custom_generate=function)
    with pytest.raises(InvalidRequest, match="padding"):
        model.generate(inputs[:1], attention_mask=mask[:1], max_new_tokens=2, custom_generate=function)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_d5_prompts_one_after_another_equal_their_solo_runs(order):
    """What a batch would do is done one by one; accept counts and lengths of one prompt must not reach the next."""
    prompts = [(7, 8), (1, 2, 3, 4, 5), tuple(range(20, 29))]
    model = shared_model()
    solo = [engine_on(TransformersTarget(model)).generate(p, max_new_tokens=8).token_ids for p in prompts]
    known = dict(zip(prompts, solo, strict=True))

    def choose(context, index):
        """Offer a proposal that is wrong from the start, in the middle, or not at all, by the prompt."""
        prompt = next(prompt for prompt in prompts if context[: len(prompt)] == prompt)
        text = known[prompt]
        position = len(context) - len(prompt)
        if position >= len(text):
            return None
        wrong_at = {2: 0, 5: 2, 9: 9}[len(prompt)]
        return (text[position] + (index == wrong_at)) % 64

    engine = engine_on(TransformersTarget(model), Adversary(choose))
    for index in order:
        assert engine.generate(prompts[index], max_new_tokens=8).token_ids == solo[index]
