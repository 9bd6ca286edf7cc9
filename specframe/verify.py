"""Verification: greedy, residual and coupled. Pure functions of rows, proposals and random draws.

Knows nothing about drafters, caches, text or where logits come from. Source: the report's "Normative greedy pseudocode" and
"Normative stochastic pseudocode", but for three things: a strict accept, a fallback to q where p and q agree to rounding, and
coupling.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import attrs

from specframe.distribution import Distribution, NotADistribution, sample_weights
from specframe.proposal import Drawn, Proposal
from specframe.random import Purpose, Random

if TYPE_CHECKING:
    from specframe.proposal import Law


class Choice(NamedTuple):
    """A row's greedy token (the lowest id of equals) and its margin over the next score."""

    token: int
    margin: float


class Row(Protocol):
    """One row of a verification: logits in the context of everything before it, processed on demand.

    Both methods raise ``NotADistribution`` for a row with a NaN or +inf, or without a valid token.
    """

    @property
    def position(self) -> int:
        """The absolute position of the token that the row predicts."""

    def choose(self) -> Choice:
        """Return the greedy token of the processed row."""

    def distribution(self) -> Distribution:
        """Return the processed row's distribution q."""


class Decision(NamedTuple):
    """What a rule says of one row: the target's token there, and whether the proposal stands.

    ``margin``: distance of the deciding score to the next (greedy and coupled), else None; ``is_rounding``: the residual
    vanished because p and q agree to rounding, and the token was drawn from q.
    """

    is_accepted: bool
    token: int
    margin: float | None = None
    is_rounding: bool = False


class Verdict(NamedTuple):
    """The outcome of a round.

    The first ``num_accepted`` proposals stand; ``token`` follows them: a correction where a proposal was rejected, the
    extra token where all stand, or None where an accepted token ended the output. ``margins`` are those of the rows
    evaluated, in order.
    """

    num_accepted: int
    token: int | None
    is_correction: bool
    margins: tuple[float | None, ...]
    num_rounding: int

    @property
    def num_evaluated(self) -> int:
        """How many proposals were judged."""
        return self.num_accepted + self.is_correction


class Rule(Protocol):
    """How a target token is found: the same object draws for drafters, judges proposals and draws what follows."""

    def draw(self, row: Row, node: int) -> Drawn:
        """Draw a draft token from a processed draft row."""

    def judge(self, row: Row, node: int, token: int, law: Law) -> Decision:
        """Judge the proposal ``token``, chosen by ``law``, against the target's row."""

    def extra(self, row: Row, num_proposed: int) -> Decision:
        """Return the token that follows a fully accepted proposal of ``num_proposed``; 0 is plain decoding."""


def verify(row_at: Callable[[int], Row], proposal: Proposal, rule: Rule, is_final: Callable[[int], bool]) -> Verdict:
    """Judge a proposal in order, up to the first rejection; later rows are never inspected.

    ``row_at(i)`` predicts proposal i and ``row_at(len(proposal))`` the extra token. ``is_final(token)`` is asked once for
    each accepted token, in order; a final one ends the round with nothing drawn after it. Raises ``NotADistribution``
    with ``row`` set for a row that counts and is none.
    """
    margins: list[float | None] = []
    num_rounding = 0
    index = 0
    try:
        for index, (token, law) in enumerate(zip(proposal.ids, proposal.laws, strict=True)):
            decision = rule.judge(row_at(index), index, token, law)
            margins.append(decision.margin)
            num_rounding += decision.is_rounding
            if not decision.is_accepted:
                return Verdict(index, decision.token, True, tuple(margins), num_rounding)
            if is_final(token):
                return Verdict(index + 1, None, False, tuple(margins), num_rounding)
        index = len(proposal)
        decision = rule.extra(row_at(index), index)
    except NotADistribution as error:
        error.row = index
        raise
    margins.append(decision.margin)
    return Verdict(index, decision.token, False, tuple(margins), num_rounding)


@attrs.frozen
class Greedy:
    """Temperature 0: argmax, lowest id of equals, no random draws; a draft draw is an argmax with a point-mass law."""

    def draw(self, row: Row, node: int) -> Drawn:
        return Drawn(row.choose().token, None)

    def judge(self, row: Row, node: int, token: int, law: Law) -> Decision:
        choice = row.choose()
        return Decision(choice.token == token, choice.token, choice.margin)

    def extra(self, row: Row, num_proposed: int) -> Decision:
        choice = row.choose()
        return Decision(True, choice.token, choice.margin)


@attrs.frozen
class Coupled:
    """The target's token is argmax of log q + Gumbel noise keyed by seed, sample, position and id.

    A draft draw uses the same noise; a proposal stands iff it is the target's token. The text is a function of q, seed and
    position alone. A drawn token stands with probability at least (1 - TV) / (1 + TV), TV the total variation of p and q
    (Daliri et al. 2024), where residual verification reaches 1 - TV.
    """

    random: Random

    def draw(self, row: Row, node: int) -> Drawn:
        law = row.distribution()
        return Drawn(self._token(row, law)[0], law)

    def judge(self, row: Row, node: int, token: int, law: Law) -> Decision:
        target_token, margin = self._token(row, row.distribution())
        return Decision(target_token == token, target_token, margin)

    def extra(self, row: Row, num_proposed: int) -> Decision:
        token, margin = self._token(row, row.distribution())
        return Decision(True, token, margin)

    def _token(self, row: Row, law: Distribution) -> tuple[int, float]:
        return law.perturbed_argmax(self.random.gumbel(row.position, law.ids))


@attrs.frozen
class Residual:
    """Accept iff u p(y) < q(y), strictly, u in [0, 1); else draw from [q - p]+; the extra token from q.

    Source: Leviathan et al. 2023, Chen et al. 2023; the report's "Exact stochastic step".
    """

    random: Random
    round_id: int

    def draw(self, row: Row, node: int) -> Drawn:
        law = row.distribution()
        return Drawn(law.sample(self.random.uniform(Purpose.DRAFT_SAMPLE, self.round_id, node)), law)

    def judge(self, row: Row, node: int, token: int, law: Law) -> Decision:
        target = row.distribution()
        uniform = self.random.uniform(Purpose.ACCEPT_UNIFORM, self.round_id, node)
        draft_prob = 1.0 if law is None else law.prob(token)
        if uniform * draft_prob < target.prob(token):
            return Decision(True, token)
        residual = target.residual(token if law is None else law)
        mass = float(residual.weights.sum())
        point = self.random.uniform(Purpose.CORRECTION_SAMPLE, self.round_id, node)
        if mass > target.vocab_size * 2.0**-52:
            return Decision(False, sample_weights(target.ids, residual.weights, point))
        if residual.agree:
            return Decision(False, target.sample(point), is_rounding=True)
        raise NotADistribution(f"the residual [q - p]+ has mass {mass!r} although p and q differ")

    def extra(self, row: Row, num_proposed: int) -> Decision:
        purpose = Purpose.TARGET_EXTRA if num_proposed else Purpose.TARGET_BASELINE
        uniform = self.random.uniform(purpose, self.round_id, num_proposed)
        return Decision(True, row.distribution().sample(uniform))
