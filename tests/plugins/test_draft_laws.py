"""The draft model's output law, by exhaustive enumeration: every uniform of a whole generation is integrated exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import TableRunner
from wrong import drop

from specframe.generation import Generation
from specframe.strategy import Length, Strategy
from specframe.testing import TableTarget, output_law, plain_law, random_table
from specframe.testing.exhaustive import deviation
from specframe.testing.runs import request_of
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel, DraftModelSession
from specframe_draft_model.network import Network

EXACT = 1e-12
VOCAB = 3


class NeverOff(Generation):
    """A generation whose drafter may not fail."""

    def close(self):
        super().close()
        assert self.events == ()


def laws(target, draft_row, num_tokens, *, target_ids=None, session=DraftModelSession, sampling=None, **options):
    """Return the exact law of an output with a draft, under residual verification, and that of plain decoding."""
    ids = torch.tensor(target_ids) if target_ids is not None else None

    class Drafter(DraftModel):
        def open(self, request):
            return session(self.network, self.options, request.facts.vocab_size)

    made = Drafter(Network(TableRunner(draft_row), ids), DraftModelOptions(model="unused", **options))
    arguments = {"max_new_tokens": num_tokens, "temperature": 1.0, "seed": 0, **(sampling or {})}
    request = request_of(target, (0, 1), arguments)
    strategy = Strategy(verifier="residual", length=Length(max_tokens=2))
    law = output_law(target, {"d": made}, strategy, request, generation=NeverOff)
    assert sum(law.values()) == 1
    return law, plain_law(target, request)


def off_by(num_tokens, *, draft_width=VOCAB, **options):
    """Return how far an output's probability is from plain decoding's."""
    target = random_table(vocab_size=VOCAB, seed=1, spread=1.0)
    draft = random_table(vocab_size=draft_width, seed=2)
    return deviation(*laws(target, lambda ids: draft.row(ids).tolist(), num_tokens, **options))


@pytest.mark.parametrize(
    "draft",
    [
        {},
        {"min_confidence": 0.5},
        {"max_tokens": 1},
        {"draft_width": 2, "target_ids": [2, 0]},
        {"draft_width": 4, "target_ids": [2, -1, 0, 1]},
        {"draft_width": 2, "target_ids": [2, 0], "min_confidence": 0.6},
    ],
    ids=str,
)
def test_the_law_is_the_targets(draft):
    """Whole, confident, short and reduced: whatever a draft may do, the output's law is plain decoding's."""
    assert off_by(3, **draft) < EXACT


def test_what_is_filtered_is_filtered_on_both_sides():
    """Case A3 with its numbers: a draft that is drawn from its filtered law and scored by the raw one gives [.571, .429]."""

    def log(*probs):
        return lambda ids: np.log(probs).tolist()

    target = TableTarget(log(0.35, 0.45, 0.1, 0.1), vocab_size=4)
    found, _ = laws(target, log(0.4, 0.3, 0.2, 0.1), 2, sampling={"top_k": 2})
    for place in (0, 1):
        law = [float(sum(weight for ids, weight in found.items() if ids[place] == token)) for token in range(4)]
        assert np.allclose(law, [0.4375, 0.5625, 0, 0], rtol=0, atol=EXACT)


class Dropping(DraftModelSession):
    """Takes a drawn token back for what it is."""

    def propose(self, round):
        num_before = len(round.context)
        super().propose(round)
        drop(round, num_before)


def test_a_token_that_is_dropped_for_what_it_is_biases_the_output():
    """Negative control: the rule that the contract forbids, and the enumeration that sees it."""
    assert off_by(3, session=Dropping, max_tokens=1) > 0.001
