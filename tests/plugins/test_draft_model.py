"""The draft model: exact with any draft, aligned after any history, and one clear error for a draft that does not fit."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import KINDS, PROMPT, CheckedTarget, engine_on, shared_model, tiny_model
from safetensors.torch import load_file, save_file

import specframe
from specframe import (
    DrafterUse,
    Engine,
    IncompatibleManifest,
    InvalidStrategy,
    Length,
    LoadError,
    PluginError,
    Strategy,
    TransformersTarget,
    UnsupportedModel,
)
from specframe.drawing import DraftContext
from specframe.proposal import Commit, DraftRequest, Round, lend
from specframe.testing import Oracle, RandomOffers
from specframe.views import first_layers
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel
from specframe_draft_model.network import Network

SAMPLINGS = ({}, {"temperature": 0.9, "seed": 3}, {"temperature": 0.7, "top_p": 0.9, "seed": 4})


def network(model, **options):
    return Network(TransformersTarget(model), **options)


def drafter(model=None, *, target_ids=None, **options):
    """Return a drafter on another tiny model than the target's."""
    model = model if model is not None else other_model()
    return DraftModel(network(model, target_ids=target_ids), DraftModelOptions(model="unused", **options))


def other_model(**options):
    model = tiny_model(num_hidden_layers=1, dtype=torch.float32, **options)
    model.model.embed_tokens.weight.data.mul_(0.7)
    return model


def near_model():
    """Return a copy of the target with a little noise: most proposals are right, some are not."""
    model = tiny_model()
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model


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


def session_of(made, request=None):
    facts = made.network.runner.facts
    return made.open(request or DraftRequest(PROMPT, facts, specframe.SamplingPolicy(), frozenset()))


@given(st.data())
@settings(max_examples=60)
def test_after_any_history_the_cache_stands_for_the_text(data):
    """A key of a token that was refused, or a hole where another drafter's token was, poisons every row after it.

    Rounds with and without proposals, behind another drafter's, refused anywhere and accepted to the last token, which was
    never fed: after each commit the cache is a prefix of the text less its last id, and the next row that of a fresh forward.
    """
    model = other_model()
    made = drafter(model)
    for _ in range(data.draw(st.integers(1, 2))):  # requests
        prompt = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
        session = session_of(made)
        session.commit(Commit(tuple(prompt), 0))
        text = list(prompt)
        for _ in range(data.draw(st.integers(1, 5))):
            proposed, rows = propose(session, text, data.draw(st.lists(st.integers(0, 5), max_size=2)), data, made)
            for context, row in rows:
                expected = model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1]
                assert torch.allclose(row, expected, atol=1e-4)
            accepted = data.draw(st.integers(0, len(proposed)))
            ids = (*proposed[:accepted], data.draw(st.integers(0, 5)))
            session.commit(Commit(ids, len(text), len(proposed), accepted))
            text.extend(ids)
            cached = list(made.network.ids)
            assert cached == text[: len(cached)]
            assert len(cached) <= len(text) - 1
            made.network.runner.cache.check(cached)
        session.close()


def propose(session, text, offered, data, made):
    """Let a session propose behind another drafter's offers; return all that was proposed and the rows that it drew from."""
    rows = []

    class Context:
        def __init__(self):
            self.ids = list(text)

        def is_allowed(self, token):
            return True

        def is_exhausted(self):
            return False

        def push(self, token):
            self.ids.append(token)

        def draw(self, row, ids, node):
            rows.append((list(self.ids), row.clone()))
            return attrs.make_class("D", ["token", "law"])(int(row.argmax()), None)

    from specframe.proposal import Proposal

    proposal = Proposal()
    room = data.draw(st.integers(0, 4))
    round = Round(Context(), proposal, index=1, room=room, vocab_size=64, stop_ids=frozenset())
    lend(round, "other", lambda round: [round.offer(token) for token in offered])
    if data.draw(st.booleans()):
        lend(round, "draft", session.propose)
        if rows:
            assert rows[0][0] == [*text, *offered[:room]]  # fed to the end of the round's context, and no further
    return proposal.ids, rows


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
    monkeypatch.setattr(DraftContext, "draw", lambda *args: seen.append(draw(*args)) or seen[-1])
    target = TransformersTarget(shared_model())
    engine = engine_on(target, drafter(other_model().to(dtype)), verifier="residual")
    engine.generate(PROMPT, max_new_tokens=16)
    assert seen
    assert all(drawn.law is None for drawn in seen)
    seen.clear()
    engine.generate(PROMPT, max_new_tokens=16, temperature=0.8, top_k=3, seed=1)
    assert seen
    for drawn in seen:
        assert 3 <= len(drawn.law.ids) < 8  # equal logits share the last place
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


