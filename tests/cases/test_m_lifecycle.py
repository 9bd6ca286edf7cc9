"""Cases M1 and M2: what one request leaves to the next, and memory that grows with requests."""

from __future__ import annotations

import gc

import pytest
import torch
from models import PROMPT, engine_on, random_table, shared_model, tiny_model
from transformers import LogitsProcessor

from specframe import CacheError, Length, StaleEpoch, Ticket, TransformersTarget
from specframe.testing import Fault, LogitsDrafter, Machine, Oracle, RandomOffers, ScriptedDrafter, failing

TARGETS = {"table": (random_table, (1, 2)), "transformers": (lambda: TransformersTarget(shared_model()), PROMPT)}
OTHER = (7, 3, 9)


def assert_as_new(engine, fresh, prompt=OTHER):
    """Assert that a request gives what it gives on a new engine, but for its seconds."""
    found, expected = (one.generate(prompt, max_new_tokens=9, log_probs=True) for one in (engine, fresh))
    assert found.token_ids == expected.token_ids
    assert (found.finish_reason, found.events) == (expected.finish_reason, expected.events)
    assert found.log_probs == pytest.approx(expected.log_probs, abs=1e-10)
    counts = [
        [(record.num_proposed, record.num_accepted, record.num_emitted) for record in result.records]
        for result in (found, expected)
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", TARGETS)
def test_m1_surplus_tokens_of_a_block_do_not_reach_the_next_request(kind):
    """A request that ends with three proposals to spare, then another: it must not start with the first one's tokens."""
    make, prompt = TARGETS[kind]
    full = engine_on(make()).generate(prompt, max_new_tokens=12).token_ids
    engine = engine_on(make(), Oracle(full), length=6)
    stream = engine.stream(prompt, max_new_tokens=12, criterion=lambda ids: ids.shape[1] == len(prompt) + 4)
    assert [piece.token_ids for piece in stream] == [full[:1], full[1:4]]
    last = stream.result.records[-1]
    assert (last.num_proposed, last.num_kept) == (6, 3)
    for again in (OTHER, prompt, full[:3]):
        assert_as_new(engine, engine_on(make(), Oracle(full), length=6), again)


def abort_by_closing(scene):
    scene["stream"].close()


def abort_by_error(scene):
    raise RuntimeError("device lost")


def abort_by_interrupt(scene):
    raise KeyboardInterrupt


@pytest.mark.parametrize("abort", [abort_by_closing, abort_by_error, abort_by_interrupt])
@pytest.mark.parametrize(("method", "is_after"), [("verify_linear", False), ("verify_linear", True), ("commit", False)])
@pytest.mark.parametrize("kind", TARGETS)
def test_m1_an_abort_in_a_round_leaves_the_state_of_the_last_commit(kind, method, is_after, abort):
    """Provisional tokens of an aborted round are nobody's; what is left is committed text, or nothing after a failure."""
    make, prompt = TARGETS[kind]
    full = engine_on(make()).generate(prompt, max_new_tokens=12).token_ids
    target, scene = make(), {}
    fault = Fault(method, lambda *_: abort(scene), at_call=1, is_after=is_after)
    engine = engine_on(failing(target, fault), Oracle(full, wrong_at=2))
    scene["stream"] = engine.stream(prompt, max_new_tokens=12)
    ids = []
    try:
        for piece in scene["stream"]:
            ids += piece.token_ids
    except (RuntimeError, KeyboardInterrupt):
        assert abort is not abort_by_closing
    assert fault.num_calls == 2
    text = [*prompt, *ids]
    left = target.cached_ids if kind == "table" else target.cache.ids
    assert left == ([] if abort is abort_by_error else text[:-1])
    if kind == "transformers":
        target.cache.check(left)
    assert_as_new(engine, engine_on(make(), Oracle(full, wrong_at=2)))


@pytest.mark.parametrize("kind", TARGETS)
def test_m1_a_session_is_owned_by_itself_and_not_by_its_id(kind):
    """The same request id again: the first one's late calls must not edit what the second one owns."""
    make, prompt = TARGETS[kind]
    target = make()
    first = target.open(7, max_tokens=40)
    first.prefill(Ticket(7, 0, 0), prompt)
    first.verify_linear(Ticket(7, 1, 0), 3, (4, 5))
    first.close()
    second = target.open(7, max_tokens=40)
    second.prefill(Ticket(7, 0, 0), prompt)
    second.verify_linear(Ticket(7, 1, 0), 6, (8,))
    for late in (
        lambda: first.commit(Ticket(7, 1, 0), 3),
        lambda: first.commit(Ticket(7, 1, first.epoch), 3),
        lambda: first.commit(Ticket(7, 1, first.epoch), 1),
        lambda: first.verify_linear(Ticket(7, 2, first.epoch), 3, ()),
        lambda: first.prefill(Ticket(7, 0, first.epoch), prompt),
    ):
        with pytest.raises((StaleEpoch, CacheError)):
            late()
    for foreign in (Ticket(8, 1, 0), Ticket(7, 1, 1)):
        with pytest.raises(StaleEpoch):
            second.commit(foreign, 1)
    second.cancel()
    with pytest.raises(StaleEpoch):
        second.commit(Ticket(7, 1, 0), 1)
    second.commit(Ticket(7, 1, second.epoch), 2)
    second.check([*prompt, 6, 8])
    second.close()


def test_m1_adaptive_lengths_and_configurations_are_those_of_the_request():
    """A length that was learned, or a configuration that was changed, by one request decides about the next."""

    def run(chance):
        machine = Machine(lambda num_proposed: 1.0 + 0.1 * num_proposed)
        drafter = ScriptedDrafter(machine, lambda emitted, position: chance[0], token_s=0.05)
        engine = machine.engine(drafter, length=Length("adaptive", 8))

        def limits(value):
            chance[0] = value
            result = engine.generate([0], max_new_tokens=60)
            return [[share.limit for share in record.drafters] for record in result.records]

        return limits

    used, fresh = run([0.0]), run([0.0])
    used(0.0)
    assert used(0.9) == fresh(0.9)

    model = tiny_model()
    before = model.config.to_dict(), model.generation_config.to_dict()
    engine = engine_on(TransformersTarget(model), RandomOffers(seed=1))
    strategy = engine.strategy
    engine.generate(PROMPT, max_new_tokens=5, temperature=0.7, seed=3, top_k=5)
    assert (model.config.to_dict(), model.generation_config.to_dict()) == before
    assert engine.strategy is strategy


class Opaque(LogitsProcessor):
    """A processor that is not declared pure, so that the request runs without speculation."""

    def __call__(self, input_ids, scores):
        return scores


def live_tensors():
    """Return how many tensors there are, and the bytes of their storages; what was frozen before is not counted."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    return len(tensors), sum(storages.values())


def test_m2_tensors_of_a_request_are_gone_after_it():
    """Two hundred requests that end by a stop id, a budget, an error or a cancel, half of them without speculation."""
    engine = engine_on(
        TransformersTarget(shared_model()),
        RandomOffers(seed=0),
        LogitsDrafter(lambda ids: [0.0] * 64, num_tokens=2),
    )
    full = engine.generate(PROMPT, max_new_tokens=8, temperature=1.0, seed=1).token_ids

    def request(index):
        arguments = {"temperature": 1.0, "seed": 1, "max_new_tokens": 6}
        if index % 2:
            arguments["processors"] = [Opaque()]
        end = index // 2 % 4
        if end == 0:
            arguments["stop_ids"] = [full[3]]
        elif end == 1:
            arguments["criterion"] = failing(lambda ids: False, Fault("__call__", RuntimeError(), at_call=3))
        stream = engine.stream(PROMPT[index % 3 :], **arguments)
        try:
            for number, _ in enumerate(stream):
                if end == 2 and number == 1:
                    break
        except RuntimeError:
            assert end == 1

    gc.collect()
    gc.freeze()
    found = {}
    try:
        for index in range(200):
            request(index)
            if index >= 24:  # by then everything was made anew, and the same requests come over and over
                found.setdefault(index % 24, set()).add(live_tensors())
    finally:
        gc.unfreeze()
    assert all(len(levels) == 1 for levels in found.values()), found
