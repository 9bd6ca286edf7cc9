"""Views of a target's weights: shared as they are, lent to those that declare them, and never a way into the target."""

from __future__ import annotations

import pytest
import torch
from models import PROMPT, engine_on, shared_model, tiny_model

from specframe import GenerationError, PluginError, TargetError, TransformersTarget, UnsupportedModel
from specframe.testing import RandomOffers
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


def lending(method, write):
    """Return a drafter that writes into the target's weights in one call of a method."""

    class Writing(RandomOffers):
        def open(self, request):
            if method == "open":
                write()
            session = super().open(request)
            if method != "open":
                inner = getattr(session, method)

                def writing(*arguments):
                    if session.num_rounds >= 1:
                        write()
                    return inner(*arguments)

                setattr(session, method, writing)
            return session

    return Writing(seed=1)


@pytest.mark.parametrize("part", ["embeddings", "head", "layers", "parameter"])
@pytest.mark.parametrize("method", ["open", "propose", "commit", "close"])
def test_a_write_into_lent_weights_is_never_silent(method, part):
    """A drafter that writes makes another model, and torch lets it; its text must not pass for the target's."""
    target = TransformersTarget(tiny_model())
    views = target.views(frozenset({"embeddings", "head", "layers"}))
    lent = {
        "embeddings": lambda: views.embeddings,
        "head": lambda: views.head[3:5].view(-1),
        "layers": lambda: next(views.first_layers(1).parameters()),
        "parameter": lambda: torch.nn.Parameter(views.head, requires_grad=False),
    }[part]()
    expected = engine_on(TransformersTarget(tiny_model())).generate(PROMPT, max_new_tokens=12).token_ids
    engine = engine_on(target, lending(method, torch.no_grad()(lambda: lent.mul_(1.01))))
    emitted = ()
    if method != "close":
        with pytest.raises(
            GenerationError, match=r"a drafter wrote into the target's (embeddings|head|layers)"
        ) as caught:
            engine.generate(PROMPT, max_new_tokens=12)
        emitted = caught.value.token_ids
        assert emitted == expected[: len(emitted)]
    else:
        assert engine.generate(PROMPT, max_new_tokens=12).token_ids == expected
    with pytest.raises(TargetError, match="load the model again"):  # whoever asks next is told too
        engine_on(target).generate(PROMPT, max_new_tokens=3)


def test_reading_lent_weights_is_no_write():
    """A draft computes with them in every round, in inference mode and out of it."""
    target = TransformersTarget(tiny_model())
    views = target.views(frozenset({"embeddings", "layers"}))
    short = views.first_layers(1)

    def read():
        short(input_ids=torch.tensor([PROMPT]))
        views.embeddings.sum().item()
        views.embeddings.clone().zero_()

    engine = engine_on(target, lending("propose", read))
    assert engine.generate(PROMPT, max_new_tokens=12).events == ()
    assert engine.generate(PROMPT, max_new_tokens=12).finish_reason == "length"


def test_a_caller_may_change_weights_between_generations():
    """A training loop that samples now and then writes into every weight, and is right to."""
    model = tiny_model()
    target = TransformersTarget(model)
    assert target.views(frozenset({"head"})).head.shape == (64, 32)
    engine = engine_on(target)
    engine.generate(PROMPT, max_new_tokens=3)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    engine.reset()
    assert engine.generate(PROMPT, max_new_tokens=3).finish_reason == "length"
