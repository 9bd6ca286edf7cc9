"""The draft model's output law, by exhaustive enumeration: every uniform of a whole generation is integrated exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafts import TableRunner

from specframe.constraint import Grammars
from specframe.generation import Generation
from specframe.plugins import Plugins
from specframe.request import make_request
from specframe.strategy import Length, Strategy
from specframe.testing import TableTarget, integrate
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel, DraftModelSession
from specframe_draft_model.network import Network

EXACT = 1e-12
VOCAB = 3


def rows(seed, width, spread):
    """Return a function from a context to its fixed random row of logits."""
    return lambda ids: np.random.default_rng([seed, *ids[-2:]]).normal(0, spread, width).tolist()


class Passing:
    """An integrator's draws whose pause passes through what catches a drafter's failures, as an interrupt does."""

    def __init__(self, draws):
        self._draws, self.pause = draws, None

    def uniform(self, *key):
        try:
            return self._draws.uniform(*key)
        except BaseException as pause:
            self.pause = pause
            raise KeyboardInterrupt from pause


def law(
    num_tokens, *, draft_width=VOCAB, target_ids=None, session=DraftModelSession, pair=None, sampling=None, **options
):
    """Return the exact law of a generation with a draft, under residual verification; ``pair``: rows of target and draft."""
    target_row, draft_row = pair or (rows(1, VOCAB, 1.0), rows(2, draft_width, 1.5))
    vocab_size = len(target_row((0, 1)))

    class Drafter(DraftModel):
        def open(self, request):
            return session(self.network, self.options, request.facts.vocab_size)

    def run(draws):
        class Target(TableTarget):
            """Tells the integrator what was proposed."""

            def open(self, *args, **kwargs):
                opened = super().open(*args, **kwargs)
                verify_linear = opened.verify_linear

                def noted(ticket, pending, proposal, **options):
                    draws.note((pending, *proposal))
                    return verify_linear(ticket, pending, proposal, **options)

                opened.verify_linear = noted
                return opened

        target = Target(target_row, vocab_size=vocab_size, order=2)
        ids = torch.tensor(target_ids) if target_ids is not None else None
        made = Drafter(Network(TableRunner(draft_row, draws.note), ids), DraftModelOptions(model="unused", **options))
        arguments = {"max_new_tokens": num_tokens, "temperature": 1.0, "seed": 0, **(sampling or {})}
        request = make_request((0, 1), arguments, target.facts, Grammars(Plugins([]), target.facts).compile)
        strategy = Strategy(verifier="residual", length=Length(max_tokens=2))
        passing = Passing(draws)
        generation = Generation(target, {"d": made}, strategy, request, request_id=1, table=None, random=passing)
        try:
            while not generation.is_done:
                generation.step()
        except KeyboardInterrupt:
            raise passing.pause from None
        generation.close()
        assert generation.events == ()
        return tuple(generation.token_ids)

    return {ids: float(weight) for ids, weight in integrate(run).items()}


def expected(num_tokens):
    """Return the law of plain decoding."""
    row, done = rows(1, VOCAB, 1.0), {(): 1.0}
    for _ in range(num_tokens):
        longer = {}
        for ids, weight in done.items():
            logits = np.array(row((0, 1, *ids)))
            probs = np.exp(logits - logits.max())
            for token, prob in enumerate(probs / probs.sum()):
                longer[(*ids, token)] = weight * prob
        done = longer
    return done


def distance(found, right):
    return sum(abs(found.get(ids, 0.0) - right.get(ids, 0.0)) for ids in found.keys() | right.keys()) / 2


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
    assert distance(law(3, **draft), expected(3)) < EXACT


def test_what_is_filtered_is_filtered_on_both_sides():
    """Case A3 with its numbers: a draft that is drawn from its filtered law and scored by the raw one gives [.571, .429]."""

    def log(*probs):
        return lambda ids: np.log(probs).tolist()

    found = law(2, pair=(log(0.35, 0.45, 0.1, 0.1), log(0.4, 0.3, 0.2, 0.1)), sampling={"top_k": 2})
    first = [sum(weight for ids, weight in found.items() if ids[0] == token) for token in range(4)]
    assert np.allclose(first, [0.4375, 0.5625, 0, 0], rtol=0, atol=EXACT)
    second = [sum(weight for ids, weight in found.items() if ids[1] == token) for token in range(4)]
    assert np.allclose(second, [0.4375, 0.5625, 0, 0], rtol=0, atol=EXACT)


class Dropping(DraftModelSession):
    """Takes a drawn token back for what it is: no drafter can by the contract, this one reaches into the core."""

    def propose(self, round):
        super().propose(round)
        if round._proposal.ids and round._proposal.ids[-1] == 0:
            for part in (round._proposal.ids, round._proposal.laws, round._proposal.drafters, round._proposal.parents):
                part.pop()
            round._context._prefix.truncate(len(round.context) - 1)


def test_a_token_that_is_dropped_for_what_it_is_biases_the_output():
    """Negative control: the rule that the contract forbids, and the enumeration that sees it."""
    assert distance(law(3, session=Dropping, max_tokens=1), expected(3)) > 0.01
