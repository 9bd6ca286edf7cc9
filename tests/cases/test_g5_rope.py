"""Case G5: RoPE that depends on the length of the call."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from models import engine_on, tiny_model

from specframe import TransformersTarget
from specframe.testing import Oracle, RandomOffers

ROPES = {
    "dynamic": ({"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}, 16),
    "longrope": (
        {
            "rope_type": "longrope",
            "short_factor": [1.0] * 4,
            "long_factor": [1.5, 2.0, 3.0, 4.0],
            "original_max_position_embeddings": 16,
            "factor": 4.0,
            "rope_theta": 10_000.0,
        },
        64,
    ),
}
PROMPT = (5, 6, 7, 8, 9, 10)


def make_target(rope_type):
    parameters, max_positions = ROPES[rope_type]
    return TransformersTarget(tiny_model(max_position_embeddings=max_positions, rope_parameters=dict(parameters)))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 2}])
@pytest.mark.parametrize("rope_type", ROPES)
def test_g5_no_speculation_past_the_original_length(rope_type, sampling):
    """Past its original length such a model computes other rows for a block than for single steps."""
    target = make_target(rope_type)
    assert (target.facts.speculation_limit, target.facts.context_limit) == (16, 64)
    call = {"max_new_tokens": 34, "log_probs": True, **sampling}
    plain = engine_on(target).generate(PROMPT, **call)
    assert len(plain.token_ids) == 34
    for drafter, length in (
        (Oracle(plain.token_ids, 2), 1),
        (Oracle(plain.token_ids, 2), 4),
        (RandomOffers(seed=1), 4),
    ):
        result = engine_on(make_target(rope_type), drafter, length=length).generate(PROMPT, **call)
        assert result.token_ids == plain.token_ids
        assert np.allclose(result.log_probs, plain.log_probs, rtol=0, atol=1e-10)
        size = len(PROMPT)
        for record in result.records:
            assert record.num_proposed <= max(0, 16 - size)
            size += record.num_emitted
        assert result.stats.num_proposed > 0


@pytest.mark.parametrize("rope_type", ROPES)
def test_g5_without_the_limit_rows_do_differ(rope_type):
    """The control: if blocks past the length gave the same rows, the test above would show nothing."""
    call = {"max_new_tokens": 34, "log_probs": True}
    plain = engine_on(make_target(rope_type)).generate(PROMPT, **call)
    target = make_target(rope_type)
    target.facts = attrs.evolve(target.facts, speculation_limit=None)
    # Blocks of four positions from the sixth on: one of them crosses the sixteenth.
    result = engine_on(target, Oracle(plain.token_ids), length=3).generate(PROMPT, **call)
    differs = not np.allclose(result.log_probs, plain.log_probs, rtol=0, atol=1e-6)
    assert differs or result.token_ids != plain.token_ids


def test_g5_one_layer_type_is_enough():
    """RoPE parameters that differ by layer type hide the one that depends on the length."""
    config = tiny_model("gemma3").config
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    parameters = {"sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}, "full_attention": dynamic}
    assert TransformersTarget(tiny_model("gemma3")).facts.speculation_limit is None
    facts = TransformersTarget(tiny_model("gemma3", rope_parameters=parameters)).facts
    assert (facts.speculation_limit, facts.context_limit) == (64, 128)
    assert config.max_position_embeddings == 64


def test_g5_other_models_are_not_limited():
    """A limit on a model that needs none makes it slow for nothing."""
    assert TransformersTarget(tiny_model()).facts.speculation_limit is None
    assert TransformersTarget(tiny_model("gpt2")).facts.speculation_limit is None


@pytest.mark.parametrize("rope_type", ROPES)
def test_g5_a_long_prompt_is_fed_in_one_call(rope_type):
    """Chunks of different lengths would be rotated by different frequencies, which is another model."""
    prompt = [5 + token % 40 for token in range(30)]
    target = make_target(rope_type)
    expected = target.model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, 30:].tolist()
    for chunk in (4, 1024):
        chunked = TransformersTarget(target.model, prefill_chunk=chunk)
        assert engine_on(chunked).generate(prompt, max_new_tokens=8).token_ids == tuple(expected)


@pytest.mark.parametrize("rope_type", ROPES)
def test_g5_requests_do_not_influence_one_another(rope_type):
    """A long request leaves its frequencies in the model; the next one must find those that were loaded."""
    first, second = [5 + token % 40 for token in range(50)], [7 + token % 30 for token in range(20)]
    alone = engine_on(make_target(rope_type)).generate(second, max_new_tokens=10, log_probs=True)
    engine = engine_on(make_target(rope_type))
    for _ in range(2):
        engine.generate(first, max_new_tokens=8)
        after = engine.generate(second, max_new_tokens=10, log_probs=True)
        assert after.token_ids == alone.token_ids
        assert np.allclose(after.log_probs, alone.log_probs, rtol=0, atol=1e-10)
