"""The draft's session: aligned with the text after any history, confident or not, and at the end of its context."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from drafts import TableRunner, drafter, near_model, network, other_model, session_of
from hypothesis import given, settings
from hypothesis import strategies as st
from interrupts import interrupted
from models import KINDS, PROMPT, SLIDING_KINDS, CheckedTarget, engine_on, shared_model, tiny_model
from torch.utils._python_dispatch import TorchDispatchMode

import specframe_draft_model
from specframe import Engine, TransformersTarget
from specframe.proposal import Commit, Proposal, Round, lend
from specframe.testing import Fault, RandomOffers, failing
from specframe.views import first_layers
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftContextExceeded, DraftModel
from specframe_draft_model.network import Network


class Context:
    """The core's side of a round: greedy draws over target ids, noted with what they were drawn from."""

    def __init__(self, text, made):
        self.ids, self.drawn = list(text), []
        self._made = made

    def is_allowed(self, token):
        return True

    def is_exhausted(self):
        return False

    def push(self, token):
        self.ids.append(token)

    def draw(self, row, ids, node):
        self.drawn.append((list(self.ids), self._made.network.start, row.clone()))
        return SimpleNamespace(token=int(row.argmax()) if ids is None else int(ids[row.argmax()]), law=None)


def propose(session, made, text, *, offered=(), room=4, is_asked=True, vocab_size=64):
    """Let a session propose behind another drafter's offers; return what was proposed, and each draw's context, start, row."""
    context, proposal = Context(text, made), Proposal()
    round = Round(context, proposal, index=1, room=room, vocab_size=vocab_size, stop_ids=frozenset())
    lend(round, "other", lambda round: [round.offer(token) for token in offered])
    if is_asked:
        lend(round, "draft", session.propose)
    return proposal.ids, context.drawn


@given(st.data())
@settings(max_examples=60)
def test_after_any_history_the_cache_stands_for_the_text(data):
    """A key of a token that was refused, or a hole where another drafter's token was, poisons every row after it.

    Rounds with and without proposals, behind another drafter's, refused anywhere and accepted to the last token, which was
    never fed, in a context that is short or is not: each row is that of a fresh forward of what the draft may see, and after
    each commit the cache is a part of the text, less its last id.
    """
    model = other_model()
    limit = data.draw(st.sampled_from((None, 3, 4, 7)))
    made = drafter(model, context=limit, truncation="tail-v1")
    for _ in range(data.draw(st.integers(1, 2))):  # requests
        text = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=9))
        session = session_of(made)
        session.commit(Commit(tuple(text), 0))
        for _ in range(data.draw(st.integers(1, 5))):
            offered, room = data.draw(st.lists(st.integers(0, 5), max_size=2)), data.draw(st.integers(0, 4))
            is_asked = data.draw(st.booleans())
            proposed, drawn = propose(session, made, text, offered=offered, room=room, is_asked=is_asked)
            for index, (context, start, row) in enumerate(drawn):
                assert context == [*text, *proposed[: len(offered[:room]) + index]]
                assert limit is None or len(context) - start <= limit
                expected = model(input_ids=torch.tensor([context[start:]]), use_cache=False).logits[0, -1]
                assert torch.allclose(row, expected, atol=1e-4)
            accepted = data.draw(st.integers(0, len(proposed)))
            ids = (*proposed[:accepted], data.draw(st.integers(0, 5)))
            session.commit(Commit(ids, len(text), len(proposed), accepted))
            text.extend(ids)
            cached, start = list(made.network.ids), made.network.start
            assert cached == text[start : start + len(cached)]
            assert start + len(cached) <= len(text) - 1
            made.network.runner.cache.check(cached)
        session.close()


@pytest.mark.parametrize("window", [4, 8])
@pytest.mark.parametrize("kind", SLIDING_KINDS)
def test_behind_a_window_every_row_is_that_of_a_fresh_forward(kind, window):
    """Case D2: blocks of which 4, 3, 1 and 0 tokens stand, then a request that goes back across commits."""
    runner = CheckedTarget(tiny_model(kind, window=window))
    made = DraftModel(Network(runner), DraftModelOptions(model="unused"))
    for num_prompt in (15, 13):
        text = list(PROMPT[:num_prompt])
        session = session_of(made)
        session.commit(Commit(tuple(text), 0))
        for accepted in (4, 3, 1, 0):
            proposed, _ = propose(session, made, text)
            ids = (*proposed[:accepted], 1)
            session.commit(Commit(ids, len(text), 4, accepted))
            text.extend(ids)
        session.close()
    assert runner.worst < 1e-10


