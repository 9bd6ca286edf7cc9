"""The draft model: exact with any draft, of any kind and dtype, and beside any other drafter."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from drafts import drafter, near_model, network, other_model
from models import KINDS, PROMPT, CheckedTarget, engine_on, shared_model, tiny_model

from specframe import DrafterUse, Engine, InvalidStrategy, Length, Strategy, TransformersTarget, UnsupportedModel
from specframe.drawing import DraftContext
from specframe.testing import Oracle, RandomOffers
from specframe.views import first_layers
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel
from specframe_draft_model.network import Network

SAMPLINGS = ({}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.7, "top_p": 0.9, "seed": 4})


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("length", range(1, 9))
def test_the_text_is_that_of_plain_decoding(sampling, length):
    """The one promise; greedy and coupled, at every proposal length, whatever the draft says."""
    target = TransformersTarget(shared_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=24, **sampling).token_ids
    for model in (other_model(), near_model(), tiny_model()):
        result = engine_on(target, drafter(model), length=length).generate(PROMPT, max_new_tokens=24, **sampling)
        assert result.token_ids == expected
        assert result.events == ()
        assert result.stats.drafters["d0"].num_proposed


def test_a_draft_that_is_the_target_is_accepted_whole():
    """Everything else would be a row in the wrong place."""
    target = TransformersTarget(shared_model())
    for sampling in SAMPLINGS:
        result = engine_on(target, drafter(shared_model())).generate(PROMPT, max_new_tokens=21, **sampling)
        stats = result.stats.drafters["d0"]
        assert stats.num_accepted == stats.num_proposed > 0
        assert result.stats.num_rounds == 1 + 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_drafts_from_the_rows_of_a_fresh_forward(kind):
    """Cases D2 and D3: behind a sliding window's edge, after any rollback, no key is missing, stale or dirty."""
    target = TransformersTarget(shared_model())
    runner = CheckedTarget(tiny_model(kind))
    made = DraftModel(Network(runner), DraftModelOptions(model="unused"))
    for prompt in (PROMPT, PROMPT[:12], (*PROMPT, *PROMPT)):
        result = engine_on(target, made, length=4).generate(prompt, max_new_tokens=20)
        assert result.token_ids == Engine(target).generate(prompt, max_new_tokens=20).token_ids
        assert result.events == ()
    assert runner.worst < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drawn_token_carries_the_law_that_it_was_drawn_from(monkeypatch, dtype):
    """Cases A2 and A3: greedy choices are point masses; a drawn one has the processed row's own law, whatever the dtype."""
    seen = []
    draw = DraftContext.draw

    def noted(context, logits, ids, node):
        drawn = draw(context, logits, ids, node)
        seen.append((logits.double().numpy(), drawn))
        return drawn

    monkeypatch.setattr(DraftContext, "draw", noted)
    target = TransformersTarget(shared_model())
    engine = engine_on(target, drafter(other_model().to(dtype)), verifier="residual")
    engine.generate(PROMPT, max_new_tokens=16)
    assert seen
    assert all(drawn.law is None and drawn.token == row.argmax() for row, drawn in seen)
    seen.clear()
    engine.generate(PROMPT, max_new_tokens=16, temperature=0.8, top_k=3, seed=1)
    assert seen
    for row, drawn in seen:
        kept = np.where(row >= np.sort(row)[-3], row / 0.8, -np.inf)  # equal logits share the last place
        expected = np.exp(kept - kept.max())
        found = np.zeros_like(expected)
        found[np.asarray(drawn.law.ids)] = np.asarray(drawn.law.probs)
        assert np.allclose(found, expected / expected.sum(), rtol=0, atol=1e-6)
        assert drawn.law.prob(drawn.token) > 0
        assert abs(drawn.law.probs.sum() - 1) < 1e-12


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_it_goes_together_with_other_drafters(sampling):
    """In front of it, behind it, right and wrong."""
    target = TransformersTarget(shared_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=30, **sampling).token_ids
    for others in ([Oracle(expected, wrong_at=1)], [RandomOffers(seed=1)], [Oracle(expected)]):
        for order in ([*others, drafter(near_model())], [drafter(near_model()), *others]):
            for mode in ("extend", "first"):
                engine = engine_on(target, *order, length=5, mode=mode)
                result = engine.generate(PROMPT, max_new_tokens=30, **sampling)
                assert result.token_ids == expected
                assert result.events == ()


def test_the_prefix_is_kept_between_requests():
    """A chat's next turn must not cost the draft another prefill of all that was said."""
    target, made = TransformersTarget(shared_model()), drafter()
    engine = engine_on(target, made)
    first = engine.generate(PROMPT, max_new_tokens=8).token_ids
    fed = []
    run = made.network.runner.forward
    made.network.runner.forward = lambda ids, num_rows: fed.extend(ids) or run(ids, num_rows=num_rows)
    prompt = (*PROMPT, *first, 3, 4)
    again = engine.generate(prompt, max_new_tokens=2)
    assert again.token_ids == Engine(target).generate(prompt, max_new_tokens=2).token_ids
    assert len(fed) < len(PROMPT)
    engine.reset()
    assert made.network.ids == ()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_drafts_dtype_is_its_own_business(dtype):
    """A draft in half precision halves its bytes; the text is the target's."""
    target = TransformersTarget(shared_model())
    made = drafter(other_model().to(dtype))
    result = engine_on(target, made).generate(PROMPT, max_new_tokens=12)
    assert result.token_ids == Engine(target).generate(PROMPT, max_new_tokens=12).token_ids
    assert result.events == ()


