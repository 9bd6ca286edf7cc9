"""The transformers target: rows against cache-free forwards, equality of decoding, and what sessions refuse."""

from __future__ import annotations

import copy
from functools import cache

import numpy as np
import pytest
import torch
from models import (
    KINDS,
    PROMPT,
    SLIDING_KINDS,
    CheckedTarget,
    CountingTarget,
    engine_on,
    library_greedy,
    shared_model,
    tiny_config,
    tiny_model,
)
from transformers import AutoModelForCausalLM

from specframe import StaleEpoch, TargetError, Ticket, TransformersTarget, UnsupportedModel
from specframe.testing import Adversary, LogitsDrafter, Oracle, RandomOffers

TOLERANCE = 1e-10
SAMPLINGS = {
    "greedy": {},
    "temperature 1": {"temperature": 1.0, "seed": 3},
    "temperature and top-p": {"temperature": 0.8, "top_p": 0.95, "seed": 4},
}
TABLE = torch.from_numpy(np.random.default_rng(7).normal(0, 1.5, (64, 64)))


@cache
def plain(kind: str, sampling: str, num_tokens: int = 16, window: int = 8):
    engine = engine_on(TransformersTarget(shared_model(kind, window=window)))
    return engine.generate(PROMPT, max_new_tokens=num_tokens, **SAMPLINGS[sampling])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_a_cache_free_forward(kind):
    """Rows of a block that see wrong positions, masks or stale keys differ from a forward that has no cache."""
    target = CheckedTarget(shared_model(kind))
    engine = engine_on(target)
    continuation = plain(kind, "greedy").token_ids
    accepted = set()
    for wrong_at in (0, 1, 2, 3, None):
        engine.drafters["d0"] = Oracle(continuation, wrong_at)
        result = engine.generate(PROMPT, max_new_tokens=12)
        assert result.token_ids == continuation[:12]
        accepted |= {record.num_accepted for record in result.records if record.num_proposed == 4}
    assert accepted == {0, 1, 2, 3, 4}
    assert {1, 5} <= set(target.fed)
    assert target.worst < TOLERANCE


@pytest.mark.parametrize("chunk", [1, 3, 1024])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_equal_a_cache_free_forward_after_chunks_reuse_and_truncation(kind, chunk):
    """A prompt fed in chunks, or only from where it leaves the cached one, gives other logits if offsets are wrong."""
    target = CheckedTarget(shared_model(kind), prefill_chunk=chunk)
    continuation = plain(kind, "greedy").token_ids
    engine = engine_on(target, Oracle(continuation, wrong_at=2))
    first = engine.generate(PROMPT, max_new_tokens=5).token_ids
    assert first == continuation[:5]
    num_fed = [0, 0]
    for index, prompt in enumerate(((*PROMPT, *first, 9, 8), (*PROMPT[:7], 1, 2))):
        target.fed.clear()
        engine.generate(prompt, max_new_tokens=3)
        num_fed[index] = target.fed[0] if chunk > 3 else chunk
    assert num_fed == ([3, 2] if chunk > 3 else [chunk, chunk])
    assert target.worst < TOLERANCE


@pytest.mark.parametrize("window", [2, 4])
@pytest.mark.parametrize("kind", SLIDING_KINDS)
def test_rows_equal_a_cache_free_forward_where_the_window_is_smaller_than_the_proposal(kind, window):
    """A row whose window begins inside its own block must not see the block's first rows."""
    model = shared_model(kind, window=window)
    continuation = plain(kind, "greedy", window=window).token_ids
    target = CheckedTarget(model)
    for wrong_at in (1, 4, None):
        engine = engine_on(target, Oracle(continuation, wrong_at), length=6)
        assert engine.generate(PROMPT, max_new_tokens=14).token_ids == continuation[:14]
    assert max(target.fed[1:]) == 7
    assert target.worst < TOLERANCE
    # The window matters at all: the same weights with a wider one say something else.
    wide = shared_model(kind, window=60)(input_ids=torch.tensor([PROMPT])).logits
    assert not torch.allclose(wide, model(input_ids=torch.tensor([PROMPT])).logits)


@pytest.mark.parametrize("kind", KINDS)
def test_plain_decoding_equals_generate(kind):
    """Plain decoding that differs from the library's own makes every other equality meaningless."""
    model = shared_model(kind)
    assert plain(kind, "greedy").token_ids == library_greedy(model, PROMPT, 16)
    assert len(set(plain(kind, "greedy").token_ids)) > 4


