"""The kernel contract ``block``: bitwise equality of what speculation and plain decoding compute, and when it is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from models import KINDS, CheckedTarget, RecordingTarget, engine_on, random_table, shared_model, tiny_model
from transformers import AttentionInterface, AutoModelForCausalLM, MixtralConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward

import specframe.kernel
from specframe import Engine, InvalidStrategy, Strategy, TransformersTarget, UnsupportedModel
from specframe.errors import CacheError, TargetError
from specframe.kernel import choose_width, circumstances, rows_are_independent
from specframe.settings import kept_settings
from specframe.strategy import Length
from specframe.target import SINGLE, Kernel, Ticket
from specframe.testing import Adversary, LogitsDrafter, Oracle, RandomOffers

PROMPT = tuple(range(3, 60)) + tuple(range(7, 40))  # longer than one padded chunk
SAMPLED: dict[str, Any] = {"temperature": 0.9, "top_p": 0.95, "seed": 5}
LONG: dict[str, Any] = {"max_position_embeddings": 320}


def long_model(kind: str, dtype: torch.dtype) -> Any:
    return tiny_model(kind, dtype=dtype, **({"n_positions": 320} if kind == "gpt2" else LONG))


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    """Probe anew in every test."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(specframe.kernel, "_measured", {})


def drafters(continuation: tuple[int, ...]) -> dict[str, list[Any]]:
    table = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    return {
        "right": [Oracle(continuation)],
        "wrong at 2": [Oracle(continuation, wrong_at=2)],
        "random": [RandomOffers(3)],
        "drawn, then offered": [LogitsDrafter(lambda ids: table[ids[-1]], num_tokens=2), Oracle(continuation)],
    }


@pytest.mark.parametrize(
    ("kind", "dtype", "sampling"),
    [(kind, torch.bfloat16, SAMPLED) for kind in KINDS if kind != "gemma2"]
    + [("llama", torch.bfloat16, {}), ("llama", torch.float32, {}), ("gemma3", torch.float32, SAMPLED)],
    ids=str,
)
def test_speculation_is_bitwise_plain_decoding(kind, dtype, sampling):
    """Rows, keys and values of every committed position are equal to the bit, whatever was proposed and rejected."""
    model = long_model(kind, dtype)
    plain = RecordingTarget(model)
    engine = engine_on(plain, kernel="block:8")
    assert engine.kernel == Kernel(8, is_certified=True)
    expected = engine.generate(PROMPT, max_new_tokens=48, **sampling)
    assert expected.exactness == "bitwise"
    assert expected.kernel == "block:8"
    accepted = rejected = 0
    for given in drafters(expected.token_ids).values():
        target = RecordingTarget(model)
        result = engine_on(target, *given, length=12, kernel="block:8").generate(PROMPT, max_new_tokens=48, **sampling)
        assert result.token_ids == expected.token_ids
        assert target.shapes == {8}
        positions = range(len(PROMPT) - 1, len(PROMPT) + 47)
        assert all(torch.equal(target.read[position], plain.read[position]) for position in positions)
        assert all(torch.equal(one, other) for one, other in zip(target.layers(), plain.layers(), strict=True))
        accepted += result.stats.num_accepted
        rejected += result.stats.num_proposed - result.stats.num_accepted
    assert accepted > 48
    assert rejected > 48