def test_the_tail_begins_at_half_the_context_and_never_in_a_proposal():
    """``tail-v1`` is a versioned rule: what the draft sees must not change under its name."""
    made = drafter(context=8, truncation="tail-v1")
    session = session_of(made)
    session.commit(Commit(tuple(range(5, 14)), 0))
    _, drawn = propose(session, made, range(5, 14), room=1)
    assert [(len(context), start) for context, start, _ in drawn] == [(9, 5)]  # the last 4
    session.commit(Commit((1, 2, 3, 4, 5), 9))
    text = [*range(5, 14), 1, 2, 3, 4, 5]
    _, drawn = propose(session, made, text, offered=(6, 7, 8, 9, 9, 9), room=7)
    assert [(len(context), start) for context, start, _ in drawn] == [
        (20, 13)
    ]  # from the pending id: 4 would be proposals
    assert (
        propose(session, made, text, offered=[6] * 9, room=12)[1] == []
    )  # more than the draft takes behind the pending id


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


@pytest.mark.parametrize(
    ("row", "target_ids", "num_proposed"),
    [
        ([9.0, 0.0, 0.0], [-1, 0, 1], 0),
        ([9.0, 0.0, 0.0], [7, 0, 1], 0),
        ([0.0, 0.0, 9.0], None, 0),
        ([9.0, 2.0, 0.0], [-1, 0, 1], 2),
    ],
)
def test_confidence_is_about_what_can_be_drawn(row, target_ids, num_proposed):
    """A column without a target id that counts as the likeliest lets draws go on where the draft knows nothing."""
    ids = torch.tensor(target_ids) if target_ids is not None else None
    runner = TableRunner(lambda context: row)
    made = DraftModel(Network(runner, ids), DraftModelOptions(model="unused", min_confidence=0.6))
    session = session_of(made, vocab_size=2)
    session.commit(Commit((0, 1), 0))
    proposed, _ = propose(session, made, (0, 1), room=2, vocab_size=10)
    assert len(proposed) == num_proposed


@pytest.mark.parametrize("options", [{}, {"min_confidence": 0.5}], ids=str)
def test_a_draft_of_noise_is_told_once_and_costs_one_forward(options):
    """A row of NaN that reads as not confident costs a forward each round, for ever, and nobody is told."""
    model = other_model()
    model.lm_head.weight.data.fill_(torch.nan)
    made = drafter(model, **options)
    fed = []
    run = made.network.runner.forward
    made.network.runner.forward = lambda ids, num_rows: fed.append(ids) or run(ids, num_rows=num_rows)
    target = TransformersTarget(shared_model())
    result = engine_on(target, made).generate(PROMPT, max_new_tokens=8)
    assert result.token_ids == Engine(target).generate(PROMPT, max_new_tokens=8).token_ids
    assert [event.message for event in result.events] == ["switched off: propose raised ProposalError"]
    assert len(fed) == 1


@pytest.mark.parametrize("num_prompt", [14, 30])
@pytest.mark.parametrize("where", ["option", "model"])
def test_past_the_drafts_context_it_is_off_or_sees_the_end_only(num_prompt, where, caplog):
    """Case C7: target limit 32, draft limit 16, proposals of 5. The target goes on to its own limit; the end is no failure."""
    prompt = (PROMPT * 2)[:num_prompt]
    target = TransformersTarget(tiny_model(max_position_embeddings=32))
    plain = Engine(target).generate(prompt, max_new_tokens=60)
    assert len(plain.token_ids) == 32 - num_prompt + 1

    def made(**options):
        if where == "option":
            return drafter(near_model(), context=16, **options)
        return drafter(near_model(max_position_embeddings=16), **options)

    with caplog.at_level(logging.INFO, logger="specframe"):
        result = engine_on(target, made(), length=5).generate(prompt, max_new_tokens=60)
    assert result.token_ids == plain.token_ids
    assert (result.stats.drafters["d0"].num_proposed > 0) == (num_prompt < 16)
    messages = [event.message for event in result.events if event.drafter]
    assert messages == ["off for the rest of the request: DraftContextExceeded"]
    told = [record for record in caplog.records if record.name == "specframe"]
    assert [(record.levelname, record.exc_info) for record in told] == [("INFO", None)]
    tail = made(truncation="tail-v1")
    result = engine_on(target, tail, length=5).generate(prompt, max_new_tokens=60)
    assert result.token_ids == plain.token_ids
    assert not [event for event in result.events if event.drafter]
    assert result.stats.drafters["d0"].num_proposed
    assert len(tail.network.ids) <= 16