@pytest.mark.parametrize("sampling", ["greedy", "temperature and top-p"])
@pytest.mark.parametrize("kind", KINDS)
def test_speculation_equals_plain_decoding(kind, sampling):
    """A drafter, right, wrong, random or drawing, must not change one token of any model type."""
    expected = plain(kind, sampling)
    settings = [
        (Oracle(expected.token_ids, wrong_at=1), 4),
        (RandomOffers(seed=1), 12),
        (LogitsDrafter(lambda ids: TABLE[ids[-1]], num_tokens=3), 4),
    ]
    for drafter, length in settings:
        engine = engine_on(TransformersTarget(shared_model(kind)), drafter, length=length)
        result = engine.generate(PROMPT, max_new_tokens=10, **SAMPLINGS[sampling])
        assert result.token_ids == expected.token_ids[:10]
        assert result.stats.num_proposed > 0
        assert not result.events


@pytest.mark.parametrize("length", [1, 4, 12])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_speculation_equals_plain_decoding_for_every_drafter(sampling, length):
    """A fault at one index of a block shows only when the drafter is wrong exactly there."""
    expected = plain("llama", sampling)
    drafters = [Oracle(expected.token_ids, wrong_at) for wrong_at in (*range(0, length, 3), length - 1, None)]
    drafters += [RandomOffers(seed=2), Adversary(lambda context, index: (context[-1] + index) % 64)]
    target = TransformersTarget(shared_model("llama"))
    for drafter in drafters:
        result = engine_on(target, drafter, length=length).generate(PROMPT, max_new_tokens=16, **SAMPLINGS[sampling])
        assert result.token_ids == expected.token_ids


@pytest.mark.parametrize("mode", ["extend", "first"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_two_drafters_equal_plain_decoding(sampling, mode):
    """The second drafter adds behind the first one's tokens; a fault there shows only with two."""
    expected = plain("llama", sampling)
    model = shared_model("llama")

    def near(ids):
        with torch.inference_mode():
            return model(input_ids=torch.tensor([ids])).logits[0, -1] + 0.3 * TABLE[ids[-1]]

    shy = Oracle(expected.token_ids)
    shy.continuation = [*expected.token_ids[:2], 0]
    for first in (LogitsDrafter(near, num_tokens=2), shy, RandomOffers(seed=5)):
        engine = engine_on(
            TransformersTarget(model), first, Oracle(expected.token_ids, wrong_at=1), length=5, mode=mode
        )
        result = engine.generate(PROMPT, max_new_tokens=16, **SAMPLINGS[sampling])
        assert result.token_ids == expected.token_ids
        assert result.stats.drafters["d0"].num_proposed > 0
        if mode == "first":
            assert all(sum(share.num_proposed > 0 for share in record.drafters) <= 1 for record in result.records)
        else:
            assert any(sum(share.num_proposed > 0 for share in record.drafters) == 2 for record in result.records)


def test_float32_runs_in_the_models_own_precision():
    """Rows that are silently computed in another precision are another model's."""
    model = tiny_model(dtype=torch.float32)
    target = TransformersTarget(model)
    assert target.facts.dtype == "float32"
    session = target.open(1, max_tokens=20)
    assert session.prefill(Ticket(1, 0, 0), PROMPT).logits.dtype == torch.float32
    session.close()
    assert engine_on(target).generate(PROMPT, max_new_tokens=12).token_ids == library_greedy(model, PROMPT, 12)


def test_the_model_and_its_configurations_are_not_changed():
    """A configuration that is changed here changes what the caller's own code does later."""
    model = tiny_model()
    before = copy.deepcopy((model.config.to_dict(), model.generation_config.to_dict()))
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    engine = engine_on(TransformersTarget(model), RandomOffers(seed=0))
    engine.generate(PROMPT, max_new_tokens=8, temperature=1.0, seed=0)
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before
    assert model.config._attn_implementation == "sdpa"
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_facts_take_the_stop_ids_where_generate_does():
    """A model whose stop ids stand in one configuration only must not run past its end."""
    model = tiny_model()
    assert TransformersTarget(model).facts.stop_ids == frozenset()
    model.config.eos_token_id = 5
    assert TransformersTarget(model).facts.stop_ids == {5}
    for value in ([7, 9], (9, 7), torch.tensor([7, 9]), np.array([7, 9])):
        model.generation_config.eos_token_id = value
        assert TransformersTarget(model).facts.stop_ids == {7, 9}
        assert set(map(type, TransformersTarget(model).facts.stop_ids)) == {int}
    model.generation_config.eos_token_id = torch.tensor(7)
    assert TransformersTarget(model).facts.stop_ids == {7}
    for wrong in ("a", [1.5]):
        model.generation_config.eos_token_id = wrong
        with pytest.raises(UnsupportedModel, match=r"'eos_token_id' must be an id or a list of ids \(got"):
            TransformersTarget(model)
    model.generation_config.eos_token_id = None
    assert TransformersTarget(model).facts.context_limit == 64
    assert TransformersTarget(model).facts.vocab_size == 64


@pytest.mark.parametrize(
    "change",
    [lambda model: model.half(), lambda model: model.double(), lambda model: model.resize_token_embeddings(40)],
    ids=["cast down", "cast up", "resized"],
)
def test_a_model_that_is_another_one_by_now_is_told_before_anything_is_emitted(change):
    """Its first token came from a row of the model that it was; the second failed inside of a kernel."""
    model = tiny_model(dtype=torch.float32)
    engine = engine_on(TransformersTarget(model))
    engine.generate(PROMPT, max_new_tokens=4)
    change(model)
    with pytest.raises(TargetError, match=r"cast, moved or resized .* make the target and its engine again"):
        engine.generate(PROMPT, max_new_tokens=4)
    again = engine_on(TransformersTarget(model)).generate(PROMPT, max_new_tokens=4)
    assert again.token_ids == library_greedy(model, PROMPT, 4)


def test_a_call_with_a_stale_ticket_changes_nothing():
    """A late call of a cancelled request must not touch the cache of whoever owns it now."""
    target = CountingTarget(shared_model())
    session = target.open(1, max_tokens=40)
    session.prefill(Ticket(1, 0, 0), PROMPT)
    session.verify_linear(Ticket(1, 1, 0), 3, [4, 5])
    before = (list(target.cache.ids), session.num_committed, len(target.fed))
    session.cancel()
    for call in (
        lambda: session.commit(Ticket(1, 1, 0), 2),
        lambda: session.verify_linear(Ticket(1, 2, 0), 3, []),
        lambda: session.prefill(Ticket(1, 2, 0), PROMPT),
        lambda: session.commit(Ticket(2, 1, 1), 2),
    ):
        with pytest.raises(StaleEpoch, match="cancelled or replaced"):
            call()
        assert (list(target.cache.ids), session.num_committed, len(target.fed)) == before
    session.commit(Ticket(1, 1, 1), 2)
    assert list(target.cache.ids) == [*PROMPT, 3, 4]
    session.close()
    with pytest.raises(StaleEpoch):
        session.commit(Ticket(1, 1, 1), 0)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError("no memory"), KeyboardInterrupt()])