def test_rows_as_they_come_are_not_bitwise_equal():
    """A negative control: under ``single`` the same comparison fails, so it can."""
    model = long_model("llama", torch.float32)
    plain, target = RecordingTarget(model), RecordingTarget(model)
    tokens = engine_on(plain, kernel="single").generate(PROMPT, max_new_tokens=40).token_ids
    one_by_one, together = [], []
    for width, rows in ((1, one_by_one), (8, together)):
        target.reset()
        session = target.open(width, max_tokens=400)
        ticket = Ticket(width, 0, 0)
        session.prefill(ticket, PROMPT)
        for start in range(0, 32, width):
            block = tokens[start : start + width]
            rows.append(session.verify_linear(ticket, block[0], block[1:]).logits)
            session.commit(ticket, len(block))
        session.close()
    assert not torch.equal(torch.cat(one_by_one), torch.cat(together))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_number(kind):
    """In float64 every row of a padded block is that of a forward without cache and padding."""
    target = CheckedTarget(shared_model(kind))
    plain = engine_on(TransformersTarget(shared_model(kind))).generate(PROMPT[:40], max_new_tokens=20)
    engine = engine_on(target, Oracle(plain.token_ids, wrong_at=1), length=4, kernel="block:4")
    result = engine.generate(PROMPT[:40], max_new_tokens=20)
    assert result.token_ids == plain.token_ids
    assert set(target.fed) == {4, 64}
    assert target.worst < 1e-10


@pytest.mark.parametrize("kind", ["llama", "gpt2", "gemma3"])
def test_padding_takes_no_position_beyond_the_context(kind):
    """A table of 64 positions has no entry for the padding of a block that begins at position 63."""
    model = shared_model(kind)
    plain = engine_on(TransformersTarget(model)).generate(PROMPT[:50], max_new_tokens=40)
    engine = engine_on(TransformersTarget(model), Oracle(plain.token_ids, wrong_at=2), kernel="block:8", length=7)
    result = engine.generate(PROMPT[:50], max_new_tokens=40)
    assert result.token_ids == plain.token_ids
    assert (result.finish_reason, len(result.token_ids)) == (plain.finish_reason, len(plain.token_ids))
    assert len(plain.token_ids) < 40


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "coupled"])
def test_three_turns_of_a_chat_that_keep_their_prefix(sampling):
    """A stop inside a block leaves the cache as plain decoding does, so later turns compute from the same keys."""
    model = long_model("llama", torch.bfloat16)
    first = engine_on(TransformersTarget(model), kernel="block:8").generate(PROMPT, max_new_tokens=30, **sampling)
    stop = first.token_ids[17]

    def chat(*given: Any) -> tuple[list[tuple[int, ...]], list[torch.Tensor]]:
        target = RecordingTarget(model)
        engine = engine_on(target, *given, length=7, kernel="block:8")
        turns: list[tuple[int, ...]] = []
        prompt = PROMPT
        for _ in range(3):
            turns.append(engine.generate(prompt, max_new_tokens=30, stop_ids=[stop], **sampling).token_ids)
            prompt = (*prompt, *turns[-1], 9, 11, 13, 4)
        return turns, target.layers()

    turns, layers = chat()
    said = [*turns[0], 9, 11, 13, 4, *turns[1], 9, 11, 13, 4, *turns[2]]
    assert len(turns[0]) < 30
    for drafter in (Oracle(said), Oracle(said, wrong_at=3), RandomOffers(1)):
        other_turns, other_layers = chat(drafter)
        assert other_turns == turns
        assert all(torch.equal(one, other) for one, other in zip(layers, other_layers, strict=True))


def test_what_another_kernel_cached_is_not_used():
    """Keys of ``single`` under a block would make its rows depend on who asked before."""
    target = RecordingTarget(long_model("llama", torch.bfloat16))
    block, single = engine_on(target, kernel="block:4"), engine_on(target, kernel="single")
    alone = block.generate(PROMPT, max_new_tokens=5)
    layers = target.layers()
    single.generate(PROMPT, max_new_tokens=5)
    assert block.generate(PROMPT, max_new_tokens=5).token_ids == alone.token_ids
    assert all(torch.equal(one, other) for one, other in zip(layers, target.layers(), strict=True))


def test_what_was_rolled_back_is_zero_where_attention_is_shown_it():
    """A hidden NaN times zero is NaN: a rejected token's keys must not reach the rows after."""
    target = TransformersTarget(long_model("llama", torch.float32))
    session = target.open(1, max_tokens=200, kernel=Kernel(8))
    ticket = Ticket(1, 0, 0)
    session.prefill(ticket, PROMPT)
    session.verify_linear(ticket, 5, [6, 7])
    with torch.inference_mode():
        for layer in target.cache.layers:
            layer.values[:, :, len(PROMPT) + 1 : len(PROMPT) + 20] = torch.nan
            layer.length = len(PROMPT) + 20
    session.commit(ticket, 1)
    assert torch.isfinite(session.verify_linear(ticket, 6, []).logits).all()


