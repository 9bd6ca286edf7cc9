"""Cases E: logits processors in verification."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from models import engine_on, random_table
from transformers import LogitsProcessor
from transformers.generation import logits_process as library

from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.rows import Row
from specframe.sampling import SamplingPolicy
from specframe.testing import Adversary, LogitsDrafter, Oracle

POLICIES = {
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated 2-gram": {"no_repeat_ngram_size": 2},
    "logit bias": {"logit_bias": {7: -2.0, 3: -4.0, 8: 1.0}},
    "presence penalty": {"presence_penalty": 1.5},
    "frequency penalty": {"frequency_penalty": 0.8},
    "bad words": {"bad_words_ids": [[4], [8], [7, 7], [1, 7], [7, 11]]},
    "min new tokens": {"min_new_tokens": 6, "stop_ids": [1, 4, 7]},
    "all": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "logit_bias": {7: 1.5}, "frequency_penalty": 0.4},
}
SAMPLINGS = [{}, {"temperature": 0.7, "seed": 11}, {"temperature": 0.7, "top_p": 0.9, "seed": 12}]
PROMPT = [1, 2, 7, 7]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "top-p"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e1_every_row_of_a_block_is_processed_in_its_own_context(policy, sampling):
    """A penalty that is dropped, or applied to the first row only, gives another text than token-at-a-time decoding."""
    call = {"max_new_tokens": 14, **policy, **sampling}
    plain = engine_on(random_table()).generate(PROMPT, **call)
    without = engine_on(random_table()).generate(PROMPT, max_new_tokens=14, **sampling)
    assert plain.token_ids != without.token_ids  # the policy matters here
    drafters = [
        Adversary(lambda context, index: 7),
        *(Oracle(plain.token_ids, wrong_at) for wrong_at in (0, 1, 3, None)),
    ]
    for drafter in drafters:
        result = engine_on(random_table(), drafter).generate(PROMPT, **call)
        assert result.token_ids == plain.token_ids
        assert result.stats.num_proposed > 0
        assert not result.events


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "top-p"])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_e1_rows_of_a_draft_are_processed_as_the_targets(policy, sampling, verifier):
    """A draft whose rows are the target's own is never refused, unless the two are processed apart or in other contexts."""
    table = random_table()
    engine = engine_on(table, LogitsDrafter(table.row), verifier=verifier)
    stats = engine.generate(PROMPT, max_new_tokens=14, **policy, **sampling).stats
    assert stats.num_accepted == stats.drafters["d0"].num_evaluated > 0


def test_e1_all_rows_equal_the_baselines_with_a_draft_of_sevens():
    """Row i must see the prompt and draft[:i]; row 1's penalty depends on draft token 0."""
    table = random_table()
    policy = SamplingPolicy(
        repetition_penalty=1.3, no_repeat_ngram_size=2, logit_bias={3: 1.0}, presence_penalty=0.5, temperature=0.7
    )
    pipeline = Pipeline(policy, vocab_size=12, stop_ids=frozenset(), num_prompt=4)
    prefix = Prefix(PROMPT, None, "cpu")
    draft = [7, 7, 5, 7]
    for token in draft:
        prefix.push(token)
    for index in range(len(draft) + 1):
        ids = PROMPT + draft[:index]
        raw = table.row(ids)
        law = Row(raw, pipeline, prefix, len(ids)).distribution().dense()
        batch, scores = torch.tensor([ids]), raw[None].clone()
        scores = library.RepetitionPenaltyLogitsProcessor(1.3)(batch, scores)
        generated = set(draft[:index])
        scores = scores - 0.5 * torch.tensor([[float(token in generated) for token in range(12)]])
        scores = library.NoRepeatNGramLogitsProcessor(2)(batch, scores)
        scores = library.SequenceBiasLogitsProcessor({(3,): 1.0})(batch, scores)
        expected = (scores / 0.7).softmax(-1)[0].numpy()
        assert np.allclose(law, expected, rtol=0, atol=1e-12)
    # 7, 7 was in the prompt, so a third 7 may not follow the second.
    assert Row(table.row(PROMPT), pipeline, prefix, 4).distribution().prob(7) == 0.0


