"""Cases C: stopping and length."""

from __future__ import annotations

import pytest
from models import PROMPT, engine_on, random_table, shared_model, tiny_model

from specframe import InvalidRequest, TransformersTarget
from specframe.engine import Engine
from specframe.random import CounterRandom
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.testing import Adversary, LogitsDrafter, Oracle, TableTarget, byte_tokenizer

PEAK = 30.0


def counting_table(stop_ids=(), **options):
    """Return a table in which every id is followed by the next, so that index i of the output is id i + 1."""
    return TableTarget(
        lambda ids: [PEAK * (token == (ids[-1] + 1) % 32) for token in range(32)],
        vocab_size=32,
        stop_ids=stop_ids,
        **options,
    )


# With k = 8: index 0 comes from the prompt, 1 to 8 are drafted, 8 is the last draft, 9 the bonus, 10 the round after.
@pytest.mark.parametrize("index", [0, 1, 4, 8, 9, 10])
@pytest.mark.parametrize("num_stop_ids", [1, 2])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 1}])
def test_c1_eos_inside_a_block_ends_the_output(index, num_stop_ids, sampling, monkeypatch):
    """Text behind an accepted EOS, or a fresh draw after it, is text that the target never said."""
    positions = []
    gumbel = CounterRandom.gumbel
    monkeypatch.setattr(
        CounterRandom, "gumbel", lambda self, position, ids: positions.append(position) or gumbel(self, position, ids)
    )
    eos = index + 1
    target = counting_table([eos, 31][:num_stop_ids])
    drafter = Oracle(range(1, 32))
    engine = engine_on(target, drafter, length=8)
    stream = engine.stream([0], max_new_tokens=25, **sampling)
    pieces = list(stream)
    result = stream.result
    assert result.token_ids == tuple(range(1, eos + 1))
    assert (result.finish_reason, result.stop_match) == ("stop", eos)
    assert [token for piece in pieces for token in piece.token_ids] == list(result.token_ids)
    assert result.stats.num_tokens == sum(record.num_emitted for record in result.records) == index + 1
    assert positions == (list(range(1, index + 2)) if sampling else [])
    # The cache holds the text, and of what was fed behind the EOS nothing.
    text = [0, *result.token_ids]
    assert target.cached_ids == text[: len(target.cached_ids)]
    assert len(target.cached_ids) >= len(text) - 1


def test_c1_a_rejected_eos_does_not_stop():
    """A drafter that offers EOS too early must neither end the output nor be taken for finished."""
    target = counting_table([31])
    drafter = Adversary(lambda context, index: 31 if index == 1 else (context[-1] + 1) % 32)
    result = engine_on(target, drafter).generate([0], max_new_tokens=20)
    assert result.token_ids == tuple(range(1, 21))
    assert drafter.sessions[0].num_rounds > 5
    # It ends its own proposal, though: what would follow EOS is no text.
    assert {record.num_proposed for record in result.records[1:-1]} == {2}


def test_c1_a_drafted_eos_that_is_accepted_by_drawing_stops_too():
    """An EOS that the core drew for the drafter is as much an end as one that was offered."""
    target = counting_table([5])
    engine = engine_on(target, LogitsDrafter(target.row), length=8)
    for sampling in ({}, {"temperature": 1.0, "seed": 3}):
        result = engine.generate([0], max_new_tokens=20, **sampling)
        assert result.token_ids == (1, 2, 3, 4, 5)
        assert result.stop_match == 5


@pytest.mark.parametrize("index", range(8))
def test_c1_an_eos_that_a_model_really_says(index):
    """The same with a model: the output ends at the first EOS, and the next request starts from a clean cache."""
    model = shared_model()
    full = engine_on(TransformersTarget(model)).generate(PROMPT, max_new_tokens=12).token_ids
    eos = full[index]
    first = full.index(eos)
    unsaid = next(token for token in range(64) if token not in full)
    engine = engine_on(TransformersTarget(model), Oracle(full), length=8)
    result = engine.generate(PROMPT, max_new_tokens=12, stop_ids=[eos, unsaid])
    assert result.token_ids == full[: first + 1]
    assert engine.generate(PROMPT, max_new_tokens=12).token_ids == full


