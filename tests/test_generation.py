"""The round loop: room, what sessions are told, records, margins, and the caller's criterion."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from models import PROMPT, engine_on, random_table, shared_model, tiny_model
from transformers import LogitsProcessor

from specframe import Engine, TargetError, TransformersTarget, pure
from specframe.generation import Generation, Request
from specframe.sampling import SamplingPolicy
from specframe.stop import as_stop_strings
from specframe.strategy import Length, Strategy
from specframe.target import SINGLE
from specframe.testing import Adversary, LogitsDrafter, Oracle, RandomOffers, ScriptedRandom, TableTarget
from specframe.testing.scripted import GumbelKey, UniformKey
from specframe.testing.table import TableSession

SAMPLED = {"temperature": 0.9, "seed": 5}


def make_request(**changes):
    values = {
        "prompt_ids": (1, 2),
        "budget": 6,
        "policy": SamplingPolicy(),
        "stop_ids": frozenset(),
        "stop_strings": as_stop_strings(None),
    }
    return Request(**{**values, **changes})


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
@pytest.mark.parametrize("wrong_at", [0, 1, 3, None])
def test_every_session_is_told_every_token_once_and_in_order(wrong_at, sampling):
    """A session that misses a commit, or sees a rejected token, drafts from a text that does not exist."""
    target = random_table()
    full = engine_on(target).generate([1, 2], max_new_tokens=14, **sampling).token_ids
    drafters = [Oracle(full, wrong_at), RandomOffers(seed=1)]
    result = engine_on(target, *drafters, length=5).generate([1, 2], max_new_tokens=14, **sampling)
    for drafter in drafters:
        (session,) = drafter.sessions
        told = [token for commit in session.commits for token in commit.ids]
        assert told == [1, 2, *full][: len(told)]
        positions = [0]
        for commit in session.commits:
            assert commit.start_pos == positions[-1]
            positions.append(commit.start_pos + len(commit.ids))
        assert session.commits[0].ids == (1, 2)
        assert session.is_closed
        # Prompt, first token, and one for every round, the last one too.
        counts = [(commit.num_proposed, commit.num_accepted, len(commit.ids)) for commit in session.commits[2:]]
        records = [(record.num_proposed, record.num_accepted, record.num_emitted) for record in result.records[1:]]
        assert counts == records


def test_a_session_knows_the_request_and_not_the_seed():
    """What a drafter may know is fixed, so that no drafter can tell one seed from another."""
    target = random_table(stop_ids=[11])
    drafter = RandomOffers(seed=1)
    engine_on(target, drafter).generate([1, 2], max_new_tokens=4, stop_ids=[3], temperature=0.5, top_k=3, seed=77)
    request = drafter.sessions[0].request
    assert request.prompt_ids == (1, 2)
    assert request.stop_ids == {3}
    assert request.policy == SamplingPolicy(temperature=0.5, top_k=3)
    assert request.facts is target.facts
    assert "77" not in repr(request)


def test_the_context_of_a_round_is_the_text_and_what_is_proposed():
    """A drafter that sees rejected tokens, or not its own, proposes for another position."""
    target = random_table()
    full = tuple(target.greedy([1, 2], 10))
    seen = []

    def choose(context, index):
        seen.append((context[:], index))
        return (full[len(context) - 2] + (index == 2)) % 12 if len(context) < 12 else None

    engine_on(target, Adversary(choose)).generate([1, 2], max_new_tokens=10)
    for context, index in seen:
        text = context[2:]
        assert text[: len(text) - max(0, index - 2)][:2] == full[:2][: len(text)]
        if index <= 2:
            assert text == full[: len(text)]
    assert {index for _, index in seen} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("length", [1, 3, 8])
def test_the_room_of_a_round_leaves_a_place_for_the_extra_token(length):
    """A block as long as the budget left computes a row whose token may never be emitted."""
    rooms = []

    class Asking(RandomOffers):
        def _proposer(self, request):
            def propose(round):
                rooms.append((len(round.context), round.room))

            return propose

    target = random_table(context_limit=12)
    engine_on(target, Asking(seed=0), length=length).generate([1, 2], max_new_tokens=20)
    assert rooms == [(size, min(length, 12 - size)) for size in range(3, 12)]
    rooms.clear()
    engine_on(target, Asking(seed=0), length=length).generate([1, 2], max_new_tokens=6)
    assert rooms == [(2 + emitted, min(length, 6 - emitted - 1)) for emitted in range(1, 5)]


def test_drafters_are_not_opened_before_they_can_propose():
    """A session that is opened for a request without rounds costs its set-up for nothing."""
    drafter = RandomOffers(seed=0)
    engine = engine_on(random_table(), drafter)
    engine.generate([1, 2], max_new_tokens=1)
    assert not drafter.sessions


def test_plain_decoding_is_the_same_loop_with_no_proposals():
    """The baseline must feed one id a round, or speed-ups are measured against something else."""
    target = random_table()
    result = engine_on(target).generate([1, 2], max_new_tokens=4)
    fed = [call.ids for call in target.calls if call.kind in {"prefill", "verify"}]
    assert fed == [(1, 2), *((token,) for token in result.token_ids[:3])]
    assert [(record.num_proposed, record.num_emitted) for record in result.records] == [(0, 1)] * 4
    assert result.stats.num_target_calls == 4


@pytest.mark.parametrize("wrong_at", [0, 2, None])
def test_a_round_feeds_the_pending_id_and_the_proposal_and_keeps_what_was_accepted(wrong_at):
    """Keys of rejected tokens that stay, or accepted ones that go, shift every later position."""
    target = random_table()
    full = target.greedy([1, 2], 12)
    result = engine_on(target, Oracle(full, wrong_at)).generate([1, 2], max_new_tokens=12)
    fed = [call for call in target.calls if call.kind == "verify"]
    kept = [call for call in target.calls if call.kind == "commit"]
    ids = [1, 2, *full]
    for call, commit, record in zip(fed, kept, result.records[1:], strict=True):
        assert len(call.ids) == 1 + record.num_proposed
        assert call.ids[0] == ids[call.positions[0]]
        assert commit.ids == tuple(ids[commit.positions[0] : commit.positions[-1] + 1])
        assert len(commit.ids) == 1 + record.num_accepted
    # All but the last token are committed; it is pending.
    assert target.cached_ids == ids[: len(target.cached_ids)]
    assert len(target.cached_ids) >= len(ids) - 1


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_margins_are_those_of_the_rows_that_were_judged(sampling):
    """A margin of a row that never counted makes a far mismatch look like a near-tie."""
    target = random_table()
    plain = engine_on(target).generate([1, 2], max_new_tokens=9, **sampling)
    assert plain.stats.min_margin == min(record.min_margin for record in plain.records) > 0
    for wrong_at in (0, 2, None):
        result = engine_on(target, Oracle(plain.token_ids, wrong_at)).generate([1, 2], max_new_tokens=9, **sampling)
        assert result.stats.min_margin == plain.stats.min_margin
    if not sampling:
        rows = [target.row([1, 2, *plain.token_ids[:i]]).topk(2).values for i in range(9)]
        assert [record.min_margin for record in plain.records] == [float(row[0] - row[1]) for row in rows]


def test_counts_are_kept_for_each_drafter_and_add_up():
    """Tokens credited to the wrong drafter make a bad one look good."""
    target = random_table()
    full = target.greedy([1, 2], 20)
    first, second = Oracle(full), RandomOffers(seed=4)
    first.continuation = [token if i % 4 < 2 else -1 for i, token in enumerate(full)]

    class Two(Oracle):
        def _proposer(self, request):
            def propose(round):
                start = len(round.context) - 2
                for token in full[start : start + 2]:
                    round.offer(token)

            return propose

    result = engine_on(target, Two(full), second, length=5).generate([1, 2], max_new_tokens=20)
    assert result.token_ids == tuple(full)
    for record in result.records:
        assert sum(share.num_proposed for share in record.drafters) == record.num_proposed
        assert sum(share.num_evaluated for share in record.drafters) == record.num_evaluated
        assert sum(share.num_accepted for share in record.drafters) == record.num_accepted
    right, random_one = result.stats.drafters["d0"], result.stats.drafters["d1"]
    assert right.acceptance == 1.0
    assert random_one.acceptance < 1
    assert result.stats.num_proposed == right.num_proposed + random_one.num_proposed
    assert result.stats.tokens_per_call == 20 / len(result.records)


def test_coupled_noise_is_asked_once_for_each_row_that_counts():
    """A draw that is keyed by anything but the position gives a text that depends on the blocks."""
    target = random_table(vocab_size=4)

    def run(*drafters):
        random = ScriptedRandom(gumbels=[np.random.default_rng(position).gumbel(size=4) for position in range(2, 20)])
        request = make_request(policy=SamplingPolicy(temperature=1.0), seed=1, budget=5)
        named = {f"d{index}": drafter for index, drafter in enumerate(drafters)}
        strategy = Strategy(length=Length(max_tokens=3))
        generation = Generation(target, named, strategy, request, request_id=1, table=None, random=random)
        while not generation.is_done:
            generation.step()
        generation.close()
        return generation.token_ids, random.keys

    plain, keys = run()
    assert keys == [GumbelKey(position, (0, 1, 2, 3)) for position in range(2, 7)]
    # An offered token costs no draw of its own: the noise is that of the row that judges it.
    assert run(Oracle(plain, wrong_at=1)) == (plain, keys)
    assert run(Oracle(plain)) == (plain, keys)


def test_residual_draws_are_keyed_by_purpose_round_and_node_and_never_twice():
    """A uniform that is used twice, for a draft and its acceptance say, makes the output lean to the draft."""
    target = random_table()
    random = ScriptedRandom(uniforms=np.random.default_rng(0).random(500))
    request = make_request(policy=SamplingPolicy(temperature=1.0), seed=1, budget=40)
    strategy = Strategy(verifier="residual", length=Length(max_tokens=3))
    drafter = LogitsDrafter(lambda ids: random_table(seed=3).row(ids))
    generation = Generation(target, {"d": drafter}, strategy, request, request_id=1, table=None, random=random)
    while not generation.is_done:
        generation.step()
    assert len(set(random.keys)) == len(random.keys)
    assert {key.purpose.name for key in random.keys} == {
        "DRAFT_SAMPLE",
        "ACCEPT_UNIFORM",
        "CORRECTION_SAMPLE",
        "TARGET_EXTRA",
        "TARGET_BASELINE",
    }
    rounds = {record.round_id: record for record in generation.records}
    for key in random.keys:
        assert isinstance(key, UniformKey)
        assert key.node <= rounds[key.round_id].num_proposed


def test_greedy_rounds_use_no_randomness():
    """A greedy row that is sampled at a tiny temperature can pick another token."""
    target = random_table()
    strategy = Strategy(verifier="residual")
    drafters = {"d": LogitsDrafter(lambda ids: target.row(ids))}
    generation = Generation(
        target, drafters, strategy, make_request(), request_id=1, table=None, random=ScriptedRandom()
    )
    while not generation.is_done:
        generation.step()
    assert generation.token_ids == target.greedy([1, 2], 6)
    assert generation.records[1].num_accepted > 0


@pytest.mark.parametrize("wrong_at", [None, 1])
def test_a_criterion_sees_each_length_once_and_stops_inside_a_block(wrong_at):
    """A criterion that is asked only after a round stops too late, or is asked about text that never was."""
    target = random_table()
    full = target.greedy([1, 2], 12)
    seen = []

    def criterion(ids):
        seen.append(ids.tolist())
        return ids.shape[1] == 9

    result = engine_on(target, Oracle(full, wrong_at)).generate([1, 2], max_new_tokens=12, criterion=criterion)
    assert result.token_ids == tuple(full[:7])
    assert (result.finish_reason, result.stop_match) == ("stop", None)
    assert seen == [[[1, 2, *full[: i + 1]]] for i in range(7)]


@pytest.mark.parametrize("answer", [lambda: 1 / 0, lambda: torch.tensor([True, False])], ids=["raises", "no bool"])
def test_a_criterion_that_gives_no_answer_is_the_targets_error(answer):
    """An exception of the caller's own code that comes bare does not say where it comes from."""
    with pytest.raises(TargetError, match=r"the stopping criterion failed \((ZeroDivision|Runtime)Error"):
        engine_on(random_table()).generate([1, 2], max_new_tokens=3, criterion=lambda ids: answer())


