"""Cases B: greedy output that differs from the target alone."""

from __future__ import annotations

import pytest
import torch
from models import KINDS, CheckedTarget, engine_on, random_table, shared_model, tiny_model

from specframe import Strategy, TransformersTarget, pure
from specframe.engine import Engine
from specframe.strategy import DrafterUse, Length
from specframe.testing import Adversary, Oracle, TableTarget


def counting_table():
    """Return a table in which 1, 1 is followed by 2, and any other id by the next one."""
    return TableTarget(
        lambda ids: [4.0 * (token == (2 if ids == (1, 1) else (ids[-1] + 1) % 5)) for token in range(5)],
        vocab_size=5,
        order=2,
    )


def test_b1_first_draft_token_is_verified():
    """A one-token draft that is committed without verification says 1 where the target says 2."""
    lookup = Strategy(
        drafters=(DrafterUse("prompt_lookup", {"min_ngram": 1, "length": "fixed"}),), length=Length(max_tokens=1)
    )
    for engine in (
        engine_on(counting_table(), Adversary(lambda context, index: 1 if index == 0 else None)),
        Engine(counting_table(), strategy=lookup),
    ):
        result = engine.generate([1, 1, 1], max_new_tokens=12)
        assert result.token_ids == (2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3)
        assert result.stats.num_proposed > 0


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("offered", [0, 1, 2, 3, 4])
def test_b1_any_block_of_any_token_leaves_the_output_alone(length, offered):
    """A block whose last, first or middle token is taken on trust shows for the token that the target would not say."""
    expected = tuple(counting_table().greedy([1, 1, 1], 12))
    constant = Adversary(lambda context, index: offered)
    shifted = Adversary(lambda context, index: (context[-1] + offered) % 5)
    for drafter in (constant, shifted):
        result = engine_on(counting_table(), drafter, length=length).generate([1, 1, 1], max_new_tokens=12)
        assert result.token_ids == expected


@pytest.mark.parametrize("kind", KINDS)
def test_b3_positions_and_masks_of_the_verify_forward(kind):
    """A block at shifted positions, or under a mask of another width, is verified as if it stood elsewhere."""
    model = shared_model(kind)
    prompt = [9]
    full = engine_on(TransformersTarget(model)).generate(prompt, max_new_tokens=14).token_ids
    seen = []

    def hook(module, inputs, arguments):
        hidden = inputs[0] if inputs else arguments["hidden_states"]
        tensors = [value for value in (*inputs, *arguments.values()) if isinstance(value, torch.Tensor)]
        mask = next((value for value in tensors if value.ndim == 4), None)
        seen.append((hidden.shape[1], arguments.get("position_ids"), mask))

    layers = model.transformer.h if kind == "gpt2" else model.model.layers
    target = CheckedTarget(model)
    engine = engine_on(target, Oracle(full, wrong_at=2), length=5)
    starts = []

    class Spy(CheckedTarget):
        def forward(self, ids, *, num_rows):
            starts.append(len(self.cache.ids) - len(ids))
            handle = layers[0].register_forward_pre_hook(hook, with_kwargs=True)
            try:
                return TransformersTarget.forward(self, ids, num_rows=num_rows)
            finally:
                handle.remove()

    assert engine.generate(prompt, max_new_tokens=14).token_ids == full
    assert target.worst < 1e-10
    result = engine_on(Spy(model), Oracle(full, wrong_at=2), length=5).generate(prompt, max_new_tokens=14)
    assert result.token_ids == full
    assert [size for size, _, _ in seen] == [1, *(1 + record.num_proposed for record in result.records[1:])]
    assert max(size for size, _, _ in seen) == 6
    for start, (size, positions, mask) in zip(starts, seen, strict=True):
        if positions is not None:
            assert positions.tolist() == [list(range(start, start + size))]
        if size > 1:
            assert mask.shape == (1, 1, size, start + size)
    assert starts == [
        0,
        *(1 + sum(r.num_emitted for r in result.records[:i]) - 1 for i in range(1, len(result.records))),
    ]


TIED = {0: [1.0, 3.0, 3.0, 0.0], 1: [2.0, 0.0, 0.0, 2.0], 2: [0.0] * 4, 3: [-1.0, -1.0, 5.0, 5.0]}