def test_a_forward_that_fails_halfway_leaves_no_half_written_layer(layer, error):
    """Layers that ran before the failure hold keys that the others lack; the next forward would mix them."""
    model = tiny_model()
    target = CheckedTarget(model)
    expected = engine_on(target).generate(PROMPT, max_new_tokens=8).token_ids
    is_on = [False]

    def hook(module, inputs):
        if is_on[0]:
            raise error

    model.model.layers[layer].mlp.register_forward_pre_hook(hook)
    session = target.open(7, max_tokens=40)
    session.prefill(Ticket(7, 0, 0), (*PROMPT, 1))
    is_on[0] = True
    with pytest.raises(TargetError if isinstance(error, RuntimeError) else KeyboardInterrupt) as caught:
        session.verify_linear(Ticket(7, 1, 0), 3, [4, 5])
    if isinstance(error, RuntimeError):
        assert caught.value.round_id == 1
        assert "RuntimeError: no memory" in str(caught.value)
        assert caught.value.__cause__ is error
    is_on[0] = False
    session.close()
    target.cache.check((*PROMPT, 1))
    assert engine_on(target).generate(PROMPT, max_new_tokens=8).token_ids == expected
    assert target.worst < TOLERANCE


def test_a_model_that_cannot_skip_its_head_gives_the_same_rows():
    """A model without ``logits_to_keep`` returns rows for everything fed; the wrong ones may not be taken."""
    model = tiny_model()
    target = TransformersTarget(model)
    target._can_skip_head = False
    result = engine_on(target, Oracle(plain("llama", "greedy").token_ids, wrong_at=2)).generate(
        PROMPT, max_new_tokens=12
    )
    assert result.token_ids == plain("llama", "greedy").token_ids[:12]


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_an_eager_model_stays_eager(kind):
    """Swapping the attention of a model that was loaded with another one would change its numbers."""
    model = AutoModelForCausalLM.from_config(tiny_config(kind), attn_implementation="eager", dtype=torch.float64).eval()
    model.load_state_dict(shared_model(kind).state_dict())
    target = CheckedTarget(model)
    result = engine_on(target, Oracle(plain(kind, "greedy").token_ids, 1)).generate(PROMPT, max_new_tokens=10)
    assert model.config._attn_implementation == "eager"
    assert result.token_ids == library_greedy(model, PROMPT, 10)
    assert target.worst < 1e-5  # eager attention rounds to float32 in every dtype
