"""The draft model's output law, by exhaustive enumeration: every uniform of a whole generation is integrated exactly."""

from __future__ import annotations

import pytest
import torch
from drafts import TableRunner
from wrong import drop

from specframe.generation import Generation
from specframe.strategy import Length, Strategy
from specframe.testing import output_law, plain_law, random_table
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


def off_by(num_tokens, *, draft_width=VOCAB, target_ids=None, session=DraftModelSession, **options):
    """Return how far an output's probability is from plain decoding's, under residual verification."""
    ids = torch.tensor(target_ids) if target_ids is not None else None

    class Drafter(DraftModel):
        def open(self, request):
            return session(self.network, self.options)

    made = Drafter(Network(TableRunner(draft_width), ids), DraftModelOptions(model="unused", **options))
    target = random_table(vocab_size=VOCAB, seed=1, spread=1.0)
    request = request_of(target, (0, 1), {"max_new_tokens": num_tokens, "temperature": 1.0, "seed": 0})
    strategy = Strategy(verifier="residual", length=Length(max_tokens=2))
    law = output_law(target, {"d": made}, strategy, request, generation=NeverOff)
    assert sum(law.values()) == 1
    return deviation(law, plain_law(target, request))


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


class Dropping(DraftModelSession):
    """Takes a drawn token back for what it is."""

    def propose(self, round):
        num_before = len(round.context)
        super().propose(round)
        drop(round, num_before)


def test_a_token_that_is_dropped_for_what_it_is_biases_the_output():
    """Negative control: the rule that the contract forbids, and the enumeration that sees it."""
    assert off_by(3, session=Dropping, max_tokens=1) > 0.001
