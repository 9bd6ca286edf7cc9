"""The engine: budgets, streams, threads, requests, prefixes and results."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest
import torch
from models import CHAT_TEMPLATE, PROMPT, CountingTarget, engine_on, random_table, shared_model, tiny_model

from specframe import (
    CacheError,
    DrafterUse,
    Engine,
    EngineBusy,
    GenerationError,
    InvalidRequest,
    InvalidStrategy,
    SamplingPolicy,
    Strategy,
    StreamNotFinished,
    TargetError,
    TransformersTarget,
)
from specframe.testing import Adversary, Faulty, LogitsDrafter, Oracle, RandomOffers, TableTarget, byte_tokenizer

SAMPLED = {"temperature": 0.9, "seed": 5}


def chat_engine(*drafters, **options):
    """Return an engine on a tiny chat model that can only say letters, and its target."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    model = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=512)
    target = CountingTarget(model, tokenizer)
    return engine_on(target, *drafters, **options), target


LETTERS = dict.fromkeys(range(ord("g"), ord("w")), 1000.0)


# Budgets


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_a_budget_gives_exactly_that_many_tokens(sampling):
    """A budget counted in rounds gives more tokens than asked, or fewer."""
    full = engine_on(random_table()).generate([1, 2], max_new_tokens=12, **sampling).token_ids
    for budget in range(7):
        target = random_table()
        result = engine_on(target, Oracle(full)).generate([1, 2], max_new_tokens=budget, **sampling)
        assert result.token_ids == full[:budget]
        assert result.finish_reason == "length"
        assert result.stats.num_tokens == budget
        emitted = 0
        for record in result.records:
            assert record.num_proposed <= max(0, budget - emitted - 1)
            emitted += record.num_emitted


def test_a_budget_of_0_runs_no_forward():
    """Nothing was asked for, so nothing may be computed or emitted."""
    target = random_table()
    drafter = RandomOffers(seed=0)
    engine = engine_on(target, drafter)
    result = engine.generate([1, 2], max_new_tokens=0, log_probs=True)
    assert (result.token_ids, result.text, result.finish_reason, result.log_probs) == ((), "", "length", ())
    assert target.num_forwards == 0
    assert not drafter.sessions
    assert list(engine.stream([1, 2], max_new_tokens=0)) == []


# Streams


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_the_pieces_of_a_stream_are_the_result(sampling):
    """A piece that repeats, loses or reorders tokens shows the reader another text than the result holds."""
    tokenizer = byte_tokenizer()
    full = engine_on(random_table(vocab_size=len(tokenizer), tokenizer=tokenizer)).generate(
        "a", max_new_tokens=40, **sampling
    )
    engine = engine_on(random_table(vocab_size=len(tokenizer), tokenizer=tokenizer), Oracle(full.token_ids, wrong_at=3))
    stream = engine.stream("a", max_new_tokens=40, **sampling)
    pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.result.text == full.text
    assert tuple(token for piece in pieces for token in piece.token_ids) == stream.result.token_ids == full.token_ids
    assert [len(piece.token_ids) for piece in pieces] == [record.num_emitted for record in stream.result.records]
    assert max(len(piece.token_ids) for piece in pieces) == 4


def test_an_unfinished_stream_has_no_result():
    """A result that is handed out early looks like a finished text."""
    engine = engine_on(random_table())
    stream = engine.stream([1, 2], max_new_tokens=3)
    next(stream)
    with pytest.raises(StreamNotFinished, match="no result yet"):
        _ = stream.result
    list(stream)
    assert len(stream.result.token_ids) == 3
    assert next(stream, None) is None


@pytest.mark.parametrize("how", ["close", "with", "garbage", "unread"])
def test_a_stream_that_is_left_early_frees_the_engine(how):
    """An engine that stays taken after an abandoned stream hangs every later request."""
    target = random_table()
    drafter = RandomOffers(seed=1)
    engine = engine_on(target, drafter)
    expected = engine.generate([1, 2], max_new_tokens=8).token_ids
    if how == "with":
        with engine.stream([1, 2], max_new_tokens=8) as stream:
            next(stream)
    else:
        stream = engine.stream([1, 2], max_new_tokens=8)
        if how != "unread":
            next(stream)
            next(stream)
        if how == "close":
            stream.close()
            assert next(stream, None) is None
        elif how == "garbage":
            del stream
            gc.collect()
    assert engine.generate([1, 2], max_new_tokens=8).token_ids == expected
    assert all(session.is_closed for session in drafter.sessions)


