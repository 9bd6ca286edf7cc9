"""The transactional cache: against a naive model, against misuse, and without copies of the past."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from models import PROMPT, engine_on, shared_model, tiny_model
from transformers import DynamicCache

from specframe import CacheError, TransformersTarget
from specframe.cache import BufferLayer, TransactionalCache
from specframe.testing import Oracle

HEADS, DIM, NUM_LAYERS = 2, 3, 2


def states(ids, layer, kind):
    """Return keys or values that say which id, which layer and which of the two they are, ``[1, heads, len, dim]``."""
    base = torch.tensor(ids, dtype=torch.float64)[None, None, :, None]
    heads = torch.arange(HEADS)[None, :, None, None] / 10
    return (base + 1000 * (layer + 1) + 100_000 * kind + heads).expand(1, HEADS, len(ids), DIM).clone()


class CacheMachine(RuleBasedStateMachine):
    """The cache against two lists: what is committed, and what is provisional."""

    @initialize()
    def make(self):
        self.cache = TransactionalCache(NUM_LAYERS)
        self.committed, self.provisional = [], []
        self.transaction = None
        self.finished = []
        self.next_id = 0

    @precondition(lambda self: self.transaction is None)
    @rule()
    def begin(self):
        self.transaction = self.cache.begin()

    @precondition(lambda self: self.transaction is not None)
    @rule(num_tokens=st.integers(0, 90))
    def append(self, num_tokens):
        ids = list(range(self.next_id, self.next_id + num_tokens))
        self.next_id += num_tokens
        self.transaction.append_provisional(ids)
        for index, layer in enumerate(self.cache.layers):
            if ids:
                layer.update(states(ids, index, 0), states(ids, index, 1))
        self.provisional += ids

    @precondition(lambda self: self.transaction is not None)
    @rule(data=st.data())
    def commit(self, data):
        num_tokens = data.draw(st.integers(0, len(self.provisional)))
        self.transaction.commit_prefix(num_tokens)
        self.committed += self.provisional[:num_tokens]
        del self.provisional[:num_tokens]

    @precondition(lambda self: self.transaction is not None)
    @rule(data=st.data())
    def rollback(self, data):
        num_kept = data.draw(st.integers(0, len(self.provisional)))
        self.transaction.rollback_to(len(self.committed) + num_kept)
        del self.provisional[num_kept:]

    @precondition(lambda self: self.transaction is not None)
    @rule()
    def finalize(self):
        self.transaction.finalize()
        self.finished.append(self.transaction)
        self.transaction = None
        self.provisional = []

    @precondition(lambda self: self.transaction is None)
    @rule(data=st.data())
    def truncate(self, data):
        length = data.draw(st.integers(0, len(self.committed)))
        self.cache.truncate(length)
        del self.committed[length:]

    @precondition(lambda self: self.transaction is None)
    @rule()
    def release(self):
        self.cache.release()
        self.committed = []

    @rule(num_tokens=st.integers(0, 200))
    def reserve(self, num_tokens):
        self.cache.reserve(num_tokens)

    @precondition(lambda self: self.transaction is not None)
    @rule(excess=st.integers(1, 5))
    def misuse_inside(self, excess):
        num_committed, num_all = len(self.committed), len(self.committed) + len(self.provisional)
        for call in (
            lambda: self.cache.begin(),
            lambda: self.cache.truncate(0),
            lambda: self.cache.release(),
            lambda: self.transaction.commit_prefix(len(self.provisional) + excess),
            lambda: self.transaction.commit_prefix(-excess),
            lambda: self.transaction.rollback_to(num_committed - excess),
            lambda: self.transaction.rollback_to(num_all + excess),
        ):
            with pytest.raises(CacheError):
                call()
            self.contents_are_the_models()

    @precondition(lambda self: self.transaction is None)
    @rule(excess=st.integers(1, 5))
    def misuse_outside(self, excess):
        for length in (len(self.committed) + excess, -excess):
            with pytest.raises(CacheError):
                self.cache.truncate(length)
            self.contents_are_the_models()

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def misuse_of_a_finished_transaction(self, data):
        stale = data.draw(st.sampled_from(self.finished))
        for call in (
            lambda: stale.append_provisional([1]),
            lambda: stale.commit_prefix(0),
            lambda: stale.rollback_to(len(self.committed)),
            lambda: stale.finalize(),
        ):
            with pytest.raises(CacheError):
                call()
            self.contents_are_the_models()

    @invariant()
    def contents_are_the_models(self):
        ids = self.committed + self.provisional
        assert self.cache.ids == ids
        assert self.cache.num_committed == len(self.committed)
        assert self.cache.num_provisional == len(self.provisional)
        assert self.cache.get_seq_length() == len(ids)
        self.cache.check(ids)
        for index, layer in enumerate(self.cache.layers):
            if not layer.is_initialized:
                assert not ids
                continue
            assert layer.get_mask_sizes(3) == (len(ids) + 3, 0)
            assert torch.equal(layer.keys[:, :, : layer.length], states(ids, index, 0))
            assert torch.equal(layer.values[:, :, : layer.length], states(ids, index, 1))


CacheMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCacheAgainstANaiveModel = CacheMachine.TestCase


def test_update_returns_views_of_exactly_what_counts():
    """Attention that is handed the buffer's tail attends to zeros; one that is handed a copy costs the whole past."""
    layer = BufferLayer()
    layer.update(states([1, 2], 0, 0), states([1, 2], 0, 1))
    keys, values = layer.update(states([3], 0, 0), states([3], 0, 1))
    assert torch.equal(keys, states([1, 2, 3], 0, 0))
    assert torch.equal(values, states([1, 2, 3], 0, 1))
    assert keys.data_ptr() == layer.keys.data_ptr()
    assert values.data_ptr() == layer.values.data_ptr()