def test_room_is_at_most_what_a_block_holds():
    """A proposal that needs a second block would cost twice."""
    engine = engine_on(random_table(), RandomOffers(0), length=30, kernel="block:4")
    result = engine.generate([1, 2], max_new_tokens=60)
    assert max(record.num_proposed for record in result.records) == 3
    with pytest.raises(CacheError, match="'block:4' after 1 ids takes at most 4"):
        session = random_table().open(1, max_tokens=20, kernel=Kernel(4))
        session.prefill(Ticket(1, 0, 0), [1])
        session.verify_linear(Ticket(1, 0, 0), 1, [1, 2, 3, 4])
    target = TransformersTarget(shared_model())
    session = target.open(1, max_tokens=20, kernel=Kernel(2))
    session.prefill(Ticket(1, 0, 0), [1, 2])
    with pytest.raises(CacheError, match="'block:2' after 2 ids takes at most 2"):
        session.verify_linear(Ticket(1, 0, 0), 1, [1, 2])
    session.close()


@pytest.mark.parametrize("width", [1, 4, 8, 16])
def test_every_row_that_counts_is_padded_as_in_plain_decoding(width):
    """A row over 192 keys and the same over 256 differ in their last bits on some processors: the keys of a position must not
    depend on where its block began.
    """
    kernel = Kernel(width)

    def padded(position):
        return -(-(position + width) // 64) * 64

    for start in range(300):
        most = kernel.most_ids(start)
        assert {padded(position) for position in range(start, start + most)} == {padded(start)}
        assert most == width or padded(start + most) > padded(start)
    assert SINGLE.most_ids(60) is None


def test_blocks_end_where_plain_decoding_is_padded_further():
    """The rule above in a generation: full blocks in between, shorter ones before a multiple of 64, none across."""
    model = long_model("llama", torch.float32)
    plain = engine_on(TransformersTarget(model), kernel="block:8").generate(PROMPT, max_new_tokens=150)
    engine = engine_on(TransformersTarget(model), Oracle(plain.token_ids), length=30, kernel="block:8")
    result = engine.generate(PROMPT, max_new_tokens=150)
    assert result.token_ids == plain.token_ids
    sizes = [1 + record.num_proposed for record in result.records[1:]]
    committed = len(PROMPT)
    for size in sizes[:-1]:
        assert size == Kernel(8).most_ids(committed)
        committed += size
    assert 8 in sizes
    assert min(sizes[:-1]) < 8


def test_a_row_that_depends_on_others_is_found(monkeypatch):
    """Negative controls of the probe: a trace of a co-row in a row, at any place, lowers the class and says so."""
    model = long_model("llama", torch.float32)

    class Leaky(TransformersTarget):
        def run(self, ids, cache, num_rows):
            logits = super().run(ids, cache, num_rows).clone()
            if num_rows > 1:
                logits[:, 0, 0] += 1e-6 * ids[0, -1]
            return logits

    assert rows_are_independent(TransformersTarget(model), 8)
    assert not rows_are_independent(Leaky(model), 8)
    engine = engine_on(Leaky(model), kernel="block:8")
    assert engine.kernel.width == 8
    assert not engine.kernel.is_certified
    result = engine.generate(PROMPT, max_new_tokens=3)
    assert result.exactness == "token-exact"
    assert [event.message for event in result.events if "not bitwise equal" in event.message]


def test_keys_that_depend_on_others_are_found():
    """The probe reads what a block leaves in the cache, not its logits alone."""

    class Leaky(TransformersTarget):
        def run(self, ids, cache, num_rows):
            logits = super().run(ids, cache, num_rows)
            cache.layers[-1].values[:, :, cache.get_seq_length() - ids.shape[1]] += 1e-6 * ids[0, -1]
            return logits

    assert not rows_are_independent(Leaky(long_model("llama", torch.float32)), 8)


def test_the_verdict_is_remembered(monkeypatch):
    """The probe takes seconds on a real model; a second load asks what was found, unless the machine is another one."""
    asked = []

    def probe(target, width):
        asked.append(width)
        return {"wrong": "", "is_bitwise": True}

    monkeypatch.setattr(specframe.kernel, "probe", probe)
    model = long_model("llama", torch.float32)
    engine = engine_on(TransformersTarget(model), kernel="block:8")
    monkeypatch.setattr(specframe.kernel, "_measured", {})  # another process
    engine_on(TransformersTarget(model), kernel="block:8")
    engine_on(TransformersTarget(model), kernel="block:4")
    assert asked == [8, 4]
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads + 1)
        assert engine.generate(PROMPT, max_new_tokens=2).exactness == "bitwise"
    finally:
        torch.set_num_threads(num_threads)
    assert asked == [8, 4, 8]
    model.lm_head.register_parameter("added", torch.nn.Parameter(torch.zeros(2)))
    engine_on(TransformersTarget(model), kernel="block:8")
    assert asked == [8, 4, 8, 8]


