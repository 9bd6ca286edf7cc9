"""Randomised probability integral transforms of what residual verification draws and decides.

Each draw is one uniform number if it has the law that it should have, whatever the law and the past: the law's mass below what
was drawn, and a random part of its own. So rows of any target and any context are tested together, with nothing known of them
beforehand. Source: Brockwell 2007; the laws are the report's "Exact stochastic step".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from specframe.distribution import Distribution, Floats, Ids
from specframe.generation import Generation, Piece
from specframe.proposal import Drawn
from specframe.verify import Decision, Row, Rule

if TYPE_CHECKING:
    from specframe.proposal import Law

DRAWN, REJECTIONS, CORRECTIONS, EXTRA = "drawn tokens", "first rejections", "corrections", "extra tokens"


class Transforms:
    """The transforms of some generations, uniform on [0, 1) if their rule is right.

    ``values`` by kind: ``drawn tokens`` under the law that is stored with them, of those that were judged; ``first
    rejections``, one a round; ``corrections`` under [q - p]+; ``extra tokens`` under q. ``num_impossible`` counts what has
    probability 0. Draws and rounds in which nothing was open are left out.
    """

    def __init__(self, seed: int = 0) -> None:
        self.values: dict[str, list[float]] = {kind: [] for kind in (DRAWN, REJECTIONS, CORRECTIONS, EXTRA)}
        self.num_impossible = 0
        self._source = np.random.default_rng(seed)
        self._survived = 1.0  # the probability that no token of the round up to here is rejected

    def watch(self, generation: type[Generation]) -> type[Generation]:
        """Return a round loop whose residual rule is transformed here."""
        transforms = self

        class Watching(generation):  # type: ignore[misc, valid-type]  # a subclass of what is certified
            @property
            def rule(self) -> Rule:
                return _TransformedRule(super().rule, transforms)

            def step(self) -> Piece:
                piece = super().step()
                transforms._end_round()
                return cast(Piece, piece)

        return cast(type[Generation], Watching)

    def _judged(self, target: Distribution, token: int, law: Law, decision: Decision) -> None:
        draft_prob = 1.0 if law is None else law.prob(token)
        if law is not None:
            self._take(DRAWN, law.ids, law.probs, token)
        accept = min(1.0, target.prob(token) / draft_prob) if draft_prob else 0.0
        if decision.is_accepted:
            self._survived *= accept
            self.num_impossible += not accept
            return
        self._transform(REJECTIONS, 1 - self._survived, self._survived * (1 - accept))
        self._survived = 1.0
        if decision.is_rounding:
            self._take(CORRECTIONS, target.ids, target.probs, decision.token)
        else:
            weights = target.residual(token if law is None else law).weights
            self._take(CORRECTIONS, target.ids, weights / max(weights.sum(), np.finfo(float).tiny), decision.token)

    def _end_round(self) -> None:
        if 0 < self._survived < 1:
            self._transform(REJECTIONS, 1 - self._survived, self._survived)
        self._survived = 1.0

    def _take(self, kind: str, ids: Ids, probs: Floats, token: int) -> None:
        index = int(np.searchsorted(ids, token))
        prob = float(probs[index]) if index < len(ids) and ids[index] == token else 0.0
        if np.count_nonzero(probs) > 1 or not prob:
            self._transform(kind, float(probs[:index].sum()), prob)

    def _transform(self, kind: str, below: float, prob: float) -> None:
        """Take a value whose law has mass ``below`` before it and ``prob`` at it."""
        if prob <= 0:
            self.num_impossible += 1
        else:
            self.values[kind].append(below + self._source.random() * prob)


class _TransformedRule:
    """A residual rule that tells what it decided."""

    def __init__(self, inner: Rule, transforms: Transforms) -> None:
        self._inner, self._transforms = inner, transforms

    def draw(self, row: Row, node: int) -> Drawn:
        return self._inner.draw(row, node)

    def judge(self, row: Row, node: int, token: int, law: Any) -> Decision:
        decision = self._inner.judge(row, node, token, law)
        self._transforms._judged(row.distribution(), token, law, decision)
        return decision

    def extra(self, row: Row, num_proposed: int) -> Decision:
        decision = self._inner.extra(row, num_proposed)
        law = row.distribution()
        self._transforms._take(EXTRA, law.ids, law.probs, decision.token)
        return decision