def test_a_reduced_head_proposes_target_ids():
    """Column i of a small head is not id i."""
    target = TransformersTarget(shared_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=24).token_ids
    ids = torch.tensor([*sorted({*expected[:12]}), -1])
    model = tiny_model()
    model.set_output_embeddings(torch.nn.Linear(32, len(ids), bias=False, dtype=torch.float64))
    model.lm_head.weight.data = shared_model().lm_head.weight.data[ids.clamp(min=0)]
    result = engine_on(target, drafter(model, target_ids=ids)).generate(PROMPT, max_new_tokens=24)
    assert result.token_ids == expected
    stats = result.stats.drafters["d0"]
    assert stats.num_accepted >= 9  # the ids of its map are proposed as the target's own
    assert result.events == ()


@pytest.mark.parametrize("kind", KINDS)
def test_the_targets_first_layers_draft_without_touching_it(kind):
    """Early exit: no second copy of the weights, and the target computes what it did."""
    model = shared_model(kind)
    target = TransformersTarget(model)
    expected = Engine(target).generate(PROMPT, max_new_tokens=12).token_ids
    config = model.config.to_dict()
    short = first_layers(model, 1)
    assert {id(parameter) for parameter in short.parameters()} <= {id(parameter) for parameter in model.parameters()}
    if kind != "gpt2":
        alone = tiny_model(
            kind, num_hidden_layers=1, **({"layer_types": ["sliding_attention"]} if kind == "gemma3" else {})
        )
        names = alone.state_dict().keys()
        alone.load_state_dict({name: value for name, value in model.state_dict().items() if name in names})
        inputs = torch.tensor([PROMPT])
        assert torch.equal(short(input_ids=inputs).logits, alone(input_ids=inputs).logits)
    engine = Engine(target, {"draft_model": DraftModel(network(short), DraftModelOptions(layers=1))})
    assert engine.generate(PROMPT, max_new_tokens=12).token_ids == expected
    assert model.config.to_dict() == config
    assert Engine(target).generate(PROMPT, max_new_tokens=12).token_ids == expected


def test_layers_are_lent_by_name_of_a_strategy():
    """``layers = 1`` in a strategy needs no model, and no tokenizer to compare."""
    target = TransformersTarget(shared_model())
    strategy = Strategy(drafters=(DrafterUse("draft_model", {"layers": 1}),), length=Length(max_tokens=3))
    result = Engine(target, strategy=strategy).generate(PROMPT, max_new_tokens=12)
    assert result.token_ids == Engine(target).generate(PROMPT, max_new_tokens=12).token_ids
    assert result.stats.drafters["draft_model"].num_proposed
    for layers in (2, 99):
        use = DrafterUse("draft_model", {"layers": layers})
        with pytest.raises(UnsupportedModel, match="takes 1 to 1 of its 2"):
            Engine(target, strategy=Strategy(drafters=(use,)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"layers": 0}, "'layers' must be an integer >= 1"),
        ({"layers": 2, "model": "x"}, "exclude each other"),
        ({"layers": 2, "dtype": "float32"}, "do not go with 'layers'"),
        ({"min_confidence": 1.0}, r"'min_confidence' must be a number in \[0, 1\)"),
        ({"truncation": "head"}, "'truncation' must be one of none, tail-v1"),
        ({"max_tokens": True}, "'max_tokens' must be an integer >= 1"),
    ],
)
def test_options_that_contradict_are_told(options, told):
    """Before anything loads."""
    with pytest.raises(InvalidStrategy, match=told):
        DraftModelOptions(**options)


def test_the_demo_draft_is_used_where_nothing_is_named(monkeypatch, tmp_path):
    """A name without a model behind it must not become a question to a model hub."""
    from specframe_draft_model import options

    monkeypatch.setattr(options, "DEMO_FOLDER", tmp_path / "demo")
    with pytest.raises(InvalidStrategy, match=r"give 'model' \(see 'specframe train-draft'\) or 'layers'"):
        DraftModelOptions()
    (tmp_path / "demo").mkdir()
    assert DraftModelOptions().model == DraftModelOptions(model="demo").model == str(tmp_path / "demo")


def test_listing_it_imports_no_model_library():
    """``specframe plugins`` and ``--help`` stay fast."""
    script = "import sys, specframe_draft_model; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a second device")
def test_a_draft_on_another_device():
    """The row goes to where the target's processors are."""
    target = TransformersTarget(shared_model())
    result = engine_on(target, drafter(other_model().to("cuda"))).generate(PROMPT, max_new_tokens=12)
    assert result.token_ids == Engine(target).generate(PROMPT, max_new_tokens=12).token_ids
