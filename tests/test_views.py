"""Views of a target's weights: shared as they are, lent to those that declare them, and never a way into the target."""

from __future__ import annotations

import pytest
import torch
from models import PROMPT, shared_model, tiny_model

from specframe import PluginError, TransformersTarget, UnsupportedModel
from specframe.views import first_layers


def test_views_are_lent_to_those_that_declare_them():
    """A drafter reads what its plugin said it would read, and nothing more."""
    target = TransformersTarget(shared_model())
    assert target.views(frozenset({"head"})).head.shape == (64, 32)
    assert (
        target.views(frozenset({"embeddings"})).embeddings.data_ptr()
        == shared_model().model.embed_tokens.weight.data_ptr()
    )
    with pytest.raises(PluginError, match=r"without declaring it; add 'layers' to needs\.views"):
        target.views(frozenset({"head"})).first_layers(1)


@pytest.mark.parametrize("part", ["whole", "base"])
def test_a_model_whose_forward_was_replaced_is_refused(part):
    """torch.compile and accelerate put a forward on the instance, bound to it: the copy would run every layer of the target."""
    model = tiny_model()
    module = model if part == "whole" else model.model
    module.forward = module.forward
    with pytest.raises(UnsupportedModel, match=r"was replaced .* use a draft model of its own"):
        first_layers(model, 1)


def test_what_is_registered_on_the_layers_model_stays_there():
    """A hook that lands on the target changes the output, the one thing that a drafter must not."""
    model = tiny_model()
    inputs = torch.tensor([PROMPT])
    expected = model(input_ids=inputs).logits
    short = first_layers(model, 1)
    alone = short(input_ids=inputs).logits
    for module in (short, short.model):
        module.register_forward_hook(lambda module, args, output: 1 / 0)
        module.register_forward_pre_hook(lambda module, args: 1 / 0)
        module.register_buffer("extra", torch.ones(1))
        module.register_parameter("more", torch.nn.Parameter(torch.ones(1)))
    assert torch.equal(model(input_ids=inputs).logits, expected)
    assert not [name for name in model.state_dict() if "extra" in name or "more" in name]
    again = first_layers(model, 1)
    model.register_forward_hook(lambda module, args, output: 1 / 0)
    assert torch.equal(again(input_ids=inputs).logits, alone)