@pytest.mark.parametrize("prompt", [(5, 6, 7, 8, 9, 7, 8), (5,), (5, 6), (5, 5, 5, 5, 5, 5)])
@pytest.mark.parametrize("length", [3, 20])
def test_c2_a_model_without_eos_runs_to_its_budget(prompt, length):
    """No EOS is no error: prompt lookup must not compare with a missing id once it finds a match."""
    model = tiny_model()
    assert model.config.eos_token_id is None
    expected = engine_on(TransformersTarget(model)).generate(prompt, max_new_tokens=20)
    uses = (DrafterUse("prompt_lookup", {"min_ngram": 1}),)
    engine = Engine(TransformersTarget(model), strategy=Strategy(drafters=uses, length=Length(max_tokens=length)))
    result = engine.generate(prompt, max_new_tokens=20)
    assert result.token_ids == expected.token_ids
    assert len(result.token_ids) == 20
    assert result.finish_reason == "length"
    assert not result.events


def test_c2_an_empty_prompt_is_a_typed_error():
    """A prompt without a token has no row to read the first one from."""
    engine = Engine(random_table(), strategy="prompt_lookup")
    with pytest.raises(InvalidRequest, match="at least one token"):
        engine.generate([], max_new_tokens=3)


@pytest.mark.parametrize("budget", range(9))
def test_c4_a_budget_counts_tokens(budget):
    """A budget counted per round gives nine tokens for six; one that is checked too early gives fewer."""
    target = counting_table([7])
    drafter = Oracle(range(1, 32))
    result = engine_on(target, drafter, length=4).generate([0], max_new_tokens=budget)
    assert result.token_ids == tuple(range(1, min(budget, 7) + 1))
    assert result.finish_reason == ("stop" if budget >= 7 else "length")
    assert result.stats.num_tokens == len(result.token_ids)
    emitted = 0
    for record in result.records:
        assert record.num_proposed <= max(0, budget - emitted - 1)
        emitted += record.num_emitted
    assert target.num_forwards == (0 if budget == 0 else len(result.records))


TOKENIZER = byte_tokenizer()
PIECES = {piece: TOKENIZER.convert_tokens_to_ids(piece) for piece in ("ab", "abc", "xay")}


def scripted_target(ids):
    """Return a target that says these ids after a one-token prompt, whatever was drafted."""
    vocab_size = len(TOKENIZER)

    def row(context):
        return [PEAK * (token == ids[min(len(context), len(ids)) - 1]) for token in range(vocab_size)]

    return TableTarget(row, vocab_size=vocab_size, order=200, tokenizer=TOKENIZER)


def ids_of(*parts):
    return [token for part in parts for token in ([part] if isinstance(part, int) else list(part.encode()))]


TAIL = "qrstuvwxyzqrstuvwxyz"
STOPS = {
    "early in a long block": (ids_of("xxab", TAIL), "ab", "xx", "ab", 4),
    "at the first token": (ids_of("ab", TAIL), ["a"], "", "a", 1),
    "in a piece, whole": (ids_of("xx", PIECES["ab"], TAIL), "ab", "xx", "ab", 3),
    "inside a piece": (ids_of("xx", PIECES["abc"], TAIL), "ab", "xx", "ab", 3),
    "straddling two pieces": (ids_of("x", PIECES["xay"], "z", TAIL), "ayz", "xx", "ayz", 3),
    "overlapping, the shorter ends first": (ids_of("xxab", TAIL), ["abq", "b"], "xxa", "b", 4),
    "overlapping, the longer wins at one end": (ids_of("xxab", TAIL), ["ab", "b"], "xx", "ab", 4),
    "a start that is not one": (ids_of("xaxaab", TAIL), ["ab"], "xaxa", "ab", 6),
    "one character in many bytes": (ids_of("x世ab", TAIL), ["世a"], "x", "世a", 5),
    "none": (ids_of("xxab", TAIL), ["no"], "xxab" + TAIL, None, 24),
    "begun but not ended": (ids_of("xxab", TAIL, "a"), ["ab!", "a!"], "xxab" + TAIL + "a", None, 25),
}