def test_buffers_grow_by_doubling_or_at_once_by_reservation():
    """A buffer that grows by a constant copies the past in every round of a long text."""
    layer = BufferLayer()
    capacities = []
    for token in range(1000):
        layer.update(states([token], 0, 0), states([token], 0, 1))
        capacities.append(layer.keys.shape[2])
    assert sorted(set(capacities)) == [64, 128, 256, 512, 1024]
    assert torch.equal(layer.keys[:, :, :1000], states(list(range(1000)), 0, 0))

    cache = TransactionalCache(1)
    cache.reserve(700)
    layer = cache.layers[0]
    layer.update(states([0], 0, 0), states([0], 0, 1))
    buffer = layer.keys
    for token in range(1, 700):
        layer.update(states([token], 0, 0), states([token], 0, 1))
    assert layer.keys is buffer
    assert buffer.shape[2] == 704


def test_the_unused_part_of_a_buffer_is_zero():
    """Uninitialised memory may hold NaN, which a masked sum still spreads."""
    layer = BufferLayer()
    layer.update(states([1], 0, 0), states([1], 0, 1))
    layer.update(states(list(range(70)), 0, 0), states(list(range(70)), 0, 1))
    assert not layer.keys[:, :, 71:].any()
    assert not layer.values[:, :, 71:].any()


def test_check_tells_a_layer_that_does_not_hold_the_ids():
    """A layer that ran ahead of the ids, or missed some, must not go unnoticed."""
    cache = TransactionalCache(2)
    transaction = cache.begin()
    transaction.append_provisional([1, 2])
    cache.layers[0].update(states([1, 2], 0, 0), states([1, 2], 0, 1))
    cache.layers[1].update(states([1], 1, 0), states([1], 1, 1))
    with pytest.raises(CacheError, match="layer 1 holds 1 positions, the cache stands for 2 ids"):
        cache.check([1, 2])
    with pytest.raises(CacheError, match="which are not"):
        cache.check([1, 3])


def test_release_frees_the_buffers():
    """A released cache that keeps its buffers keeps the memory of the longest request."""
    cache = TransactionalCache(1)
    transaction = cache.begin()
    transaction.append_provisional([1])
    cache.layers[0].update(states([1], 0, 0), states([1], 0, 1))
    transaction.commit_prefix(1)
    transaction.finalize()
    cache.release()
    assert cache.layers[0].keys is None
    assert cache.layers[0].values is None
    assert cache.ids == []


def largest_allocation(run):
    """Return the most bytes that one operation allocated while ``run`` ran, and the names of all operations."""
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profile:
        run()
    events = profile.events()
    return max(event.self_cpu_memory_usage for event in events), {event.name for event in events}


@pytest.fixture(scope="module")
def long_model():
    return tiny_model("llama", max_position_embeddings=2048, intermediate_size=32)


LONG_PAST = [5 + token % 50 for token in range(500)]
LONG_PAST_BYTES = 2 * 500 * 8 * 8  # one layer's keys: KV heads, positions, head dim, float64


