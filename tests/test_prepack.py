"""Prepacked weights: who uses them, what they give, and that nobody else notices."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from drafts import let_borrow, using
from models import PROMPT, engine_on, save_model, tiny_model
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.prune import random_unstructured

import specframe
from specframe import InvalidRequest, TransformersTarget, load_target, prepack
from specframe.attention import AttentionSwap
from specframe.memory import holders, num_bytes, tensors_of
from specframe.prepack import Prepacked, is_possible, is_wanted
from specframe.views import ModelViews, first_layers

pytestmark = pytest.mark.skipif(not is_possible(), reason="oneDNN's products are for x86 processors")

SIZES = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32, "vocab_size": 256}
NUM_LARGE = 2 * 5 + 1  # of two layers: keys and values are too small to be packed; and the head


def model(dtype=torch.float32, **options):
    return tiny_model(dtype=dtype, **(SIZES | options))


def rows(target, ids=PROMPT):
    target.reset()
    with torch.inference_mode():
        return target.forward(list(ids), num_rows=len(ids)).clone()


def linears(of):
    return [module for module in of.modules() if type(module) is torch.nn.Linear]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("num_ids", [1, 2, 8, 15])
def test_rows_are_those_of_the_model_up_to_rounding(dtype, num_ids):
    packed, plain = TransformersTarget(model(dtype), prepack=True), TransformersTarget(model(dtype))
    assert len(packed.tensors()["prepacked"]) == NUM_LARGE
    wanted = rows(plain, PROMPT[:num_ids])
    torch.testing.assert_close(
        rows(packed, PROMPT[:num_ids]), wanted, rtol=0, atol=1e-5 if dtype == torch.float32 else 0.05
    )


def test_packed_products_are_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(
        prepack, "_product", lambda packed, bias: lambda input: asked.append(1) or input @ packed.to_dense().T
    )
    target = TransformersTarget(model(), prepack=True)
    rows(target)
    assert len(asked) == NUM_LARGE


def test_a_bias_is_added():
    biased = model(attention_bias=True)
    for layer in linears(biased):
        if layer.bias is not None:
            torch.nn.init.normal_(layer.bias)
    wanted = rows(TransformersTarget(biased))
    torch.testing.assert_close(rows(TransformersTarget(biased, prepack=True)), wanted, rtol=0, atol=1e-5)


def test_the_text_is_that_of_the_model_with_every_strategy():
    plain = engine_on(TransformersTarget(model())).generate(PROMPT, max_new_tokens=20)
    for strategy in ("none", "prompt_lookup"):
        engine = engine_on(TransformersTarget(model(), prepack=True), strategy)
        assert engine.generate(PROMPT, max_new_tokens=20).token_ids == plain.token_ids


def test_a_receipt_tells_and_a_replay_without_says_so():
    """Where two runs part in their last digits, one looks for what was otherwise."""
    packed, plain = (engine_on(TransformersTarget(model(), prepack=prepack)) for prepack in (True, False))
    then = packed.generate(PROMPT, max_new_tokens=4).receipt
    assert then.runtime["products"] == then.coarse().runtime["products"] == "prepacked"
    assert "products" not in plain.generate(PROMPT, max_new_tokens=4).receipt.runtime
    assert packed.replay(then, PROMPT, max_new_tokens=4).circumstances == ()
    (difference,) = plain.replay(then, PROMPT, max_new_tokens=4).circumstances
    assert difference == (None, "runtime.products", "prepacked", None)


def test_the_model_is_left_as_it_was_also_by_a_forward_that_fails():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    rows(target)
    with pytest.raises(IndexError), torch.inference_mode():
        target.forward([10**6], num_rows=1)
    assert not any("forward" in vars(layer) for layer in lent.modules())


def test_a_model_that_is_lent_is_not_packed_unless_asked():
    assert not TransformersTarget(model()).is_prepacked


def test_models_that_share_weights_share_what_is_packed():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    draft = TransformersTarget(first_layers(lent, 1), prepack=None)
    packed = {id(tensor) for tensor in target.tensors()["prepacked"]}
    assert {id(tensor) for tensor in draft.tensors()["prepacked"]} < packed
    assert len(draft.tensors()["prepacked"]) == 6  # a layer and the head


def test_what_is_packed_goes_with_the_last_who_uses_it():
    before = len(prepack._known)
    target = TransformersTarget(model(), prepack=True)
    assert len(prepack._known) == before + NUM_LARGE
    del target
    assert len(prepack._known) == before


@pytest.mark.parametrize("how", ["in place", "through .data", "another parameter", "another bias", "another layer"])
def test_what_the_owner_writes_between_requests_counts(how):
    lent = model(attention_bias=True)
    engine = engine_on(TransformersTarget(lent, prepack=True))
    first = engine.generate(PROMPT, max_new_tokens=20).token_ids
    layer = lent.model.layers[0].self_attn.o_proj
    with torch.no_grad():
        if how == "in place":
            layer.weight.mul_(-3)
        elif how == "through .data":  # as adapters are merged: torch counts nothing
            layer.weight.data *= -3
        elif how == "another parameter":
            layer.weight = torch.nn.Parameter(-3 * layer.weight)
        elif how == "another layer":
            layer.weight.mul_(2)  # so that there is something to notice
            lent.model.layers[0].self_attn.o_proj = torch.nn.Linear(128, 128)
        else:
            layer.bias = torch.nn.Parameter(torch.randn_like(layer.bias) * 3)
    engine.target.reset()
    second = engine.generate(PROMPT, max_new_tokens=20).token_ids
    assert second == engine_on(TransformersTarget(lent)).generate(PROMPT, max_new_tokens=20).token_ids != first


def test_a_forward_that_somebody_replaced_is_kept():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    layer, asked = linears(lent)[0], []
    own = layer.forward

    def replaced(input):
        asked.append(1)
        return own(input)

    layer.forward = replaced
    rows(target)
    assert asked
    assert layer.forward is replaced


def test_a_product_that_an_interrupt_left_is_taken_back():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    swap = target._prepacked()
    swap.__enter__()  # and never left
    rows(target)
    assert not any("forward" in vars(layer) for layer in linears(lent))


def test_a_product_that_an_interrupt_left_does_not_outlive_its_weight():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    swap = target._prepacked()
    swap.__enter__()
    with torch.no_grad():
        linears(lent)[0].weight.mul_(2)
    target._prepacked.refresh()
    assert not any("forward" in vars(layer) for layer in linears(lent))


def test_where_onednn_is_switched_off_it_is_not_used(monkeypatch):
    lent = model()
    packed, plain = TransformersTarget(lent, prepack=True), TransformersTarget(lent)
    monkeypatch.setattr(prepack, "_known", {})
    monkeypatch.setattr(torch.backends, "mkldnn", SimpleNamespace(enabled=False, is_available=lambda: True))
    with packed._prepacked():
        assert not any("forward" in vars(layer) for layer in linears(lent))
    assert torch.equal(rows(packed), rows(plain))


def test_subclasses_quantised_and_small_layers_stay_as_they_are():
    class Own(torch.nn.Linear):
        pass

    layers = torch.nn.Sequential(Own(128, 128), torch.nn.Linear(64, 64), torch.nn.Linear(128, 128, dtype=torch.float64))
    assert not Prepacked(layers, packs=True).tensors


def test_bytes_are_told_and_shared_ones_count_once():
    target = TransformersTarget(model(), prepack=True)
    told = num_bytes(tensors_of(holders(target, {})))
    large = sum(layer.weight.nbytes for layer in linears(target.model) if layer.weight.numel() >= 2**14)
    assert told["logical"]["target prepacked"] == large
    weights = sum({weight.data_ptr(): weight.nbytes for weight in target.tensors()["weights"]}.values())
    assert told["deduplicated"] == weights + large + sum(part.nbytes for part in target.tensors()["cache"])


def test_a_model_that_specframe_loads_is_packed_where_it_pays(tmp_path, monkeypatch):
    model().save_pretrained(tmp_path)
    assert load_target(tmp_path).is_prepacked
    assert not load_target(tmp_path, prepack=False).is_prepacked
    monkeypatch.setattr(prepack.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**20))
    assert not load_target(tmp_path).is_prepacked
    assert load_target(tmp_path, prepack=True).is_prepacked
    monkeypatch.setattr(prepack.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**40))
    (tmp_path / "memory.max").write_text("1048576\n")  # a container in a machine that has more
    monkeypatch.setattr(prepack, "_LIMITS", (tmp_path / "nowhere", tmp_path / "memory.max"))
    assert not load_target(tmp_path).is_prepacked
    (tmp_path / "memory.max").write_text("max\n")
    assert load_target(tmp_path).is_prepacked
    monkeypatch.setattr(prepack.platform, "machine", lambda: "arm64")
    assert not load_target(tmp_path).is_prepacked


def test_what_cannot_be_packed_is_refused_where_it_is_asked_for():
    assert not is_wanted(model(torch.float64), None)
    with pytest.raises(InvalidRequest, match="prepack"):
        is_wanted(model(torch.float64), True)


def test_a_borrowed_head_uses_what_the_target_packed():
    lent = model()
    target = TransformersTarget(lent, prepack=True)
    head = torch.nn.Linear(128, 256, bias=False)
    head.weight = torch.nn.Parameter(ModelViews(lent, frozenset({"head"})).head, requires_grad=False)
    (packed,) = Prepacked(head, packs=None).tensors
    assert any(packed is tensor for tensor in target.tensors()["prepacked"])


def test_models_that_share_layers_share_a_lock():
    lent = model()
    target, draft = AttentionSwap(lent), AttentionSwap(first_layers(lent, 1))
    assert set(map(id, target._locks)) & set(map(id, draft._locks))


def test_a_target_that_is_not_to_be_packed_is_not_by_its_draft(tmp_path):
    """Prevents a target whose arithmetic, and so whose text at a near-tie, depends on the strategy: drafts borrow its head."""
    sizes = {name: size for name, size in SIZES.items() if name != "vocab_size"}
    target = save_model(tmp_path / "target", **sizes)
    draft = save_model(tmp_path / "draft", num_hidden_layers=1, **sizes)
    let_borrow(draft)
    engine = specframe.load(target, strategy=using(draft), prepack=False)
    engine.generate("hello", max_new_tokens=4)
    runner = engine.drafters["draft_model"].network.runner
    assert runner.model.lm_head.weight.data_ptr() == engine.target.model.lm_head.weight.data_ptr()
    assert runner.is_prepacked
    assert not engine.target.is_prepacked
    assert not TransformersTarget(engine.target.model).is_prepacked


def test_of_two_weights_in_one_place_each_is_packed():
    """Prevents a layer from running on the transpose of its weight: a square one has its place, its shape and its dtype."""
    one, other = torch.nn.Linear(128, 128), torch.nn.Linear(128, 128)
    other.weight = torch.nn.Parameter(one.weight.detach().T)
    layers, input = torch.nn.Sequential(one, other), torch.randn(3, 128)
    packed = Prepacked(layers, packs=True)
    assert len(packed.tensors) == 2
    with torch.inference_mode():
        wanted = layers(input)
        with packed():
            torch.testing.assert_close(layers(input), wanted, rtol=0, atol=1e-5)


def test_a_weight_that_was_cut_in_its_place_is_packed_again():
    layer, input = torch.nn.Linear(256, 128), torch.randn(3, 256)
    packed = Prepacked(layer, packs=True)
    for parameter in (layer.weight, layer.bias):
        parameter.data = parameter.data[:64]
    packed.refresh()
    with torch.inference_mode(), packed():
        torch.testing.assert_close(layer(input), torch.nn.functional.linear(input, layer.weight, layer.bias))


def in_inference_mode(layer):
    with torch.inference_mode():
        layer.weight = torch.nn.Parameter(torch.randn(128, 128))


@pytest.mark.parametrize(
    "change",
    [
        in_inference_mode,
        torch.nn.Module.double,
        lambda layer: random_unstructured(layer, "weight", 0.5),
        weight_norm,
    ],
    ids=["inference mode", "another dtype", "made by a hook", "parametrised"],
)
def test_a_layer_that_can_be_packed_no_longer_is_its_own_again(change):
    layer = torch.nn.Linear(128, 128)
    packed = Prepacked(layer, packs=True)
    assert packed.tensors
    change(layer)
    packed.refresh()
    assert not packed.tensors
    input = torch.randn(3, 128, dtype=layer.weight.dtype)
    with torch.inference_mode(), packed():
        assert torch.equal(layer(input), torch.nn.functional.linear(input, layer.weight, layer.bias))


class Quantised(torch.Tensor):
    """A weight as libraries of quantisation make them: it says that it is float32, and has no storage."""

    @staticmethod
    def __new__(cls, size):
        return torch.Tensor._make_wrapper_subclass(cls, size, dtype=torch.float32)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(function)


@pytest.mark.parametrize("packs", [True, None])
def test_a_weight_of_another_kind_of_tensor_is_left_alone(packs):
    layer = torch.nn.Linear(128, 128)
    layer.weight = torch.nn.Parameter(Quantised((128, 128)), requires_grad=False)
    assert not Prepacked(layer, packs=packs).tensors


def test_under_autocast_it_is_not_used():
    """Prevents products that know nothing of autocast from computing in another dtype, or failing for want of one."""
    lent = model()
    packed, plain = TransformersTarget(lent, prepack=True), TransformersTarget(lent)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(rows(packed), rows(plain))


def test_a_draft_of_its_layers_follows_a_target_that_was_written_to():
    """Prevents a draft from proposing what the old weights say, and the old copies from staying for it."""
    lent = model()
    target, draft = TransformersTarget(lent, prepack=True), TransformersTarget(first_layers(lent, 1), prepack=None)
    with torch.no_grad():
        lent.lm_head.weight.mul_(2)
    target.reset(), draft.reset()  # as ``Engine.reset`` does
    packed = {id(tensor) for tensor in target.tensors()["prepacked"]}
    assert len(draft.tensors()["prepacked"]) == 6
    assert {id(tensor) for tensor in draft.tensors()["prepacked"]} < packed