def test_what_others_propose_ends_nothing():
    """A draft that is off because another drafter proposed much is lost though the text fits."""
    made = drafter(context=8)
    session = session_of(made)
    text = list(range(5, 12))
    session.commit(Commit(tuple(text), 0))
    assert propose(session, made, text, offered=(1, 2, 3), room=4)[0] == [1, 2, 3]
    assert len(propose(session, made, text)[0]) == 2  # a row for 7 ids, and one for 8
    session.commit(Commit((1, 2), 7))
    with pytest.raises(DraftContextExceeded, match="has 9 tokens, the draft's context takes 8"):
        propose(session, made, [*text, 1, 2])


class Asked(TorchDispatchMode):
    """Counts what makes the host wait for a device: values that it asks for, and shapes that depend on values."""

    num_waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.num_waits += name in (
            "_local_scalar_dense",
            "nonzero",
            "is_nonzero",
            "equal",
            "masked_select",
            "unique_dim",
        )
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_costs_one_synchronisation(kind):
    """The row that comes to the host is the one that a forward waits for; the core draws from it there."""
    made = network(tiny_model(kind))
    made.take()
    for ids in (PROMPT, (7,)):
        with Asked() as asked:
            row = made.feed(ids)
        assert asked.num_waits == 0
        assert row.device.type == "cpu"
    with Asked() as asked:  # a negative control
        assert row.max() >= row[0]
    assert asked.num_waits == 1


@pytest.mark.parametrize("num_ids", [1, 3, 4, 5, 8, 9])
def test_a_long_context_is_fed_in_chunks(num_ids):
    """At a chunk's edge a position is easily fed twice, or left out."""
    model = other_model(dtype=torch.float64)
    made = Network(TransformersTarget(model, prefill_chunk=4))
    made.take()
    row = made.feed(PROMPT[:num_ids])
    expected = model(input_ids=torch.tensor([PROMPT[:num_ids]]), use_cache=False).logits[0, -1]
    assert torch.allclose(row, expected, atol=1e-12)
    assert made.ids == PROMPT[:num_ids]


def test_a_forward_that_fails_midway_leaves_what_was_there():
    """Chunks that went through before the failure are no part of any text that anyone knows of."""
    model = near_model()
    runner = TransformersTarget(model, prefill_chunk=4)
    made = DraftModel(Network(runner), DraftModelOptions(model="unused"))
    run, num_calls = runner.forward, 0

    def forward(ids, *, num_rows):
        nonlocal num_calls
        num_calls += 1
        row = run(ids, num_rows=num_rows)
        if num_calls == 3:
            raise MemoryError("no more")
        return row

    runner.forward = forward
    target = TransformersTarget(shared_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=12).token_ids
    engine = engine_on(target, made)
    result = engine.generate(PROMPT, max_new_tokens=12)
    assert result.token_ids == expected
    assert [event.message for event in result.events] == ["switched off: propose raised MemoryError"]
    runner.cache.check([])
    again = engine.generate(PROMPT, max_new_tokens=12)
    assert again.token_ids == expected
    assert again.events == ()
    assert again.stats.drafters["d0"].num_accepted


@pytest.mark.parametrize("num_pieces", [0, 1, 2, 3])
def test_a_stream_that_is_closed_early_leaves_a_draft_that_works(num_pieces):
    """A session that is not given back makes every later request fail, without an error that anyone reads."""
    target, made = TransformersTarget(shared_model()), drafter(near_model())
    expected = Engine(target).generate(PROMPT, max_new_tokens=16).token_ids
    engine = engine_on(target, made)
    with engine.stream(PROMPT, max_new_tokens=16) as stream:
        for _ in range(num_pieces):
            next(stream)
    made.network.runner.cache.check(made.network.ids)
    result = engine.generate(PROMPT, max_new_tokens=16)
    assert result.token_ids == expected
    assert result.events == ()
    assert result.stats.drafters["d0"].num_accepted


