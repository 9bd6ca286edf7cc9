"""Length policies: how many tokens each drafter may add to a round.

Knows drafters by name only, and what finished rounds cost and gave; nothing about models or tokens. Everything is of one
request. Source: the cost model in ``schedule.py``; the report's "Adaptive speculation length".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from specframe.estimates import CostCurve, Survival
from specframe.records import RoundRecord

_PRIOR_SLOPE = 0.1  # of a one-row forward, for each further row, until it is measured
_CHEAP = 0.25  # of a plain round, for all tokens that there is room for: at that price they may come at once
_MOST_GROWTH = 2  # of another drafter's length over what was priced
_FIRST = 3  # tokens at most, before anything was priced, where a longer forward costs more
_FIRST_CHEAP = 7  # of a drafter that says that they cost next to nothing: only the longer forward is at stake,
_RISK = 0.5  # and this much of a plain round at most
_TRIAL_SHARE = 0.01  # of the time since the last trial, that the next one may be expected to lose
_LEAST_S = 1e-9  # of a round: a clock that stands still, or goes back, has measured nothing
_DECAY = 0.93  # of a round's weight in the cost per token, for each round that follows it


class LengthPolicy(Protocol):
    """Decides lengths from finished rounds, one object per request."""

    @property
    def name(self) -> str:
        """What the decisions are made by, with its version."""

    def limit(self, drafter: str, proposers: Sequence[str], room: int) -> int:
        """Return how many tokens, 0 to ``room``, a drafter may add after those that ``proposers`` added in this round."""

    def learn(self, record: RoundRecord) -> None:
        """Take note of a finished round."""


class Fixed:
    """All the room there is."""

    name = "fixed"

    def limit(self, drafter: str, proposers: Sequence[str], room: int) -> int:
        return room

    def learn(self, record: RoundRecord) -> None:
        """Learn nothing."""


class Adaptive:
    """The length of the least expected cost per token, 0 included.

    A drafter's n tokens save E[accepted] x c, c being the cost per token of late, and cost their drafting and the longer
    forward; n is where most is saved. That is minimising E[C_round] / E[G], a quotient, by a difference (Dinkelbach 1967).
    c is never taken above the price of a plain round, so nothing is done that plain decoding would do for less.

    ``row_costs``: what a forward over 1, 2, ... rows costs over one of a single row, where that is known; else the first round
    is plain, to know a price to compare with. Under a block kernel (``is_flat``) a forward costs the same for any number of
    rows, whatever they cost as they come. ``cheap``: the drafters that say that their tokens cost next to nothing; where it is
    known what rows cost they are believed until a first proposal tells.

    Whatever n is best, a longer one (or the cheapest, where none is best) is tried when what it is expected to lose is at most
    1 % of the time since the last trial: a drafter that is off, or held short, can come back.

    Costs are in seconds of this request's own rounds, and only finished ones count, so under residual verification the draws
    of a round never decide its own length.
    """

    name = "adaptive/4"

    def __init__(self, *, is_flat: bool, row_costs: Sequence[float] = (), cheap: frozenset[str] = frozenset()) -> None:
        self._is_flat = is_flat
        self._cheap = cheap if row_costs else frozenset()  # a long forward's price is a risk of its own
        self._verify = CostCurve(_PRIOR_SLOPE, (1.0, 1.0) if is_flat else row_costs)
        self._known: dict[str, _Known] = {}
        self._num_plain, self._num_emitted = 1.0, 1.0  # plain rounds that recent time would pay for, and what it gave

    def limit(self, drafter: str, proposers: Sequence[str], room: int) -> int:
        if not self._verify.is_comparable:
            return 0
        known = self._known.setdefault(drafter, _Known())
        values = self._values(known, proposers, room)
        best = max(range(room + 1), key=values.__getitem__)
        trial = min(2 * best, room) if best else max(range(1, room + 1), key=values.__getitem__)
        known.num_planned = best
        if values[best] - values[trial] <= _TRIAL_SHARE * known.since_trial_s:
            best = trial
        if known.token_s is None:
            first = min(best, room if self._is_flat else self._first(drafter))
            return max(range(1, first + 1), key=values.__getitem__) if best else 0
        if room * known.token_s <= _CHEAP * self._verify_s(0)[0]:
            return best
        return min(best, max(_MOST_GROWTH * known.costs.largest, _FIRST))

    def learn(self, record: RoundRecord) -> None:
        if record.round_id == 0:
            return
        size = 0 if self._is_flat else record.num_proposed
        seconds = max(record.forward_s + record.sync_s + record.decide_s + record.commit_s, _LEAST_S)
        if size and self._verify.has_base:
            # A forward over n rows takes no longer than n forwards; if this one did, something disturbed it.
            seconds = min(seconds, (1 + size) * self._verify_s(0)[0])
        self._verify.add(size, seconds)
        verify = self._verify_s(record.num_proposed)
        spent_s = verify[record.num_proposed]
        asked = {share.name: share for share in record.drafters if share.limit}
        for name, share in asked.items():
            known = self._known.setdefault(name, _Known())
            if known.was_asked:  # the first time pays for what happens once, such as a prefill
                known.costs.add(share.num_proposed, max(share.propose_s, 0.0))
            known.was_asked = True
            known.token_s = max(share.propose_s, 0.0) / max(share.num_proposed, 1)
            known.survival.learn(share)
            spent_s += known.costs.upto(share.num_proposed)[share.num_proposed]
        for name, known in self._known.items():
            is_trial = name in asked and asked[name].num_proposed > known.num_planned
            known.since_trial_s = 0.0 if is_trial else known.since_trial_s + spent_s
        self._num_plain = _DECAY * self._num_plain + spent_s / verify[0]
        self._num_emitted = _DECAY * self._num_emitted + record.num_emitted

    def _first(self, drafter: str) -> int:
        """Return how many tokens a drafter may add before anything of it was priced."""
        if drafter not in self._cheap:
            return _FIRST
        verify = self._verify_s(_FIRST_CHEAP)
        return max([_FIRST, *(n for n in range(1, _FIRST_CHEAP + 1) if verify[n] - verify[0] <= _RISK * verify[0])])

    def _values(self, known: _Known, proposers: Sequence[str], room: int) -> list[float]:
        """Return what 0, 1, ... ``room`` tokens of a drafter are expected to save, in seconds."""
        num_before = len(proposers)
        verify, draft = self._verify_s(num_before + room), known.costs.upto(room)
        token_s = verify[0] * min(1.0, self._num_plain / self._num_emitted) * self._chance(proposers)
        values, value = [0.0], -draft[0]
        for index, (stands, reach) in enumerate(known.survival.upto(room), start=1):
            draft_s = draft[index] - draft[index - 1]
            verify_s = verify[num_before + index] - verify[num_before + index - 1]
            value += reach * (stands * token_s - draft_s - verify_s)
            values.append(value)
        return values

    def _chance(self, proposers: Sequence[str]) -> float:
        """Return the probability that all that was proposed so far in the round stands."""
        chance = 1.0
        for name, tokens in groupby(proposers):
            chance *= self._known[name].survival.upto(len(list(tokens)))[-1].stands
        return chance

    def _verify_s(self, num_proposed: int) -> list[float]:
        """Return the costs of verifying 0 to ``num_proposed`` tokens, or more."""
        if self._is_flat:
            return self._verify.upto(0)[:1] * (num_proposed + 1)
        return self._verify.upto(num_proposed)


class _Known:
    """What is known of a drafter: its costs and its survival, what was best for it last, and when more was last tried."""

    def __init__(self) -> None:
        self.costs, self.survival = CostCurve(0.0), Survival()
        self.was_asked = False
        self.token_s: float | None = None  # of the last proposal
        self.num_planned = 0
        self.since_trial_s = 0.0


def make_policy(
    name: str,
    *,
    is_flat: bool,
    row_costs: Callable[[], Sequence[float]] = tuple,
    cheap: frozenset[str] = frozenset(),
) -> LengthPolicy:
    """Return a new policy for one request, by its name in a strategy. ``row_costs`` is called if they are needed."""
    if name != "adaptive":
        return Fixed()
    return Adaptive(is_flat=is_flat, row_costs=() if is_flat else row_costs(), cheap=cheap)