@pytest.mark.parametrize("speculates", [False, True])
def test_a_round_neither_copies_nor_expands_the_past(long_model, speculates):
    """A cache that concatenates, or attention that repeats keys for every head, costs the context in every round."""
    target = TransformersTarget(long_model)
    known = engine_on(target).generate(LONG_PAST, max_new_tokens=16).token_ids
    target.reset()
    engine = engine_on(target, Oracle(known, wrong_at=1)) if speculates else engine_on(target)
    stream = engine.stream(LONG_PAST, max_new_tokens=16)
    next(stream)
    next(stream)
    pieces = []
    largest, names = largest_allocation(lambda: pieces.extend(next(stream) for _ in range(3)))
    stream.close()
    assert [len(piece.token_ids) for piece in pieces] == [1 + speculates] * 3
    assert "aten::scaled_dot_product_attention" in names
    assert "aten::repeat_interleave" not in names
    assert largest < LONG_PAST_BYTES / 2  # the largest is the mask of the block's rows


@pytest.mark.parametrize("num_rows", [1, 5])
def test_the_profile_sees_what_the_librarys_cache_copies(long_model, num_rows):
    """The negative control: a profile that does not see concatenation would pass any cache."""
    arguments = {TransformersTarget(long_model)._cache_argument: DynamicCache(config=long_model.config)}
    with torch.inference_mode():
        long_model(input_ids=torch.tensor([LONG_PAST]), **arguments)
        ids = torch.tensor([PROMPT[:num_rows]])
        largest, names = largest_allocation(lambda: long_model(input_ids=ids, **arguments))
    assert "aten::cat" in names
    assert largest >= LONG_PAST_BYTES


def test_a_rollback_and_a_commit_move_a_length_only():
    """A rollback that slices its buffers anew allocates, and one that zeroes them writes, the whole past."""
    cache = TransactionalCache(1)
    cache.reserve(600)
    transaction = cache.begin()
    ids = list(range(500))
    transaction.append_provisional(ids)
    cache.layers[0].update(states(ids, 0, 0), states(ids, 0, 1))
    with torch.profiler.profile() as profile:
        transaction.commit_prefix(400)
        transaction.rollback_to(450)
        transaction.finalize()
        cache.truncate(300)
    assert not [event.name for event in profile.events() if event.name.startswith("aten::")]
    assert len(cache.ids) == 300


def test_a_cut_that_is_interrupted_halfway_is_finished_later(monkeypatch):
    """Ids that are dropped before every layer is cut leave keys in some layers that nobody knows of."""
    cache = TransactionalCache(2)
    transaction = cache.begin()
    transaction.append_provisional([1, 2, 3])
    for index, layer in enumerate(cache.layers):
        layer.update(states([1, 2, 3], index, 0), states([1, 2, 3], index, 1))
    with monkeypatch.context() as patch:
        patch.setattr(cache.layers[1], "cut", raise_interrupt)
        with pytest.raises(KeyboardInterrupt):
            transaction.rollback_to(1)
    transaction.rollback_to(1)
    cache.check([1])


def raise_interrupt(length):
    raise KeyboardInterrupt


def test_a_plain_round_walks_neither_the_model_nor_the_layers_of_its_cache(monkeypatch):
    """Looking for a device among parameters, and cutting layers that hold nothing to cut, costs every round a tenth of 1 ms."""
    counts = dict.fromkeys(("parameters", "cut"), 0)

    def count(kind, name):
        original = getattr(kind, name)

        def counted(self, *args, **kwargs):
            counts[name] += 1
            return original(self, *args, **kwargs)

        monkeypatch.setattr(kind, name, counted)

    engine = engine_on(TransformersTarget(shared_model()))
    with engine.stream(PROMPT, max_new_tokens=5) as stream:
        next(stream)
        count(torch.nn.Module, "parameters")
        count(BufferLayer, "cut")
        next(stream)
        assert counts == {"parameters": 0, "cut": 0}


def test_reuse_across_requests_keeps_one_buffer():
    """A buffer made anew for every request copies or frees what the next turn of a chat needs."""
    target = TransformersTarget(shared_model())
    engine = engine_on(target)
    first = engine.generate(PROMPT, max_new_tokens=4)
    pointer = target.cache.layers[0].keys.data_ptr()
    engine.generate((*PROMPT, *first.token_ids), max_new_tokens=4)
    assert target.cache.layers[0].keys.data_ptr() == pointer