@pytest.mark.parametrize("processors", [(), (pure(lambda ids, scores: scores),)], ids=["raw", "processed"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_b4_ties_are_broken_alike_in_one_row_and_in_many(dtype, processors):
    """A tie that one path breaks upwards and the other downwards is a difference that no tolerance may hide."""
    target = TableTarget(lambda ids: TIED[ids[-1]], vocab_size=4, dtype=dtype)
    plain = engine_on(target).generate([3], max_new_tokens=9, processors=processors)
    assert plain.token_ids == (2, 0, 1, 0, 1, 0, 1, 0, 1)  # the lowest id of equals
    assert [record.min_margin for record in plain.records] == [0.0] * 9
    for wrong_at in (0, 1, 2, None):
        drafter = Oracle(plain.token_ids, wrong_at)
        result = engine_on(target, drafter).generate([3], max_new_tokens=9, processors=processors)
        assert result.token_ids == plain.token_ids
        assert {record.min_margin for record in result.records} == {0.0}
    other = Adversary(lambda context, index: {3: 3, 2: 3, 0: 2, 1: 3}[context[-1]])  # the other of the two equals
    result = engine_on(target, other).generate([3], max_new_tokens=9, processors=processors)
    assert result.token_ids == plain.token_ids
    assert result.stats.num_accepted == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_b4_a_mismatch_is_a_near_tie_only_below_a_measured_bound(dtype):
    """A loose tolerance hides a fault; a mismatch must have a margin that the measured row difference can explain."""
    model = tiny_model(dtype=dtype)
    with torch.no_grad():  # every second id is the one before, but for a hair: planted near-ties at every position
        weight = model.lm_head.weight
        weight[1::2] = weight[::2] * (1 + 1e-7)

    class Measuring(CheckedTarget):
        """Compare each row with that of a one-row forward, which is what plain decoding reads."""

        def forward(self, ids, *, num_rows):
            logits = TransformersTarget.forward(self, ids, num_rows=num_rows)
            context = self.cache.ids[: len(self.cache.ids) - len(ids)]
            for index in range(num_rows):
                single = steps(context + list(ids)[: len(ids) - num_rows + index + 1])
                self.worst = max(self.worst, float((logits[index] - single).abs().max()))
            return logits

    def steps(ids):
        key = tuple(ids)
        if key not in known:
            session_target = TransformersTarget(model, prefill_chunk=1)
            engine_on(session_target).generate(ids, max_new_tokens=1)
            known[key] = session_target._prompt_row[1][0]
        return known[key]

    known = {}
    prompt = [5, 9, 12]
    plain = engine_on(TransformersTarget(model, prefill_chunk=1)).generate(prompt, max_new_tokens=10)
    assert plain.stats.min_margin < 1e-5 or dtype == torch.bfloat16
    target = Measuring(model)
    result = engine_on(target, Oracle(plain.token_ids, wrong_at=3)).generate(prompt, max_new_tokens=10)
    bound = 2 * target.worst
    differing = [i for i, (a, b) in enumerate(zip(plain.token_ids, result.token_ids, strict=True)) if a != b]
    if dtype is torch.float64:
        assert not differing
        assert bound < 1e-12
    elif differing:
        top = steps([*prompt, *plain.token_ids[: differing[0]]]).double().topk(2).values
        assert float(top[0] - top[1]) <= bound
    assert bound < 1e-4 or dtype is torch.bfloat16


def test_b4_plain_greedy_and_processed_greedy_share_one_choice():
    """A raw path with its own argmax may break a tie or read a margin in its own way."""
    target = random_table()
    raw = engine_on(target, Oracle(target.greedy([1, 2], 9), 1)).generate([1, 2], max_new_tokens=9)
    same = pure(lambda ids, scores: scores)
    processed = engine_on(target, Oracle(target.greedy([1, 2], 9), 1)).generate(
        [1, 2], max_new_tokens=9, processors=[same]
    )
    assert raw.token_ids == processed.token_ids
    assert [r.min_margin for r in raw.records] == [r.min_margin for r in processed.records]
