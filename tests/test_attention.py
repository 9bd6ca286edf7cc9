"""Attention without expanded keys and values, and the swap that lends it to a model."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from models import PROMPT, engine_on, tiny_config, tiny_model
from transformers import AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from specframe import TransformersTarget
from specframe import attention as own
from specframe.attention import NAME, AttentionSwap, attention
from specframe.views import first_layers


def tensors(num_groups=2, num_rows=5, length=23, value_dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def make(heads, positions, dim):
        return torch.randn(1, heads, positions, dim, dtype=torch.float64, generator=generator)

    return make(2 * num_groups, num_rows, 8), make(2, length, 8), make(2, length, value_dim)


def causal_mask(num_rows=5, length=23, window=None):
    rows = torch.arange(length - num_rows, length)[:, None]
    keys = torch.arange(length)[None]
    mask = keys <= rows
    if window is not None:
        mask &= keys > rows - window
    return mask[None, None]


class Elsewhere(torch.Tensor):
    """A CPU tensor that says that it is on another device, so that the other branch runs here."""

    @property
    def device(self):
        return SimpleNamespace(type="cuda")


@pytest.fixture
def plain_sdpa(monkeypatch):
    """Fail if the library's own function is asked, which is the one that expands keys and values."""

    def refuse(*args, **kwargs):
        raise AssertionError("the library's attention was asked")

    monkeypatch.setattr(own, "sdpa_attention_forward", refuse)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float64])
@pytest.mark.parametrize("scaling", [None, 0.7])
@pytest.mark.parametrize("num_groups", [2, 4])
@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.usefixtures("plain_sdpa")
def test_grouped_heads_with_a_mask_equal_the_librarys_attention(on_cpu, num_groups, scaling, mask_dtype, window):
    """A group that reads another group's keys, or a mask repeated in the wrong order, gives other numbers."""
    query, key, value = tensors(num_groups)
    mask = causal_mask(window=window)
    if mask_dtype is not torch.bool:
        mask = torch.zeros(mask.shape, dtype=mask_dtype).masked_fill(~mask, -torch.inf)
    module = SimpleNamespace(num_key_value_groups=num_groups)
    asked = query if on_cpu else query.as_subclass(Elsewhere)
    found, _ = attention(module, asked, key, value, mask, scaling=scaling)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, scaling=scaling)
    assert found.shape == expected.shape
    assert torch.allclose(found.as_subclass(torch.Tensor), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("length", [1, 3, 17, 100, 513, 2049])
@pytest.mark.usefixtures("plain_sdpa")
def test_one_row_in_half_precision_is_the_librarys_to_the_bit(dtype, length):
    """Plain decoding must stay everybody's: the heads of a group may share their keys only where no bit changes."""
    query, key, value = (tensor.to(dtype) for tensor in tensors(3, 1, length))
    module = SimpleNamespace(num_key_value_groups=3)
    found, _ = attention(module, query, key, value, None)
    expected, _ = sdpa_attention_forward(module, query, key, value, None)
    assert torch.equal(found, expected)


def test_one_row_on_an_accelerator_is_the_librarys_own_function():
    """What was shown for the kernel of one device says nothing of another's."""
    query, key, value = (tensor.bfloat16() for tensor in tensors(2, 1))
    module = SimpleNamespace(num_key_value_groups=2)
    with patch.object(own, "sdpa_attention_forward") as library:
        library.return_value = ("the library's", None)
        assert attention(module, query.as_subclass(Elsewhere), key, value, None) == ("the library's", None)


@pytest.mark.parametrize(
    ("num_groups", "num_rows", "has_mask", "arguments"),
    [
        (1, 5, True, {}),
        (2, 1, True, {}),
        (2, 5, False, {"is_causal": True}),
        (2, 5, True, {"position_bias": torch.ones(1, 4, 5, 23, dtype=torch.float64)}),
    ],
)
def test_every_other_case_is_the_librarys_own_function(num_groups, num_rows, has_mask, arguments):
    """An argument that only the library's function honours must not be dropped."""
    query, key, value = tensors(num_groups, num_rows)
    mask = causal_mask(num_rows) if has_mask else None
    module = SimpleNamespace(num_key_value_groups=num_groups, is_causal=True)
    found, _ = attention(module, query, key, value, mask, **arguments)
    expected, _ = sdpa_attention_forward(module, query, key, value, mask, **arguments)
    assert torch.equal(found, expected)


def test_soft_capped_attention_is_refused_as_the_library_refuses_it():
    """SDPA cannot cap scores; doing without the cap would be silently another model."""
    query, key, value = tensors()
    with pytest.raises(ValueError, match="softcap"):
        attention(SimpleNamespace(num_key_value_groups=2), query, key, value, causal_mask(), softcap=30.0)


def test_the_swap_holds_inside_the_block_only():
    """A configuration left swapped changes the caller's own forwards, and what it saves to disk."""
    model = tiny_model("llama")
    swap = AttentionSwap(model)
    before = model.config.to_dict()
    assert model.config._attn_implementation == "sdpa"
    with swap():
        assert model.config._attn_implementation == NAME
    assert model.config._attn_implementation == "sdpa"
    with pytest.raises(KeyError, match="inside"), swap():
        raise KeyError("inside")
    assert model.config._attn_implementation == "sdpa"
    assert model.config.to_dict() == before


def test_the_swap_is_what_the_models_forward_uses(monkeypatch):
    """A swap that the model does not read would leave keys and values expanded in every layer."""
    model = tiny_model("llama")
    seen = []

    def spy(*args, **kwargs):
        seen.append(args[0])
        return attention(*args, **kwargs)

    from transformers import AttentionInterface

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, spy)
    ids = torch.tensor([PROMPT])
    expected = model(input_ids=ids).logits
    assert not seen
    with AttentionSwap(model)():
        found = model(input_ids=ids).logits
    assert len(seen) == 2
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)


def test_a_model_with_another_attention_is_left_alone():
    """Eager attention is the caller's choice, and the numbers of the model that they mean."""
    model = AutoModelForCausalLM.from_config(tiny_config(), attn_implementation="eager")
    with AttentionSwap(model)():
        assert model.config._attn_implementation == "eager"
    assert model.config._attn_implementation == "eager"


def test_a_later_change_of_the_model_stands():
    """A caller who switches the attention after the target was made must find it as they left it."""
    model = tiny_model("llama")
    target = TransformersTarget(model)
    model.set_attn_implementation("eager")
    engine_on(target).generate([5, 6, 7], max_new_tokens=4)
    assert model.config._attn_implementation == "eager"


def test_models_that_share_a_configuration_take_turns():
    """A draft of the target's layers that ends first would put the configuration back in the middle of the target's forward."""
    model = tiny_model("llama")
    short = first_layers(model, 1)
    entered, seen = threading.Event(), []

    def run():
        with AttentionSwap(model)():
            entered.set()
            seen.append(model.config._attn_implementation)

    thread = threading.Thread(target=run)
    with AttentionSwap(short)():
        thread.start()
        assert not entered.wait(0.05)
    thread.join(10)
    assert seen == [NAME]
    assert model.config._attn_implementation == "sdpa"


def test_models_of_their_own_do_not_wait_for_each_other():
    """One lock for all would make a process serve one model at a time; and a lock of a model that is gone is gone too."""
    models = [tiny_model("llama"), tiny_model("llama")]
    swaps = [AttentionSwap(model) for model in models]
    with swaps[0](), swaps[1]():
        assert {model.config._attn_implementation for model in models} == {NAME}
    keys = {id(model.config) for model in models}
    assert keys <= set(own._locks)
    del swaps
    assert not keys & set(own._locks)