def test_draws_end_before_a_row_that_is_not_confident():
    """The stop looks at the row, never at the token: case A2's bias cannot come in by it (enumerated in test_draft_laws)."""
    target = TransformersTarget(shared_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=24).token_ids
    counts = []
    for least in (0.0, 0.2, 0.9):
        made = drafter(near_model(), min_confidence=least)
        result = engine_on(target, made, length=6).generate(PROMPT, max_new_tokens=24)
        assert result.token_ids == expected
        counts.append(result.stats.drafters["d0"].num_proposed)
    assert counts[0] > counts[1] > counts[2]


def test_past_the_drafts_context_it_is_off_or_sees_the_end_only():
    """Case C7: the target goes on; the result says who stopped."""
    target = TransformersTarget(shared_model())
    for prompt, budget in ((PROMPT[:14], 18), (PROMPT[:14] * 2, 10)):
        expected = Engine(target).generate(prompt, max_new_tokens=budget).token_ids
        result = engine_on(target, drafter(context=16), length=5).generate(prompt, max_new_tokens=budget)
        assert result.token_ids == expected
        assert [event.message for event in result.events] == ["switched off: propose raised DraftContextExceeded"]
        made = drafter(near_model(), context=16, truncation="tail-v1")
        result = engine_on(target, made, length=5).generate(prompt, max_new_tokens=budget)
        assert result.token_ids == expected
        assert result.events == ()
        assert result.stats.drafters["d0"].num_proposed
        assert len(made.network.ids) <= 16


def test_a_smaller_context_of_the_drafts_own_is_respected():
    """The model's own limit counts where no option is smaller: positions behind it would be guesses."""
    target = TransformersTarget(shared_model())
    made = drafter(other_model(max_position_embeddings=20))
    result = engine_on(target, made).generate(PROMPT, max_new_tokens=20)
    assert result.token_ids == Engine(target).generate(PROMPT, max_new_tokens=20).token_ids
    assert len(result.events) == 1


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


@pytest.fixture
def pair(tmp_path, monkeypatch):
    """Return the folders of a target and of a draft for it."""
    sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "manifest"))
    from folders import save_model

    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    return save_model(tmp_path / "target"), save_model(tmp_path / "draft", num_hidden_layers=1)


def using(folder, **options):
    return Strategy(drafters=(DrafterUse("draft_model", {"model": str(folder), **options}),))


def test_a_folder_drafts(pair):
    """The way most users take."""
    target, draft = pair
    expected = specframe.load(target).generate("hello", max_new_tokens=12).token_ids
    engine = specframe.load(target, strategy=using(draft))
    assert engine.generate("hello", max_new_tokens=12).token_ids == expected
    assert engine.draft_identities["draft_model"].model.num_layers == 1


def drop(name):
    def change(folder):
        file = folder / "model.safetensors"
        tensors = {key: value.clone() for key, value in load_file(file).items() if key != name}
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def reshape(folder):
    file = folder / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, file, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            drop("model.layers.0.mlp.up_proj.weight"),
            "lacks 1 of its tensors, such as model.layers.0.mlp.up_proj.weight",
        ),
        (reshape, "could not be loaded"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"no"), "could not be loaded"),
        (lambda folder: (folder / "model.safetensors").unlink(), "could not be loaded"),
    ],
)
def test_a_damaged_draft_is_told_before_output_begins(pair, damage, told):
    """The library makes missing tensors up: a draft of noise that nobody told of."""
    target, draft = pair
    damage(draft)
    with pytest.raises(LoadError, match=told):
        specframe.load(target, strategy=using(draft))


def test_a_draft_of_another_tokenizer_is_refused(pair):
    """The manifest's business, here with a real plugin."""
    target, draft = pair
    vocabulary = json.loads((draft / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["A"], vocabulary["model"]["vocab"]["B"] = 66, 65
    (draft / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(IncompatibleManifest, match="id 65 is"):
        specframe.load(target, strategy=using(draft))


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
