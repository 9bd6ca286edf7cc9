"""Reading the target's layers changes nothing about the target, and the drafter is certified on one that lends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import specframe
from specframe.testing import QUICK, certify_strategy


@pytest.fixture
def target() -> specframe.TransformersTarget:
    """Return a Llama of three random layers."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 3,
    }
    config = LlamaConfig(**sizes, vocab_size=64, eos_token_id=None)
    return specframe.TransformersTarget(LlamaForCausalLM(config).eval())


def strategy(layers: int) -> specframe.Strategy:
    use = specframe.DrafterUse("early_exit", {"layers": layers, "window": 8})
    return specframe.Strategy(drafters=(use,))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 5}])
def test_it_changes_no_text(target: specframe.TransformersTarget, sampling: dict[str, Any]) -> None:
    """Found by its name: greedy and sampled tokens are those of plain decoding."""
    expected = specframe.Engine(target).generate([1, 2, 3], max_new_tokens=24, **sampling)
    result = specframe.Engine(target, strategy=strategy(2)).generate([1, 2, 3], max_new_tokens=24, **sampling)
    assert result.token_ids == expected.token_ids
    assert result.stats.drafters["early_exit"].num_proposed > 0
    assert result.events == ()


def test_a_target_that_lends_nothing_is_refused(table_target: Callable[..., specframe.Target]) -> None:
    """A table has no layers; the reason is told before anything runs."""
    with pytest.raises(specframe.InvalidStrategy, match="lends none"):
        specframe.Engine(table_target(), strategy="early_exit")


def test_it_is_certified(target: specframe.TransformersTarget) -> None:
    """On its target alone, for tables lend nothing; the certificate says so."""
    engine = specframe.Engine(target, strategy=strategy(2))
    certificate = certify_strategy(strategy(2), engine=engine, plan=QUICK)
    assert certificate.is_certified, certificate.failures
    assert any("lends none" in line for line in certificate.missing)