class Stateful(LogitsProcessor):
    """Forbid half of the ids, by the last id of the call before: a function of the calls, not of the ids."""

    def __init__(self):
        self.last = 0
        self.num_calls = 0

    def __call__(self, input_ids, scores):
        self.num_calls += 1
        start, self.last = self.last, int(input_ids[0, -1])
        return scores.index_fill(-1, (torch.arange(6) + start) % 12, -torch.inf)


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
def test_a_processor_that_is_not_declared_pure_switches_speculation_off(sampling):
    """A stateful processor that is run on rows which never happen gives another text; silence would hide the cost."""
    target = random_table()
    plain = engine_on(target).generate([1, 2], max_new_tokens=10, processors=[Stateful()], **sampling)
    drafter = RandomOffers(seed=0)
    processor = Stateful()
    result = engine_on(target, drafter).generate([1, 2], max_new_tokens=10, processors=[processor], **sampling)
    assert result.token_ids == plain.token_ids
    assert result.token_ids != engine_on(target).generate([1, 2], max_new_tokens=10, **sampling).token_ids
    assert processor.num_calls == 10
    assert result.stats.num_proposed == 0
    (event,) = result.events
    assert "neither declared pure" in event.message


def test_a_processor_that_is_declared_pure_keeps_speculation():
    """A declared processor must see each row's own prefix, and rejected tokens in none of them."""

    class Parity(LogitsProcessor):
        def __call__(self, input_ids, scores):
            lengths.append(input_ids.shape[1])
            return scores.index_fill(-1, (torch.arange(6) + int(input_ids.sum())) % 12, -torch.inf)

    lengths = []
    target = random_table()
    plain = engine_on(target).generate([1, 2], max_new_tokens=10, processors=[pure(Parity())])
    assert plain.token_ids != tuple(target.greedy([1, 2], 10))
    for wrong_at in (0, 1, None):
        lengths.clear()
        drafter = Oracle(plain.token_ids, wrong_at)
        result = engine_on(target, drafter).generate([1, 2], max_new_tokens=10, processors=[pure(Parity())])
        assert result.token_ids == plain.token_ids
        assert result.stats.num_proposed > 0
        assert not result.events
        assert lengths == list(range(2, 12))  # one call for each row that counts, none for a row that does not