@pytest.mark.parametrize("is_shared", [False, True])
def test_two_engines_on_one_target_draft_in_turns(is_shared):
    """One after the other, and from two threads; a draft that both use has one owner at a time."""
    target = TransformersTarget(shared_model())
    first = drafter(near_model())
    engines = [engine_on(target, first), engine_on(target, first if is_shared else drafter())]
    prompts = [PROMPT, PROMPT[:9]]
    expected = [Engine(target).generate(prompt, max_new_tokens=12, n=2, temperature=0.8, seed=1) for prompt in prompts]
    results = [None, None]

    def run(index):
        results[index] = engines[index].generate(prompts[index], max_new_tokens=12, n=2, temperature=0.8, seed=1)

    for index in (0, 1, 0):
        run(index)
    threads = [threading.Thread(target=run, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, right in zip(results, expected, strict=True):
        assert [result.token_ids for result in found] == [result.token_ids for result in right]
        assert all(result.events == () for result in found)
        assert all(result.stats.drafters["d0"].num_proposed for result in found)


def test_a_targets_layers_draft_beside_it_in_another_thread():
    """The layers are the target's own, so what a forward does to them meets the target's forward."""
    model = tiny_model()
    target = TransformersTarget(model)
    expected = Engine(target).generate(PROMPT, max_new_tokens=16).token_ids
    seen = []

    def run():
        made = DraftModel(network(first_layers(model, 1)), DraftModelOptions(layers=1))
        engine = Engine(TransformersTarget(model), {"draft_model": made})
        seen.extend(engine.generate(PROMPT, max_new_tokens=16).token_ids == expected for _ in range(3))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 6
    assert model.config._attn_implementation == "sdpa"


def test_samples_share_the_drafts_prefix():
    """``n`` generations of one prompt feed it to the draft once."""
    target, made = TransformersTarget(shared_model()), drafter(near_model())
    fed = []
    run = made.network.runner.forward
    made.network.runner.forward = lambda ids, num_rows: fed.append(len(ids)) or run(ids, num_rows=num_rows)
    arguments = {"max_new_tokens": 8, "n": 3, "temperature": 0.9, "seed": 2}
    results = engine_on(target, made, RandomOffers(seed=1)).generate(PROMPT, **arguments)
    assert [result.token_ids for result in results] == [
        result.token_ids for result in Engine(target).generate(PROMPT, **arguments)
    ]
    assert sum(length >= len(PROMPT) for length in fed) == 1


def test_a_draft_that_computes_a_nan_once_is_back_in_the_next_request():
    """A NaN that stays in the draft's cache would put the draft out in every later turn of a conversation."""
    model = near_model()
    projection = model.model.layers[0].self_attn.k_proj
    spoil = Fault("__call__", lambda key: torch.full_like(key, torch.nan), at_call=1, is_after=True)
    projection.forward = failing(projection.forward, spoil)
    made = DraftModel(Network(TransformersTarget(model)), DraftModelOptions(model="unused"))
    engine = engine_on(TransformersTarget(shared_model()), made)
    expected = Engine(TransformersTarget(shared_model())).generate(PROMPT, max_new_tokens=12).token_ids
    first, second = (engine.generate(PROMPT, max_new_tokens=12) for _ in range(2))
    assert first.token_ids == second.token_ids == expected
    assert [event.message for event in first.events] == ["switched off: propose raised ProposalError"]
    assert not second.events
    assert second.stats.drafters["d0"].num_accepted


def test_an_interrupt_at_any_line_of_the_draft_leaves_it_usable(request):
    """A cache that an interrupt left owned would put the draft out for good."""
    model, target = near_model(), TransformersTarget(shared_model())

    def run(engine):
        engine.reset()
        result = engine.generate(PROMPT, max_new_tokens=6)
        return result.token_ids, result.events, [record.num_accepted for record in result.records]

    made = DraftModel(Network(TransformersTarget(model)), DraftModelOptions(model="unused"))
    engine = engine_on(target, made)
    fresh = run(engine)
    for line in itertools.count(0, 1 if request.config.getoption("--full") else 5):
        is_over = interrupted(lambda: run(engine), line, folder=str(Path(specframe_draft_model.__file__).parent))
        assert run(engine) == fresh, line
        if is_over:
            break
    assert line > 100