def test_a_second_request_of_the_same_thread_is_refused():
    """Waiting for a stream that the same thread holds open would never end."""
    engine = engine_on(random_table())
    expected = engine.generate([1, 2], max_new_tokens=6).token_ids
    stream = engine.stream([1, 2], max_new_tokens=6)
    first = next(stream)
    for call in (
        lambda: engine.generate([3], max_new_tokens=1),
        lambda: next(engine.stream([3], max_new_tokens=1)),
        engine.reset,
        engine.close,
    ):
        with pytest.raises(EngineBusy, match="close it first"):
            call()
    rest = [token for piece in stream for token in piece.token_ids]
    assert (*first.token_ids, *rest) == expected


def test_another_thread_waits_for_the_engine():
    """Two generations at once on one cache would mix their keys."""
    engine = engine_on(random_table(), RandomOffers(seed=1))
    expected = [engine.generate([token, 2], max_new_tokens=6).token_ids for token in (1, 3)]
    stream = engine.stream([1, 2], max_new_tokens=6)
    first = next(stream)
    found = []
    thread = threading.Thread(target=lambda: found.append(engine.generate([3, 2], max_new_tokens=6).token_ids))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert (*first.token_ids, *(token for piece in stream for token in piece.token_ids)) == expected[0]
    thread.join(10)
    assert found == [expected[1]]