def test_seconds_are_told_apart_and_add_up():
    """A phase that is counted twice, or not at all, blames the wrong part."""
    result = engine_on(TransformersTarget(shared_model()), RandomOffers(seed=0)).generate(PROMPT, max_new_tokens=6)
    seconds = result.stats.seconds
    assert list(seconds) == ["prefill", "draft", "verify", "sync", "decide", "commit", "emit"]
    assert all(spent > 0 for spent in seconds.values())
    assert result.stats.total_s == sum(seconds.values())
    assert result.stats.total_s == pytest.approx(sum(record.seconds for record in result.records), rel=1e-9)
    assert seconds["prefill"] == result.records[0].forward_s
    assert result.stats.drafters["d0"].seconds <= seconds["draft"]


class Bill:
    """A clock that stands until somebody spends."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds


class DeviceTarget(TableTarget):
    """A target whose rows are on a device: the host has them ``wait_s`` after it asks for them."""

    def __init__(self, bill, wait_s, **prices):
        super().__init__(
            lambda ids: [float(token == (ids[-1] + 1) % 12) for token in range(12)],
            vocab_size=12,
            on_call=lambda call: bill.spend(prices.get(call.kind, 0.0)),
        )
        self.bill, self.wait_s = bill, wait_s

    def open(self, request_id, *, max_tokens, kernel=SINGLE):
        target = self

        class Late(torch.Tensor):
            def cpu(self):
                target.bill.spend(target.wait_s)
                return self.as_subclass(torch.Tensor)

        class Session(TableSession):
            def _feed(self, *arguments, **settings):
                return super()._feed(*arguments, **settings).as_subclass(Late)

        return Session(self, request_id, max_tokens, kernel)


class Billed(RandomOffers):
    """Offers at a price, and takes note of what became of them at another."""

    def __init__(self, bill, propose_s, commit_s):
        super().__init__(seed=0)
        self.bill, self.propose_s, self.commit_s = bill, propose_s, commit_s

    def open(self, request):
        session = super().open(request)
        propose, commit = session.propose, session.commit
        session.propose = lambda round: (self.bill.spend(self.propose_s), propose(round))
        session.commit = lambda told: (self.bill.spend(self.commit_s), commit(told))
        return session


def test_each_phase_is_charged_with_what_happens_in_it():
    """Waiting for a device must not pass for judging, nor a drafter's rollback for drafting (case L1)."""
    bill = Bill()
    target = DeviceTarget(bill, wait_s=100.0, prefill=7.0, verify=10.0, commit=1000.0)
    drafter = Billed(bill, propose_s=1.0, commit_s=10_000.0)
    result = Engine(target, {"d": drafter}, clock=bill).generate([1, 2], max_new_tokens=12, **SAMPLED)
    prefill, first, *others = result.records
    assert prefill[-6:] == (0.0, 7.0, 100.0, 0.0, 0.0, 0.0)
    assert first.draft_s == 20_001.0  # a drafter that is opened is told the prompt and the first token
    assert len(others) > 2
    for record in others:
        is_asked = record.drafters[0].limit > 0  # not in the last round, which has no room
        assert (record.draft_s, record.forward_s, record.sync_s) == (float(is_asked), 10.0, 100.0)
        assert (record.decide_s, record.commit_s, record.emit_s) == (0.0, 11_000.0, 0.0)
    assert result.stats.total_s == sum(record.seconds for record in result.records) == bill.now
    greedy = Engine(target, clock=bill).generate([1, 2], max_new_tokens=4)
    assert greedy.stats.seconds["sync"] == 0.0  # what is on the host already is chosen there