def test_keys_of_other_circumstances_are_not_used():
    """With another number of threads the same ids have other keys, so a cached prefix no longer is the reference's."""
    target = CheckedTarget(long_model("llama", torch.float32))
    engine = engine_on(target, kernel="block:8")
    engine.generate(PROMPT, max_new_tokens=2)
    target.fed.clear()
    engine.generate((*PROMPT, 5), max_new_tokens=2)
    assert target.fed == [8, 8]
    target.fed.clear()
    num_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(num_threads + 1)
        engine.generate((*PROMPT, 5), max_new_tokens=2)
    finally:
        torch.set_num_threads(num_threads)
    assert target.fed.count(64) == 2


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda: torch.set_num_threads(torch.get_num_threads() + 1), "number of threads, which was 1 and is 2 now"),
        (lambda: torch.set_float32_matmul_precision("medium"), "matmul precision, which was highest and is medium now"),
    ],
    ids=["threads", "precision"],
)
@pytest.mark.parametrize("kernel", ["block:8", "single"])
def test_what_is_set_in_the_middle_of_a_stream_lowers_the_class(change, told, kernel):
    """Prevents a result that says 'bitwise' where half of it was computed by other code, and a cache that is half of each."""
    target = CheckedTarget(long_model("llama", torch.float32))
    engine = engine_on(target, RandomOffers(3), kernel=kernel)
    first = engine.generate(PROMPT, max_new_tokens=12)
    with kept_settings(), engine.stream(PROMPT, max_new_tokens=12) as stream:
        next(stream), next(stream)
        change()
        *_, _last = stream
        result = stream.result
    if kernel == "single":
        assert (result.exactness, result.events) == (first.exactness, ())
        return
    assert (first.exactness, result.exactness, result.kernel) == ("bitwise", "token-exact", "block:8")
    (event,) = result.events
    assert (event.code, event.round_id) == ("kernel-lowered", 2)
    assert event.message == (
        f"torch's {told}, was set in the middle of a generation under kernel 'block:8'; the class is token-exact"
    )
    target.fed.clear()
    again = engine.generate(PROMPT, max_new_tokens=12)
    assert (again.exactness, again.token_ids) == ("bitwise", first.token_ids)
    assert target.fed.count(64) == 2  # from the start