def test_many_threads_get_what_each_would_get_alone():
    """A request that reads another's state gives a text that depends on timing."""
    engine = engine_on(random_table(), RandomOffers(seed=1))
    expected = {
        seed: engine.generate([1, 2], max_new_tokens=6, temperature=1.0, seed=seed).token_ids for seed in range(8)
    }
    found = {}

    def run(seed):
        found[seed] = engine.generate([1, 2], max_new_tokens=6, temperature=1.0, seed=seed).token_ids

    threads = [threading.Thread(target=run, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == expected
    assert len(set(found.values())) > 1


# Several generations


def test_n_generations_have_draws_of_their_own():
    """Generations of one seed that share their draws are copies of one text."""
    target = CountingTarget(shared_model())
    engine = engine_on(target)
    results = engine.generate(PROMPT, n=3, max_new_tokens=10, **SAMPLED)
    assert [fed for fed in target.fed if len(fed) > 1] == [PROMPT]
    assert len({result.token_ids for result in results}) == 3
    assert {result.seed for result in results} == {5}
    assert engine.generate(PROMPT, max_new_tokens=10, **SAMPLED).token_ids == results[0].token_ids
    speculated = engine_on(target, RandomOffers(seed=3)).generate(PROMPT, n=3, max_new_tokens=10, **SAMPLED)
    assert [result.token_ids for result in speculated] == [result.token_ids for result in results]
    unseeded = engine.generate(PROMPT, n=2, max_new_tokens=4, temperature=1.0)
    assert len({result.seed for result in unseeded}) == 1


def test_n_gives_a_list_and_greedy_ones_are_equal():
    """The shape of what ``generate`` returns must depend on whether ``n`` was given, and on nothing else."""
    engine = engine_on(random_table())
    alone = engine.generate([1, 2], max_new_tokens=4)
    (one,) = engine.generate([1, 2], n=1, max_new_tokens=4)
    many = engine.generate([1, 2], n=2, max_new_tokens=4)
    assert [result.token_ids for result in (one, *many)] == [alone.token_ids] * 3
    assert alone.seed is None
    assert engine.generate([1, 2], max_new_tokens=4, temperature=0, seed=3).seed is None


# Log-probabilities


@pytest.mark.parametrize("sampling", [{}, SAMPLED | {"top_k": 5, "repetition_penalty": 1.5}])
def test_log_probs_are_plain_decodings(sampling):
    """Log-probabilities of the wrong rows, or after processing, do not describe the model."""
    model = shared_model()
    plain = engine_on(TransformersTarget(model)).generate(PROMPT, max_new_tokens=12, log_probs=True, **sampling)
    with torch.inference_mode():
        rows = torch.log_softmax(model(input_ids=torch.tensor([[*PROMPT, *plain.token_ids]])).logits[0], dim=-1)
    expected = [float(rows[len(PROMPT) - 1 + i, token]) for i, token in enumerate(plain.token_ids)]
    assert np.allclose(plain.log_probs, expected, rtol=0, atol=1e-10)
    for wrong_at in (0, 2, None):
        engine = engine_on(TransformersTarget(model), Oracle(plain.token_ids, wrong_at))
        result = engine.generate(PROMPT, max_new_tokens=12, log_probs=True, **sampling)
        assert np.allclose(result.log_probs, plain.log_probs, rtol=0, atol=1e-10)
    assert engine.generate(PROMPT, max_new_tokens=2).log_probs is None


def test_log_probs_end_where_the_ids_end():
    """A stop inside a block must not leave log-probabilities of tokens that were never emitted."""
    full = engine_on(random_table()).generate([1, 2], max_new_tokens=12).token_ids
    index = next(i for i in range(2, 12) if full[i] not in full[:i])
    engine = engine_on(random_table(stop_ids=[full[index]]), Oracle(full), length=8)
    result = engine.generate([1, 2], max_new_tokens=12, log_probs=True)
    assert len(result.log_probs) == len(result.token_ids) == index + 1


# Prefixes


def test_a_chat_feeds_only_what_is_new():
    """A turn that feeds the whole chat again costs its length squared."""
    engine, target = chat_engine()
    messages = [{"role": "user", "content": "hello there"}]
    fed = []
    for question in ("and now?", "so?"):
        reply = engine.generate(messages, max_new_tokens=6, logit_bias=LETTERS)
        assert reply.text.isalpha()
        assert len(reply.text) == 6
        target.fed.clear()
        messages += [{"role": "assistant", "content": reply.text}, {"role": "user", "content": question}]
        result = engine.generate(messages, max_new_tokens=1, logit_bias=LETTERS)
        fed.append(target.fed[0])
        assert len(result.token_ids) == 1
    # Of the reply before, the last id was never fed: it was pending.
    texts = [bytes(fed[i]).decode()[1:] for i in range(2)]
    assert texts == ["\n<user>and now?\n<assistant>", "\n<user>so?\n<assistant>"]
    fresh, fresh_target = chat_engine()
    assert fresh.generate(messages, max_new_tokens=1, logit_bias=LETTERS).token_ids == result.token_ids
    assert len(fresh_target.fed[0]) > len(fed[1])


def test_a_prefix_is_reused_after_a_stop_inside_a_block():
    """Accepted tokens behind a stop must not stay in the cache as if they had been said."""
    model = shared_model()
    full = engine_on(TransformersTarget(model)).generate(PROMPT, max_new_tokens=12).token_ids
    index = next(i for i in range(3, 12) if full[i] not in full[:i])
    target = CountingTarget(model)
    engine = engine_on(target, Oracle(full), length=12)
    first = engine.generate(PROMPT, max_new_tokens=12, stop_ids=[full[index]])
    assert first.token_ids == full[: index + 1]
    assert target.cache.ids == [*PROMPT, *first.token_ids][: len(target.cache.ids)]
    target.fed.clear()
    follow_up = (*PROMPT, *first.token_ids, 7, 8)
    found = engine.generate(follow_up, max_new_tokens=5).token_ids
    assert target.fed[0] in {(7, 8), (full[index], 7, 8)}
    assert found == engine_on(TransformersTarget(model)).generate(follow_up, max_new_tokens=5).token_ids


def test_the_same_prompt_twice_runs_no_prefill():
    """A second run of the same prompt already has its row."""
    target = CountingTarget(shared_model())
    engine = engine_on(target)
    first = engine.generate(PROMPT, max_new_tokens=4)
    num_forwards = len(target.fed)
    second = engine.generate(PROMPT, max_new_tokens=4)
    assert second.token_ids == first.token_ids
    assert num_forwards == 4
    assert target.fed[num_forwards:] == [(token,) for token in first.token_ids[:3]]
    assert engine.generate(PROMPT, max_new_tokens=1).token_ids == first.token_ids[:1]
    assert len(target.fed) == num_forwards + 3


def test_a_shorter_or_changed_prompt_is_read_anew_where_it_differs():
    """A row of a longer prompt must not be taken for that of its beginning."""
    target = CountingTarget(shared_model())
    engine = engine_on(target)
    engine.generate(PROMPT, max_new_tokens=2)
    for prompt, num_fed in (((*PROMPT[:6],), 1), ((*PROMPT[:6], 1), 1), ((63, *PROMPT[1:]), len(PROMPT))):
        target.fed.clear()
        found = engine.generate(prompt, max_new_tokens=4).token_ids
        assert target.fed[0] == prompt[-num_fed:]
        assert found == engine_on(TransformersTarget(shared_model())).generate(prompt, max_new_tokens=4).token_ids


def test_reset_forgets_every_prefix_and_asks_the_drafters():
    """Benchmarks that reset nothing measure the run before."""
    target = CountingTarget(shared_model())
    resets = []
    drafter = RandomOffers(seed=0)
    drafter.reset = lambda: resets.append(1)
    engine = engine_on(target, drafter)
    engine.generate(PROMPT, max_new_tokens=2)
    engine.reset()
    assert resets == [1]
    assert target.cache.layers[0].keys is None
    target.fed.clear()
    engine.generate(PROMPT, max_new_tokens=2)
    assert target.fed[0] == PROMPT


def test_close_closes_the_drafters_and_frees_the_cache():
    """A closed engine that holds its cache holds the memory."""
    target = TransformersTarget(shared_model())
    drafter = RandomOffers(seed=0)
    engine = engine_on(target, drafter)
    engine.generate(PROMPT, max_new_tokens=2)
    engine.close()
    assert drafter.is_closed
    assert target.cache.layers[0].keys is None


# Requests


BAD_REQUESTS = [
    ("prompt", {"prompt": ""}),
    ("prompt", {"prompt": []}),
    ("prompt", {"prompt": torch.empty(1, 0, dtype=torch.int64)}),
    ("prompt", {"prompt": list(range(5)) * 5}),
    ("prompt", {"prompt": [1, 1000]}),
    ("prompt", {"prompt": [-1]}),
    ("prompt", {"prompt": [[1, 2], [3, 4]]}),
    ("prompt", {"prompt": torch.tensor([[1], [2]])}),
    ("prompt", {"prompt": [1.5]}),
    ("prompt", {"prompt": [True]}),
    ("prompt", {"prompt": None}),
    ("prompt", {"prompt": ["a", "b"]}),
    ("prompt", {"prompt": [{"role": "user"}]}),
    ("max_new_tokens", {"max_new_tokens": -1}),
    ("max_new_tokens", {"max_new_tokens": 2.0}),
    ("max_new_tokens", {"max_new_tokens": None}),
    ("n", {"n": 0}),
    ("n", {"n": True}),
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": "hot"}),
    ("top_k", {"top_k": 0}),
    ("top_p", {"top_p": 0}),
    ("top_p", {"top_p": 1.1}),
    ("min_p", {"min_p": -0.1}),
    ("typical_p", {"typical_p": 0}),
    ("repetition_penalty", {"repetition_penalty": 0}),
    ("no_repeat_ngram_size", {"no_repeat_ngram_size": 0}),
    ("min_new_tokens", {"min_new_tokens": -1}),
    ("logit_bias", {"logit_bias": {1000: 1.0}}),
    ("suppress_tokens", {"suppress_tokens": [-1]}),
    ("bad_words_ids", {"bad_words_ids": [[]]}),
    ("stop", {"stop": ""}),
    ("stop", {"stop": ["ok", ""]}),
    ("stop", {"stop": [7]}),
    ("stop", {"stop": 7}),
    ("stop_ids", {"stop_ids": [1000]}),
    ("seed", {"seed": -1}),
    ("seed", {"seed": 2**64}),
    ("seed", {"seed": 1.0}),
    ("tempreature", {"tempreature": 1.0}),
    ("policy", {"policy": SamplingPolicy(), "top_k": 3}),
]


@pytest.mark.parametrize(("field", "arguments"), BAD_REQUESTS)
def test_a_bad_request_is_one_readable_error_and_changes_nothing(field, arguments):
    """A bad value that is dropped changes the law; one that fails late loses the engine."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    target = random_table(vocab_size=len(tokenizer), tokenizer=tokenizer, context_limit=20)
    engine = engine_on(target, RandomOffers(seed=0))
    arguments = {"prompt": [1, 2], "max_new_tokens": 3, **arguments}
    calls = [engine.generate] if "n" in arguments else [engine.generate, engine.stream]
    for call in calls:
        with pytest.raises(InvalidRequest) as caught:
            call(**arguments)
        message = str(caught.value)
        assert field in message
        assert "(got " in message
        assert "\n" not in message.replace(repr(arguments.get(field)), "")
    assert target.num_forwards == 0
    assert engine.generate([1, 2], max_new_tokens=3).token_ids == tuple(target.greedy([1, 2], 3))


@pytest.mark.parametrize(
    "arguments", [{"prompt": "text"}, {"prompt": [{"role": "user", "content": "x"}]}, {"stop": "x"}]
)
def test_what_needs_a_tokenizer_is_refused_without_one(arguments):
    """A stop string without a tokenizer can never match, so it may not be taken."""
    target = random_table()
    with pytest.raises(InvalidRequest, match="tokenizer"):
        engine_on(target).generate(**{"prompt": [1], "max_new_tokens": 2, **arguments})
    assert target.num_forwards == 0


def test_a_whole_policy_gives_what_its_fields_give():
    """A policy that is passed as a whole and dropped would be greedy."""
    engine = engine_on(random_table())
    policy = SamplingPolicy(temperature=0.7, top_k=4)
    whole = engine.generate([1, 2], max_new_tokens=8, policy=policy, seed=1).token_ids
    assert whole == engine.generate([1, 2], max_new_tokens=8, temperature=0.7, top_k=4, seed=1).token_ids
    assert whole != engine.generate([1, 2], max_new_tokens=8).token_ids


def test_prompts_as_text_ids_and_tensors_agree():
    """The same prompt in another form must not be another prompt."""
    tokenizer = byte_tokenizer()
    engine = engine_on(random_table(vocab_size=len(tokenizer), tokenizer=tokenizer))
    ids = tokenizer("hello")["input_ids"]
    expected = engine.generate("hello", max_new_tokens=4).token_ids
    for prompt in (ids, tuple(ids), torch.tensor(ids), torch.tensor([ids]), np.array(ids), [ids]):
        assert engine.generate(prompt, max_new_tokens=4).token_ids == expected


# Failures of the target


class Failing:
    """A row function that fails, or gives a bad row, after so many ids."""

    def __init__(self, at, bad=None, vocab_size=12):
        self.at, self.bad, self.is_on = at, bad, True
        self._good = random_table(vocab_size=vocab_size, order=64)._rows

    def __call__(self, ids):
        row = list(self._good(ids))
        if self.is_on and len(ids) >= self.at:
            if self.bad is None:
                raise RuntimeError("device lost")
            row[3] = self.bad
        return row


def failing_engine(at, bad=None, drafter=None):
    tokenizer = byte_tokenizer()
    rows = Failing(at, bad, len(tokenizer))
    target = TableTarget(rows, vocab_size=len(tokenizer), order=64, tokenizer=tokenizer)
    rows.is_on = False
    expected = engine_on(target).generate([1, 2], max_new_tokens=10)
    rows.is_on = True
    target.reset()
    drafters = () if drafter is None else (drafter(expected.token_ids),)
    return engine_on(target, *drafters), rows, expected


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_a_target_that_fails_before_the_first_token_raises_its_error(bad, sampling):
    """Nothing was emitted, so there is nothing to keep; the engine must be free for the next request."""
    engine, rows, expected = failing_engine(2, bad, lambda ids: Oracle(ids))
    with pytest.raises(TargetError, match="row" if bad else "device lost") as caught:
        engine.generate([1, 2], max_new_tokens=10, **sampling)
    assert caught.value.round_id == 0
    rows.is_on = False
    assert engine.generate([1, 2], max_new_tokens=10).token_ids == expected.token_ids


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf")])
@pytest.mark.parametrize("with_drafter", [False, True])
def test_a_target_that_fails_later_keeps_what_was_emitted(with_drafter, bad):
    """An error that loses the text, or emits part of the failed round twice, leaves the caller with neither."""
    engine, rows, expected = failing_engine(7, bad, (lambda ids: Oracle(ids, wrong_at=1)) if with_drafter else None)
    emitted = []
    with pytest.raises(GenerationError, match="ended early") as caught:
        for piece in engine.stream([1, 2], max_new_tokens=10):
            emitted.append(piece)  # noqa: PERF402 - what came before the failure must be kept
    error = caught.value
    assert error.token_ids == tuple(token for piece in emitted for token in piece.token_ids)
    assert error.token_ids == expected.token_ids[: len(error.token_ids)]
    assert 1 <= len(error.token_ids) <= 5
    assert error.text == "".join(piece.text for piece in emitted)
    assert isinstance(error.__cause__, TargetError)
    rows.is_on = False
    assert engine.generate([1, 2], max_new_tokens=10).token_ids == expected.token_ids


@pytest.mark.parametrize("bad_row", [0, 2, 4])
@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_a_bad_row_of_a_block_is_named(bad_row, sampling):
    """A NaN in the first, a middle or the extra row must be told with its place, and nothing of the block emitted."""
    rows = Failing(3 + bad_row, float("nan"))
    target = TableTarget(rows, vocab_size=12, order=64)
    rows.is_on = False
    expected = engine_on(target).generate([1, 2], max_new_tokens=10, **sampling).token_ids
    rows.is_on = True
    engine = engine_on(target, Oracle(expected))
    stream = engine.stream([1, 2], max_new_tokens=10, **sampling)
    assert next(stream).token_ids == expected[:1]
    with pytest.raises(GenerationError) as caught:
        next(stream)
    assert caught.value.token_ids == expected[:1]
    cause = caught.value.__cause__
    assert (cause.round_id, cause.row) == (1, bad_row)
    assert f"position {3 + bad_row}" in str(cause)


def test_a_bad_row_behind_a_rejection_is_never_looked_at():
    """Rows of contexts that never happen must not end a generation."""

    def row(ids):
        return (
            [float("nan")] * 4 if ids[-1] == 3 else [5.0 if token == (ids[-1] + 1) % 3 else 0.0 for token in range(4)]
        )

    target = TableTarget(row, vocab_size=4)
    expected = engine_on(target).generate([0], max_new_tokens=6).token_ids
    for sampling in ({}, {"temperature": 0.5, "seed": 1, "suppress_tokens": [3]}):
        plain = engine_on(target).generate([0], max_new_tokens=6, **sampling).token_ids
        engine = engine_on(target, Adversary(lambda context, index: 3))
        assert engine.generate([0], max_new_tokens=6, **sampling).token_ids == plain
    assert expected == (1, 2, 0, 1, 2, 0)


# Verifiers and results


def test_debugging_tells_a_cache_that_does_not_hold_the_text():
    """A cache that kept a rejected token must be told in the round that it happened."""
    target = random_table()
    engine = engine_on(target)
    stream = engine.stream([1, 2], max_new_tokens=6)
    next(stream)
    target.cached_ids[0] = 9
    with pytest.raises(GenerationError, match="the cache stands for") as caught:
        next(stream)
    assert isinstance(caught.value.__cause__, CacheError)
    assert engine.generate([1, 2], max_new_tokens=3).token_ids == tuple(target.greedy([1, 2], 3))


@pytest.mark.parametrize("draft", ["offers", "draws"])
def test_residual_sampling_keeps_its_identities(draft):
    """Counters that overlap give acceptance above 1 or tokens that nobody emitted."""
    table = random_table(seed=1)
    drafter = RandomOffers(seed=2) if draft == "offers" else LogitsDrafter(lambda ids: table.row(ids))
    engine = engine_on(random_table(), drafter, verifier="residual")
    runs = [engine.generate([1, 2], max_new_tokens=30, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].token_ids == runs[1].token_ids != runs[2].token_ids
    for result in runs:
        assert result.exactness == "distribution-exact"
        assert len(result.token_ids) == result.stats.num_tokens == 30
        for record in result.records:
            assert 0 <= record.num_accepted <= record.num_evaluated <= record.num_proposed
            assert record.num_evaluated - record.num_accepted in {0, 1}
            assert record.num_emitted == record.num_accepted + 1
        assert 0 < result.stats.num_accepted < result.stats.num_proposed
    greedy = engine.generate([1, 2], max_new_tokens=5)
    assert greedy.exactness == "token-exact"
    assert engine_on(random_table()).generate([1], max_new_tokens=1, temperature=1.0).exactness == "token-exact"


def test_residual_plain_decoding_is_a_draw_from_the_policy():
    """Residual without a drafter must draw from the processed law and nothing else."""
    engine = engine_on(random_table(), verifier="residual")
    greedy = engine.generate([1, 2], max_new_tokens=6).token_ids
    assert engine.generate([1, 2], max_new_tokens=6, temperature=2.0, top_k=1, seed=0).token_ids == greedy


def test_given_drafters_run_in_order_without_a_strategy_of_their_own():
    """A drafter that was given and is not run looks like one that never proposes."""
    target = random_table()
    full = tuple(target.greedy([1, 2], 8))
    engine = Engine(target, drafters={"mine": Oracle(full), "other": RandomOffers(seed=0)})
    result = engine.generate([1, 2], max_new_tokens=8)
    assert result.token_ids == full
    assert list(engine.drafters) == ["mine", "other"]
    assert result.stats.drafters["mine"].num_accepted > 0


def test_a_strategy_names_given_drafters_and_may_use_one_twice():
    """Two uses of one drafter must not share a name, or their statistics are added up."""
    target = random_table()
    mine = Oracle(target.greedy([1, 2], 8), wrong_at=1)
    strategy = Strategy(drafters=(DrafterUse("mine"),) * 2)
    with pytest.raises(InvalidStrategy, match="does not use the given drafters unused"):
        Engine(target, {"mine": mine, "unused": RandomOffers(seed=0)}, strategy=strategy)
    engine = Engine(target, {"mine": mine}, strategy=strategy)
    assert list(engine.drafters) == ["mine", "mine#2"]
    assert engine.generate([1, 2], max_new_tokens=8).token_ids == tuple(target.greedy([1, 2], 8))


def test_an_interrupt_inside_a_drafter_frees_the_engine():
    """Ctrl-C is no drafter failure: it must end the request, and the next one must find the engine free."""
    target = random_table()
    engine = engine_on(target, Faulty("propose", error=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        engine.generate([1, 2], max_new_tokens=6)
    assert engine.generate([1, 2], max_new_tokens=6).token_ids == tuple(target.greedy([1, 2], 6))


def test_memory_does_not_grow_with_requests():
    """A session, a draft vector or a provisional tail that is kept adds up over a day of requests."""
    target = TransformersTarget(shared_model())
    engine = engine_on(target, RandomOffers(seed=0))

    def run(seed):
        engine.generate(PROMPT, max_new_tokens=3, temperature=1.0, seed=seed)
        gc.collect()
        return sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())

    engine.generate(PROMPT, max_new_tokens=3)
    gc.freeze()  # only what comes from now on is counted
    try:
        counts = [run(seed) for seed in range(6)]
    finally:
        gc.unfreeze()
    assert counts[2:] == [counts[2]] * 4