class EvenOnly:
    """A grammar that wants an even id after an even number of tokens and ends nowhere."""

    start = 0

    def mask(self, state):
        return np.arange(12) % 2 == state % 2

    def advance(self, state, token):
        assert token % 2 == state % 2, "a forbidden token reached the grammar"
        return state + 1

    def is_final(self, state):
        return False


@pytest.mark.parametrize("sampling", [{}, SAMPLED])
@pytest.mark.parametrize("wrong_at", [0, 2, None])
def test_a_grammar_masks_every_row_and_every_offer(wrong_at, sampling):
    """A mask on the first row only lets a forbidden token through in a block."""
    target = random_table()
    plain = engine_on(target).generate([1, 2], max_new_tokens=12, grammar=EvenOnly(), **sampling)
    assert [token % 2 for token in plain.token_ids] == [0, 1] * 6
    refused = []

    class Offering(Oracle):
        def _proposer(self, request):
            inner = super()._proposer(request)

            def propose(round):
                parity = (len(round.context) - 2) % 2
                refused.append(round.offer(1 - parity))
                inner(round)

            return propose

    for drafter in (Offering(plain.token_ids, wrong_at), LogitsDrafter(lambda ids: target.row(ids))):
        result = engine_on(target, drafter).generate([1, 2], max_new_tokens=12, grammar=EvenOnly(), **sampling)
        assert result.token_ids == plain.token_ids
        assert not result.events
    assert refused
    assert not any(refused)


