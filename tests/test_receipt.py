"""Receipts: what is in one follows from the run, and a file that is not whole is one clear error."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from fractions import Fraction
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import engine_on, random_table

from specframe import Engine, GenerationError, InvalidReceipt, InvalidRequest, Receipt, StreamNotFinished, TargetError
from specframe.manifest.digest import canonical, sampling_digest
from specframe.receipt import NONE, UNKNOWN, WITHHELD, from_plain
from specframe.stats import plain
from specframe.testing import Fault, Faulty, Oracle, RandomOffers, TableTarget, failing

PROMPT = [1, 2]
TEXT = random_table().greedy(PROMPT, 64)


def run(*drafters, length=4, **arguments):
    return engine_on(random_table(), *drafters, length=length).generate(PROMPT, **{"max_new_tokens": 16, **arguments})


@pytest.fixture(scope="module")
def receipt():
    return run(Oracle(TEXT, wrong_at=2), RandomOffers(1), temperature=0.8, seed=7).receipt


def test_counts_of_a_run_by_hand():
    """Rounds of four tokens of which the third is wrong: 1 from the prefill, then 2 accepted and 1 corrected, five times."""
    receipt = run(Oracle(TEXT, wrong_at=2)).receipt
    assert (receipt.stats.num_rounds, receipt.stats.num_tokens, receipt.stats.num_target_calls) == (6, 16, 6)
    assert (receipt.num_draft_calls, receipt.num_proposals) == (5, 5)
    assert receipt.accepted_counts == (0, 0, 5)
    assert receipt.rejection_positions == (0, 0, 4, 0)  # in the last round there is room for two
    assert [round.num_emitted for round in receipt.rounds] == [1, 3, 3, 3, 3, 3]
    assert [share.limit for round in receipt.rounds for share in round.shares] == [4, 4, 4, 4, 2]
    assert (receipt.num_prompt, receipt.max_new_tokens, receipt.finish_reason) == (2, 16, "length")
    assert (receipt.seed.value, receipt.exactness, receipt.kernel) == (None, "token-exact", "single")
    assert receipt.length_policy == "fixed"


def test_seconds_are_those_of_the_records():
    """Cold are the prefill and the first round, in which drafters open; warm the others."""
    result = run(Oracle(TEXT))
    seconds = [record.seconds for record in result.records]
    timing = result.receipt.timing
    assert (timing.prefill_s, timing.first_round_s, timing.num_warm) == (seconds[0], seconds[1], len(seconds) - 2)
    assert timing.warm_mean_s == pytest.approx(sum(seconds[2:]) / timing.num_warm)
    assert min(seconds[2:]) <= timing.warm_median_s <= timing.warm_p90_s <= max(seconds[2:])
    assert result.receipt.stats.seconds == result.stats.seconds


@pytest.mark.parametrize(
    "tell", [lambda tick: -tick, lambda tick: float("nan"), lambda tick: float("inf"), lambda tick: tick % 3]
)
def test_a_clock_that_is_wrong_costs_no_receipt(tell):
    """One that is set back while a request runs, or breaks, tells no seconds; all else is as ever."""
    ticks = map(float, itertools.count())
    engine = Engine(random_table(), {"mine": Oracle(TEXT)}, clock=lambda: tell(next(ticks)))
    receipt = engine.generate(PROMPT, max_new_tokens=8).receipt
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert receipt.stats.num_tokens == 8
    assert min(receipt.stats.seconds.values()) >= 0


def test_a_budget_without_end_is_one_that_a_file_can_hold():
    """Some say ``10**30`` where they mean for ever."""
    stream = engine_on(random_table()).stream(PROMPT, max_new_tokens=10**30, deadline_s=10**400)
    next(stream)
    stream.close()
    assert stream.receipt.max_new_tokens == 2**63 - 1


def test_a_failure_of_a_strangers_kind_has_no_name():
    """Whatever module it says that it is of."""
    stranger = type("AliceError", (RuntimeError,), {"__module__": "builtins"})
    table = random_table()
    stream = engine_on(failing(table, Fault("verify_linear", stranger()))).stream(PROMPT, max_new_tokens=8)
    with pytest.raises(GenerationError):
        list(stream)
    assert stream.receipt.failure == "Other"


def test_a_run_without_a_round_has_a_receipt():
    """Nothing was asked for, so there is no mean of anything."""
    receipt = run(max_new_tokens=0).receipt
    assert (receipt.rounds, receipt.accepted_counts, receipt.timing.warm_mean_s) == ((), (), None)
    assert Receipt.from_json(receipt.to_json()) == receipt


def test_a_receipt_is_made_once():
    """Two receipts of one run must not look like two runs; those of two runs must not look like one."""
    first, second = run(seed=1, temperature=1.0), run(seed=1, temperature=1.0)
    assert first.receipt is first.receipt
    assert first.receipt.request_nonce != second.receipt.request_nonce
    assert first.receipt.hashes.prompt != second.receipt.hashes.prompt
    assert first.receipt.hashes.sampling_policy == second.receipt.hashes.sampling_policy


def test_what_was_asked_is_told_by_digest():
    """What differs in a request differs in its digest, and nowhere else."""
    plain_run = run().receipt.hashes
    others = {
        "sampling_policy": {"top_k": 3, "temperature": 1.0},
        "grammar": {"grammar": Anything()},
    }
    for field, arguments in others.items():
        changed = run(**arguments).receipt.hashes
        fields = ("sampling_policy", "grammar", "scheduler_policy", "target")
        assert [name for name in fields if getattr(changed, name) != getattr(plain_run, name)] == [field]
    assert (plain_run.grammar, run(grammar=Anything()).receipt.hashes.grammar) == (NONE, UNKNOWN)
    assert plain_run.target == plain_run.tokenizer == UNKNOWN  # a table states no manifest
    lengths = [engine_on(random_table(), length=length).generate(PROMPT).receipt for length in (3, 4)]
    assert lengths[0].hashes.scheduler_policy != lengths[1].hashes.scheduler_policy


class Anything:
    """A grammar that allows every id."""

    start = 0

    def mask(self, state):
        return np.ones(12, dtype=bool)

    def advance(self, state, token):
        return 0

    def is_final(self, state):
        return True


def test_numbers_of_any_kind_have_a_digest():
    """A number that comes from an array or from a fraction is that number."""
    assert canonical(np.float32(0.5)) == canonical(0.5)
    assert canonical(np.int64(3)) == canonical(3.0)
    hashes = [run(temperature=number, seed=1).receipt.hashes.sampling_policy for number in (0.5, Fraction(1, 2))]
    assert hashes[0] == hashes[1]
    assert sampling_digest(attrs.evolve(run_policy(), top_k=np.int64(5))) == sampling_digest(run_policy())


def run_policy():
    from specframe import SamplingPolicy

    return SamplingPolicy(top_k=5)


def test_events_are_codes():
    """A message may name anything; its code cannot."""
    receipt = run(Faulty("propose", 1, Oracle(TEXT)), Oracle(TEXT)).receipt
    assert [(event.round_id, event.drafter, event.code) for event in receipt.events] == [
        (2, "given-1", "drafter-failed")
    ]
    stream = engine_on(random_table(context_limit=8)).stream(PROMPT, max_new_tokens=16)
    list(stream)
    assert [event.code for event in stream.receipt.events] == ["context-limit"]


def failing_after(after):
    """Return a table whose forward fails in the context of an id."""

    def row(ids):
        if ids[-1] == after:
            raise MemoryError("no memory for /home/alice")
        return [float(token == ids[-1] + 1) for token in range(12)]

    return TableTarget(row, vocab_size=12)


@pytest.mark.parametrize(("after", "error", "num_rounds"), [(2, TargetError, 0), (5, GenerationError, 3)])
def test_a_run_that_failed_has_a_receipt_too(after, error, num_rounds):
    """Who looks for the cause of a failure has more use for a receipt than who has the text."""
    stream = engine_on(failing_after(after)).stream(PROMPT, max_new_tokens=8)
    with pytest.raises(StreamNotFinished, match="no receipt yet"):
        _ = stream.receipt
    with pytest.raises(error):
        list(stream)
    receipt = stream.receipt
    assert (receipt.finish_reason, receipt.failure, len(receipt.rounds)) == ("failed", "TargetError", num_rounds)
    assert Receipt.from_json(receipt.to_json()) == receipt
    with pytest.raises(StreamNotFinished):
        _ = stream.result


def test_a_stream_and_its_result_have_one_receipt():
    """A server reads the stream, its log the result."""
    stream = engine_on(random_table()).stream(PROMPT, max_new_tokens=8)
    next(stream)
    stream.close()
    assert stream.receipt is stream.result.receipt
    assert stream.receipt.finish_reason == "cancelled"


def test_who_tells_nothing_of_its_memory_is_unknown():
    """A drafter that fails to tell costs no run, and what it calls its parts is not repeated."""

    class Holder(Oracle):
        def tensors(self):
            return {"the secret of alice": [np_tensor(3)], "cache": [np_tensor(2)]}

    class Broken(Oracle):
        def tensors(self):
            raise RuntimeError

    memory = run(Holder(TEXT), Broken(TEXT)).receipt.memory
    assert memory.parts == {"given-1 other": 24, "given-1 cache": 16}
    assert (memory.deduplicated, memory.incremental) == (40, 40)
    assert memory.unknown == ("target", "given-2")
    assert memory.process > 2**20


def np_tensor(size):
    import torch

    return torch.zeros(size, dtype=torch.float64)


def test_a_file_is_read_back_as_it_was(receipt, tmp_path):
    """A field that is lost on the way to disk is lost for ever."""
    receipt.write(tmp_path / "run.json")
    again = Receipt.read(tmp_path / "run.json")
    assert again == receipt
    assert again.to_json() == receipt.to_json() == (tmp_path / "run.json").read_text()
    data = json.loads(receipt.to_json())
    assert data["digest"] == receipt.digest
    assert data["stats"] == plain(receipt.stats)
    assert receipt.to_json().count('\n    {"round_id"') == len(receipt.rounds)


def test_the_coarse_variant_says_less(receipt, tmp_path):
    """What is given away must not confirm a guess of what was written, nor name the machine."""
    coarse = receipt.coarse()
    assert coarse == receipt.coarse() == coarse.coarse()
    assert coarse.request_nonce == receipt.request_nonce
    withheld = {name for name, value in attrs.asdict(coarse.hashes).items() if value == WITHHELD}
    assert withheld == {"scheduler_policy", "sampling_policy", "stops", "prompt", "output"}
    assert coarse.hashes.grammar == NONE
    assert coarse.rounds == ()
    assert (coarse.seed.value, receipt.seed.value) == (None, 7)
    assert coarse.seed.commitment.startswith("seed-v1:")
    assert "threads" not in coarse.hardware
    assert all(float(f"{number:.1e}") == number for number in coarse.stats.seconds.values())
    assert coarse.accepted_counts == receipt.accepted_counts
    coarse.write(tmp_path / "coarse.json")
    assert Receipt.read(tmp_path / "coarse.json") == coarse


def test_a_commitment_is_to_the_seed():
    """Another seed, or another nonce, is another commitment; it does not tell the seed."""
    runs = [run(temperature=1.0, seed=seed).receipt for seed in (1, 2)]
    same = attrs.evolve(runs[1], request_nonce=runs[0].request_nonce)
    assert runs[0].coarse().seed.commitment not in (runs[1].coarse().seed.commitment, same.coarse().seed.commitment)
    assert run().receipt.coarse().seed.commitment is None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[: len(text) // 2], "not whole JSON"),
        (lambda text: "", "not whole JSON"),
        (lambda text: "\x00\x01", "not whole JSON"),
        (lambda text: "[]", "not a receipt: it has no 'receipt_version'"),
        (lambda text: "{}", "not a receipt"),
        (lambda text: "[" * 100_000, "not whole JSON"),
        (lambda text: text.replace('"receipt_version": 2', '"receipt_version": true'), "not a receipt"),
        (lambda text: text.replace('"receipt_version": 2', '"receipt_version": 3'), "version 3; .* upgrade specframe"),
        (lambda text: text.replace('"receipt_version": 2', '"receipt_version": 1'), "version 1; .* make another one"),
        (lambda text: text.replace('"num_prompt": 2', '"num_prompt": 3'), "was changed or cut off"),
        (lambda text: text.replace('"num_prompt": 2', '"num_prompt": NaN'), "NaN is no number of JSON"),
        (lambda text: text.replace('"num_prompt": 2', '"num_prompt": ' + "9" * 5000), "not whole JSON"),
        (lambda text: text.replace('"num_prompt": 2,', ""), "was changed or cut off"),
        (lambda text: text.replace("receipt-v1", "receipt-v2"), "was changed or cut off"),
    ],
)
def test_a_file_that_is_not_whole_is_one_clear_error(receipt, tmp_path, change, told):
    """A receipt that was cut off, edited or made by a later version must not pass for what it was."""
    path = tmp_path / "run.json"
    text = receipt.to_json()
    assert change(text) != text
    path.write_text(change(text), encoding="utf-8")
    with pytest.raises(InvalidReceipt, match=told) as caught:
        Receipt.read(path)
    assert "receipt 'run.json'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert "\n" not in str(caught.value)


def resealed(receipt, **changes):
    """Return plain data with changes and the digest that fits them, as one who edits on purpose would make it."""
    from specframe.manifest.digest import digest

    data = json.loads(receipt.to_json())
    del data["digest"]
    data |= changes
    return {**data, "digest": digest("receipt-v1", data)}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"prompt": "hello"}, "unknown key 'prompt'"),
        ({"num_prompt": "2"}, "'num_prompt' must be of type int"),
        ({"num_prompt": -1}, r"'num_prompt' must be in \[0"),
        ({"num_prompt": 2**70}, r"'num_prompt' must be in \[0"),
        ({"request_nonce": "alice"}, "'request_nonce' must be of the form"),
        ({"finish_reason": "said hello"}, "'finish_reason' must be one of"),
        ({"failure": "Error in /home/alice"}, "'failure' must be of the form"),
        ({"kernel": "block:x"}, "'kernel' must be of the form"),
        ({"drafters": {"/home/alice": "none"}}, "'drafters' must have keys of the form"),
        ({"drafters": {"d": "text"}}, "'drafters' is not a digest"),
        ({"hardware": {"host": "a/b"}}, "'hardware' must be of the form"),
        ({"events": [{"round_id": 1, "drafter": None, "code": "spoke"}]}, "'code' must be one of"),
        ({"seed": {"value": 2**64, "commitment": None, "sample": 0}}, "'value' must be in"),
        ({"stats": {}}, "'stats.num_rounds' is missing"),
        ({"stats": None}, "'stats' has the wrong type"),
        ({"rounds": 3}, "'rounds'"),
    ],
)  # fmt: skip
def test_nothing_free_can_be_put_in(receipt, changes, told):
    """A reader of receipts, and who passes them on, may count on the closed forms."""
    with pytest.raises(InvalidReceipt, match=told):
        from_plain(resealed(receipt, **changes), "receipt")


@given(data=st.data())
def test_every_cut_and_every_changed_character_is_noticed(data):
    """Whatever is cut off or flipped, no other receipt comes out of it."""
    text = RECEIPT.to_json()
    position = data.draw(st.integers(0, len(text) - 2))
    if data.draw(st.booleans()):
        damaged = text[:position]
    else:
        damaged = text[:position] + data.draw(st.characters(codec="utf-8")) + text[position + 1 :]
    with contextlib.suppress(InvalidReceipt):
        assert Receipt.from_json(damaged) == RECEIPT


RECEIPT = run(Oracle(TEXT, wrong_at=1), seed=3, temperature=0.5).receipt


def test_files_that_cannot_be_read_are_told(tmp_path):
    """A missing file and a binary one are not tracebacks."""
    with pytest.raises(InvalidReceipt, match="cannot be read: No such file"):
        Receipt.read(tmp_path / "none.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidReceipt, match="not a text file"):
        Receipt.read(tmp_path / "binary.json")


def test_a_receipt_is_replaced_as_a_whole(receipt, tmp_path, monkeypatch):
    """A kill between two writes must not leave half a receipt, or lose the old one."""
    receipt.write(tmp_path / "run.json")
    before = (tmp_path / "run.json").read_text()

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InvalidRequest, match=r"'receipt' must be a file that can be written.*No space left"):
        RECEIPT.write(tmp_path / "run.json")
    assert (tmp_path / "run.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_one_clear_error(receipt):
    """The real thing."""
    with pytest.raises(InvalidRequest, match="No space left on device"):
        receipt.write("/dev/full")


def test_an_engine_that_is_closed_still_tells():
    """A receipt may be asked for when the engine is gone."""
    with Engine(random_table(), {"mine": Oracle(TEXT)}) as engine:
        result = engine.generate(PROMPT, max_new_tokens=4)
    assert result.receipt.stats.num_tokens == 4