def test_a_choice_that_cannot_be_kept_is_kept_in_the_process(monkeypatch):
    """W comes from times: measured twice it could be two, and one seed two texts."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", "/dev/null/nowhere")
    costs = iter([{"4": 1.0, "8": 1.0, "16": 9.0}, {"4": 1.0, "8": 9.0, "16": 9.0}])
    monkeypatch.setattr(specframe.kernel, "measure_costs", lambda target: next(costs))
    model = long_model("llama", torch.float32)
    assert [engine_on(TransformersTarget(model), kernel="block").kernel.width for _ in range(2)] == [8, 8]


def test_what_rows_cost_is_measured_once_and_only_on_a_quiet_machine(monkeypatch):
    """Prevents lengths from following, for good, what rows cost while the machine did something else."""
    asked = []

    def measure(dear, disturbance):
        """Return what rows cost where eight take ``dear``, and every second call ``disturbance`` times as long."""

        def time(cache, sizes, repeats):
            asked.append(sizes)
            seconds = {size: dear if size == 8 else 1.0 for size in sizes}
            return {size: [second, disturbance * second] * 2 for size, second in seconds.items()}

        monkeypatch.setattr(specframe.kernel.ProbeCache, "time", time)
        return TransformersTarget(model).row_costs()

    model = long_model("llama", torch.float32)
    for dear, disturbance, expected in ((5.0, 9.0, 5.0), (14.0, 1.0, 8.0), (2.0, 1.0, 2.0), (7.0, 1.0, 2.0)):
        costs = measure(dear, disturbance)
        assert (len(costs), costs[0], costs[7]) == (16, 1.0, expected)
    assert len(asked) == 3  # uneven ones were not kept, nor those that cost more than a row at a time; the next one was


def test_row_costs_of_a_model_that_fails_are_unknown():
    """Prevents a measurement from being a condition: lengths are learned then."""

    class Failing(TransformersTarget):
        def run(self, ids, cache, num_rows):
            raise RuntimeError("out of memory")

    target = Failing(long_model("llama", torch.float64))
    assert target.row_costs() == ()
    with pytest.raises(TargetError):
        engine_on(target, kernel="single").generate(PROMPT, max_new_tokens=2)


def test_row_costs_are_measured_for_adaptive_lengths_alone():
    """Prevents plain decoding from waiting for a measurement that nobody reads, under a strategy of adaptive lengths too."""

    class Counting(TransformersTarget):
        num_asked = 0

        def row_costs(self):
            self.num_asked += 1
            return super().row_costs()

    target = Counting(long_model("llama", torch.float32))
    adaptive = Strategy(length=Length("adaptive", 4))
    engine_on(target, kernel="single").generate(PROMPT, max_new_tokens=2)
    Engine(target, strategy=adaptive).generate(PROMPT, max_new_tokens=2)
    assert target.num_asked == 0
    engine = Engine(target, {"d": RandomOffers(3)}, strategy=adaptive)
    assert target.num_asked == 1
    engine.generate(PROMPT, max_new_tokens=2)
    assert all(cost > 0 for cost in target.row_costs())


def test_attention_that_ignores_its_mask_gets_no_padding():
    """Padded keys are hidden by a mask and by nothing else."""

    def unmasked(module, query, key, value, attention_mask, **arguments):
        return sdpa_attention_forward(module, query, key, value, None, **{**arguments, "is_causal": False})

    AttentionInterface.register("test_unmasked", unmasked)
    model = long_model("llama", torch.float32)
    model.set_attn_implementation("test_unmasked")
    with pytest.raises(UnsupportedModel, match="does not leave out the keys that its mask hides; use kernel 'single'"):
        engine_on(TransformersTarget(model), kernel="block:8")
    low = long_model("llama", torch.bfloat16)
    low.set_attn_implementation("test_unmasked")
    engine = engine_on(TransformersTarget(low))
    assert engine.kernel.width is None
    assert "does not leave out" in engine.generate(PROMPT, max_new_tokens=2).events[0].message


def test_a_model_that_cannot_run_padded_still_runs():
    """Some attention makes its own bias of the length that it expects: that is no reason to refuse the model."""

    class Unpadded(TransformersTarget):
        def run(self, ids, cache, num_rows):
            if cache.layers[0].granule > 1:
                raise RuntimeError("the size of tensor a (68) must match")
            return super().run(ids, cache, num_rows)

    engine = engine_on(Unpadded(long_model("llama", torch.bfloat16)))
    result = engine.generate(PROMPT, max_new_tokens=2)
    assert (result.kernel, result.exactness) == ("single", "token-exact")
    assert "a padded forward failed (RuntimeError: the size" in result.events[0].message
    with pytest.raises(UnsupportedModel, match="a padded forward failed"):
        engine_on(Unpadded(long_model("llama", torch.float32)), kernel="block")


def test_the_widest_block():
    """The probe needs more ids than a block has rows."""
    assert engine_on(TransformersTarget(long_model("llama", torch.float32)), kernel="block:64").kernel.is_certified


def test_by_default_precision_decides(monkeypatch, tmp_path):
    """float32 decodes row by row; below it, where that would change the text, in blocks of a measured width."""
    assert engine_on(TransformersTarget(long_model("llama", torch.float32))).kernel == SINGLE
    model = long_model("llama", torch.bfloat16)
    assert engine_on(TransformersTarget(model)).kernel.width in specframe.kernel.WIDTHS
    monkeypatch.setattr(specframe.kernel, "rows_are_independent", lambda target, width: False)
    monkeypatch.setattr(specframe.kernel, "_measured", {})
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "other"))
    kernel = engine_on(TransformersTarget(model)).kernel  # blocks that promise nothing more would only cost
    assert kernel.width is None
    assert "not bitwise equal" in kernel.note


def test_width_is_what_gives_most_tokens_for_its_cost():
    assert choose_width({"4": 1.0, "8": 1.0, "16": 1.0}) == 16
    assert choose_width({"4": 1.0, "8": 1.1, "16": 1.4}) == 8
    assert choose_width({"4": 1.0, "8": 1.9, "16": 3.6}) == 4


def mixture(dtype: torch.dtype) -> Any:
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config, dtype=dtype).eval()


def test_models_whose_rows_depend_on_each_other_are_refused():
    """Experts run for all rows of a call together, and some RoPE looks at its length: no padding makes that equal."""
    with pytest.raises(UnsupportedModel, match=r"kernel 'block' is not possible .*experts.*use kernel 'single'"):
        engine_on(TransformersTarget(mixture(torch.float32)), kernel="block")
    engine = engine_on(TransformersTarget(mixture(torch.bfloat16)))
    assert engine.kernel.width is None
    result = engine.generate([1, 2, 3], max_new_tokens=2)
    assert (result.kernel, result.exactness) == ("single", "token-exact")
    assert "experts" in result.events[0].message
    dense = long_model("llama", torch.float32)
    dense.config.num_experts = 16  # a field that a dense variant of a family may have
    assert engine_on(TransformersTarget(dense), kernel="block:4").kernel.width == 4
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    with pytest.raises(UnsupportedModel, match="RoPE depends on the length"):
        engine_on(TransformersTarget(tiny_model(rope_parameters=rope)), kernel="block:8")


@pytest.mark.parametrize("kernel", ["blocks", "block:", "block:1", "block:65", "block:x", "Block", "block: 8", "", 8])
def test_a_kernel_that_is_none(kernel):
    with pytest.raises(InvalidStrategy, match=r"'kernel' must be auto, single, block, or block:W"):
        Strategy(kernel=kernel)


def test_a_table_is_certified_by_its_nature():
    target = random_table(stop_ids=[3])
    plain = Engine(target).generate([1, 2], max_new_tokens=30)
    engine = Engine(target, {"a": Adversary(lambda ids, index: 3)}, strategy=Strategy(kernel="block"))
    result = engine.generate([1, 2], max_new_tokens=30)
    assert (result.exactness, result.kernel, result.token_ids) == ("bitwise", "block:8", plain.token_ids)


def test_autocast_is_measured_for_like_another_machine():
    """Prevents a verdict on the model's own dtype from standing for the one that its products are computed in."""
    target = TransformersTarget(long_model("llama", torch.float32))
    before = circumstances(target)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert circumstances(target) != before
    assert circumstances(target) == before