def test_a_grammar_whose_mask_is_narrower_than_the_logits_is_a_target_error():
    """Ids beyond a narrow mask would stay allowed."""

    class Narrow(EvenOnly):
        def mask(self, state):
            return np.ones(11, dtype=bool)

    with pytest.raises(TargetError, match=r"shape \[11\]"):
        engine_on(random_table()).generate([1, 2], max_new_tokens=3, grammar=Narrow())


def test_draws_map_columns_and_refuse_bad_rows():
    """A row over other columns that is read as one over ids draws another token than the draft's."""
    errors = []
    target = TableTarget(lambda ids: [0.0] * 6, vocab_size=6)

    def run(call):
        """Return the result, and what each call in a round of room 2 and then 1 gave."""
        given = []

        class Calling(RandomOffers):
            def _proposer(self, request):
                def propose(round):
                    try:
                        given.append(call(round))
                    except Exception as error:
                        errors.append(str(error))
                        raise

                return propose

        result = engine_on(target, Calling(seed=0)).generate([0], max_new_tokens=4)
        assert result.token_ids == (0, 0, 0, 0)
        return result, given

    row = torch.tensor([0.0, 3.0, 1.0])
    for call, expected in (
        (lambda round: round.draw(row, [4, 2, 0]), 2),
        (lambda round: round.draw(row, torch.tensor([4, 99, -1])), 4),
        (lambda round: round.draw(row), 1),
        (lambda round: round.draw(torch.arange(8.0)), 5),
        (lambda round: tuple(round.draw_rows(torch.eye(6)[[3, 1, 2]])), (3, 1)),
    ):
        _, given = run(call)
        assert given[0] == expected
        assert not errors
    for call, rule in (
        (lambda round: round.draw(row, [4, 4, 0]), "injective"),
        (lambda round: round.draw(row, [4, 2]), "each of the 3 columns"),
        (lambda round: round.draw(row, [4.5, 2.5, 0.5]), "integer ids"),
        (lambda round: round.draw(row[:2], [True, False]), "integer ids"),
        (lambda round: round.draw(torch.eye(6)), "one row"),
        (lambda round: round.draw_rows(row), "draw for one row"),
        (lambda round: round.draw(torch.tensor([float("nan"), 0.0])), "NaN"),
        (lambda round: round.draw(torch.full((6,), -torch.inf)), "valid token"),
        (lambda round: round.offer(6), r"in [0, 6)"),
        (lambda round: round.offer(-1), r"in [0, 6)"),
        (lambda round: round.offer("1"), "integer id"),
    ):
        errors.clear()
        result, _ = run(call)
        assert rule in errors[0]
        assert [event.message for event in result.events] == ["switched off: propose raised ProposalError"]
        assert result.stats.num_proposed == 0


def test_an_engine_that_is_dropped_frees_its_model_at_once():
    """Prevents gigabytes that stay until the collector comes, and another model that finds no place beside them."""
    target = TransformersTarget(tiny_model())
    dropped = weakref.ref(target)
    gc.collect()
    gc.disable()
    try:
        for arguments in ({}, SAMPLED, {"criterion": lambda ids: False}):
            engine_on(target, LogitsDrafter(lambda ids: [0.0] * 64)).generate(PROMPT, max_new_tokens=6, **arguments)
        del target
        assert dropped() is None
    finally:
        gc.enable()