def test_e1_penalties_over_the_prompt_and_over_the_output_are_told_apart():
    """A window that begins elsewhere is another policy."""
    scores = torch.zeros(12, dtype=torch.float64) + 1.0

    def law(policy, num_prompt):
        pipeline = Pipeline(policy, vocab_size=12, stop_ids=frozenset(), num_prompt=num_prompt)
        return pipeline.distribution(scores, Prefix([1, 2, 2], None, "cpu"), 3)

    repeated = law(SamplingPolicy(temperature=1.0, repetition_penalty=2.0), 3)
    assert repeated.prob(1) == repeated.prob(2) < repeated.prob(3)
    assert law(SamplingPolicy(temperature=1.0, presence_penalty=2.0), 3).prob(2) == pytest.approx(1 / 12)
    present = law(SamplingPolicy(temperature=1.0, presence_penalty=2.0), 1)
    assert present.prob(2) < present.prob(1) == present.prob(3)
    frequent = law(SamplingPolicy(temperature=1.0, frequency_penalty=2.0), 0)
    assert frequent.prob(2) < frequent.prob(1) < frequent.prob(3)


class Recording(LogitsProcessor):
    """Keep nested state that is changed in place, and let it decide: what was seen an odd number of times is unlikely."""

    def __init__(self):
        self.state = {"seen": {}, "calls": []}

    def __call__(self, input_ids, scores):
        last = int(input_ids[0, -1])
        self.state["seen"].setdefault(last, []).append(input_ids.shape[1])
        self.state["calls"].append(input_ids[0].tolist())
        odd = [token for token, places in self.state["seen"].items() if len(places) % 2]
        return scores.index_add(-1, torch.tensor(odd), torch.full((1, len(odd)), -6.0, dtype=scores.dtype))


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "sampled"])
@pytest.mark.parametrize("wrong_at", [0, 2, None])
def test_e3_a_stateful_processor_sees_what_plain_decoding_shows_it(wrong_at, sampling):
    """A shallow copy records rejected tokens and counts accepted ones twice; not speculating keeps the state right."""
    plain_state, state = Recording(), Recording()
    plain = engine_on(random_table()).generate(PROMPT, max_new_tokens=12, processors=[plain_state], **sampling)
    assert plain.token_ids != engine_on(random_table()).generate(PROMPT, max_new_tokens=12, **sampling).token_ids
    before = copy.deepcopy(plain_state.state)
    drafter = Oracle(plain.token_ids, wrong_at)
    result = engine_on(random_table(), drafter).generate(PROMPT, max_new_tokens=12, processors=[state], **sampling)
    assert result.token_ids == plain.token_ids
    assert state.state == before
    assert state.state["calls"] == [[*PROMPT, *plain.token_ids[:i]] for i in range(12)]
    assert not drafter.sessions
    assert any("neither declared pure" in event.message for event in result.events)


class Restorable(Recording):
    """The same, and its whole state can be taken and put back."""

    def snapshot(self):
        return copy.deepcopy(self.state)

    def restore(self, state):
        self.state = state


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["two of five stand", "all stand", "drawn"])
def test_e3_a_state_that_can_be_restored_is_that_of_the_text(draft, sampling, verifier):
    """Rejected tokens that stay in the state, and rows of a draft that are counted besides the target's."""
    table, processor = random_table(), Restorable()
    call = {"max_new_tokens": 12, **sampling}
    plain = engine_on(random_table(), verifier=verifier).generate(PROMPT, processors=[Restorable()], **call)
    drafter = {
        "two of five stand": Oracle(plain.token_ids, wrong_at=2),
        "all stand": Oracle(plain.token_ids),
        "drawn": LogitsDrafter(table.row),
    }[draft]
    result = engine_on(table, drafter, length=5, verifier=verifier).generate(PROMPT, processors=[processor], **call)
    assert processor.state["calls"] == [[*PROMPT, *result.token_ids[:index]] for index in range(12)]
    assert result.stats.num_proposed > 0
    assert not result.events
    if not sampling or verifier == "coupled":
        assert result.token_ids == plain.token_ids
