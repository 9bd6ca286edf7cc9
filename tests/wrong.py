"""Verifiers, round loops and drafters that are wrong on purpose: what every check of exactness must see."""

from __future__ import annotations

import numpy as np
import torch

from specframe.distribution import Distribution
from specframe.generation import Generation
from specframe.proposal import Drawn, Proposal
from specframe.random import Purpose
from specframe.testing import LogitsDrafter
from specframe.verify import Decision, Residual

# --- Rules -------------------------------------------------------------------------------------------------------------


class SoftmaxResidual(Residual):
    def judge(self, row, node, token, law):
        decision = super().judge(row, node, token, law)
        if decision.is_accepted:
            return decision
        q = row.distribution()
        clamped = np.maximum(q.dense() - law.dense(), 0)
        wrong = Distribution.from_probs(np.exp(clamped) / np.exp(clamped).sum())
        point = self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node + 100)
        return Decision(False, wrong.sample(point))


class SoftArgmax(Residual):
    def draw(self, row, node):
        return Drawn(row.choose().token, row.distribution())


class NotStrict(Residual):
    def judge(self, row, node, token, law):
        uniform = self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node)
        if uniform * law.prob(token) <= row.distribution().prob(token):
            return Decision(True, token)
        return super().judge(row, node, token, law)


class NotRenormalised(Residual):
    def judge(self, row, node, token, law):
        q = row.distribution()
        if self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node) * law.prob(token) < q.prob(token):
            return Decision(True, token)
        cumulative = np.cumsum(q.residual(law).weights)
        point = self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node)
        index = min(int(np.searchsorted(cumulative, point, side="right")), len(cumulative) - 1)
        return Decision(False, int(q.ids[index]))


class ReusedNoise(Residual):
    def judge(self, row, node, token, law):
        q = row.distribution()
        if self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node) * law.prob(token) < q.prob(token):
            return Decision(True, token)
        residual = q.residual(law)
        dense = np.zeros(q.vocab_size)
        dense[q.ids] = residual.weights
        point = self.random.uniform(Purpose.DRAFT_SAMPLE, self.round_id, node)
        return Decision(False, Distribution.from_probs(dense).sample(point))


class CorrectionFromTarget(Residual):
    def judge(self, row, node, token, law):
        decision = super().judge(row, node, token, law)
        if decision.is_accepted:
            return decision
        point = self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node + 100)
        return Decision(False, row.distribution().sample(point))


class SecondDraw(Residual):
    def judge(self, row, node, token, law):
        q = row.distribution()
        if q.sample(self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node)) == token:
            return Decision(True, token)
        return Decision(False, q.sample(self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node)))


class FirstIdRemoved(Residual):
    """Correct from q without the rejected id, although it was drawn from a dense p (the linear half of A7)."""

    def judge(self, row, node, token, law):
        q = row.distribution()
        if self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node) * law.prob(token) < q.prob(token):
            return Decision(True, token)
        dense = q.dense()
        dense[token] = 0
        point = self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node)
        return Decision(False, Distribution.from_probs(dense).sample(point))


def with_rule(rule):
    """Return a round loop whose residual rule is another one."""

    class Wrong(Generation):
        @property
        def rule(self):
            right = super().rule
            return rule(right.random, right.round_id) if isinstance(right, Residual) else right

    return Wrong


# --- Round loops -------------------------------------------------------------------------------------------------------


class FirstUnverified(Generation):
    """Takes the first proposed token for granted."""

    @property
    def rule(self):
        return _FirstAccepted(super().rule)


class _FirstAccepted:
    def __init__(self, inner):
        self.inner, self.draw, self.extra = inner, inner.draw, inner.extra

    def judge(self, row, node, token, law):
        return Decision(True, token, 1.0) if node == 0 else self.inner.judge(row, node, token, law)


class RowsShifted(Generation):
    """Judges every token but the first by the row before its own."""

    def _forward(self, proposal, *, num_skipped):
        verification = super()._forward(proposal, num_skipped=num_skipped)
        logits = verification.logits
        return verification._replace(logits=torch.cat([logits[:1], logits[:-1]]))


class EndPassedOver(Generation):
    """Goes on behind a stop id that was proposed and accepted."""

    def _verify(self, row_at, proposal):
        stop_ids, self.stopper.stop_ids = self.stopper.stop_ids, frozenset()
        try:
            return super()._verify(row_at, proposal)
        finally:
            self.stopper.stop_ids = stop_ids


class DiscardsOnFailure(Generation):
    """Throws away what a drafter had drawn when it fails."""

    def _propose(self):
        proposal = super()._propose()
        if any(event.round_id == len(self.records) and "propose raised" in event.message for event in self.events):
            self._prefix.truncate(len(self._prefix) - len(proposal))
            return Proposal()
        return proposal


class CutsByGrammar(Generation):
    """Draws drafts without the grammar, and cuts them where the grammar forbids a token."""

    def _propose(self):
        grammar, self._prefix.grammar = self._prefix.grammar, None
        try:
            proposal = super()._propose()
        finally:
            self._prefix.grammar = grammar
        start = len(self._prefix) - len(proposal)
        for index, token in enumerate(proposal.ids):
            if grammar is not None and not self._prefix.mask(start + index)[token]:
                for part in (proposal.ids, proposal.laws, proposal.drafters, proposal.parents):
                    del part[index:]
                self._prefix.truncate(start + index)
                break
        return proposal


# --- Drafters ----------------------------------------------------------------------------------------------------------


class Dropping(LogitsDrafter):
    """Takes a drawn token back for what it is: no drafter can by the contract, this one reaches into the core."""

    def _proposer(self, request):
        propose = super()._proposer(request)

        def dropping(round):
            num_before = len(round.context)
            propose(round)
            drop(round, num_before)

        return dropping


def drop(round, num_before):
    """Take the round's last token back if it is id 0."""
    if round.context[num_before:][-1:] == (0,):
        for part in (round._proposal.ids, round._proposal.laws, round._proposal.drafters, round._proposal.parents):
            part.pop()
        round._context._prefix.truncate(len(round.context) - 1)