@pytest.mark.parametrize(("ids", "stop", "text", "match", "num_tokens"), STOPS.values(), ids=STOPS)
def test_c5_a_stop_string_inside_a_block_is_found_where_it_ends(ids, stop, text, match, num_tokens):
    """A search of a fixed tail misses an early stop; cut text with uncut ids and log-probabilities disagrees."""
    call = {"max_new_tokens": len(ids), "stop": stop, "log_probs": True}
    plain = engine_on(scripted_target(ids)).generate([0], **call)
    assert (plain.text, plain.stop_match) == (text, match)
    assert plain.token_ids == tuple(ids[:num_tokens])
    assert plain.finish_reason == ("length" if match is None else "stop")
    for length in (1, 2, 3, 24):
        for wrong_at in (0, 1, None):
            stream = engine_on(scripted_target(ids), Oracle(ids, wrong_at), length=length).stream([0], **call)
            joined = "".join(piece.text for piece in stream)
            result = stream.result
            assert (result.text, result.stop_match) == (text, match)
            assert result.token_ids == plain.token_ids
            assert result.log_probs == plain.log_probs
            assert result.finish_reason == plain.finish_reason
            assert joined == text


class LimitedDrafter(Oracle):
    """A drafter with a context of its own, that fails past it as a model does."""

    def __init__(self, continuation, limit):
        super().__init__(continuation)
        self.limit = limit

    def _proposer(self, request):
        inner = super()._proposer(request)

        def propose(round):
            if len(round.context) + round.room > self.limit:
                raise IndexError("position beyond the draft's context")
            inner(round)

        return propose


@pytest.mark.parametrize("prompt_length", [14, 30, 31, 32])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}])
def test_c7_look_ahead_stays_in_the_targets_context(kind, prompt_length, sampling):
    """A block that passes the last position fails in the model's embeddings, or reads positions that it never saw."""
    limit = {"n_positions": 32} if kind == "gpt2" else {"max_position_embeddings": 32}
    model = tiny_model(kind, **limit)
    prompt = [5 + token % 40 for token in range(prompt_length)]
    plain = engine_on(TransformersTarget(model)).generate(prompt, **sampling)  # the default budget is not inflated
    assert len(plain.token_ids) == 32 - prompt_length + 1  # the last token is predicted, and never fed
    assert plain.finish_reason == "length"
    for drafter in (Oracle(plain.token_ids), Oracle(plain.token_ids, 1), LimitedDrafter(plain.token_ids, 16)):
        fed = []
        target = TransformersTarget(model)
        forward = target.forward
        target.forward = lambda ids, num_rows, forward=forward, fed=fed, target=target: (
            fed.append(len(target.cache.ids)),
            forward(ids, num_rows=num_rows),
        )[1]
        result = engine_on(target, drafter, length=5).generate(prompt, **sampling)
        assert result.token_ids == plain.token_ids
        assert max(fed) <= 32
        assert result.finish_reason == "length"


def test_c7_a_drafter_past_its_own_limit_is_off_and_told():
    """A source that can no longer follow must be switched off with an entry, not end the request."""
    target = counting_table(context_limit=32)
    drafter = LimitedDrafter(range(1, 64), limit=16)
    result = engine_on(target, drafter, length=5).generate([31, *range(13)], max_new_tokens=100)
    assert result.token_ids == tuple(range(13, 32))[:19]
    assert [event.message for event in result.events] == [
        "switched off: propose raised IndexError",
        "stopped at the model's context limit of 32 tokens",
    ]
    assert drafter.sessions[0].is_closed
