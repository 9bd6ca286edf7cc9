"""The report's normative pseudocode, interpreted as slowly as it reads; what the fast verifier is held against.

Imports nothing of the verifier or its arithmetic. A row is a list of probabilities (of scores for ``greedy_round``)
over the vocabulary, a law is None for a point mass or such a list. Changed as in ``verify.py``: accept
strictly, u in [0, 1); a vanished residual where p and q agree is drawn from q; the room of a round leaves a place for
the extra token, so "accepted = remaining" does not occur; and the coupled rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

Probs = Sequence[float]
Uniform = Callable[[str, int], float]
"""The uniform in [0, 1) of a purpose (``accept_uniform``, ...) and a node."""

VERSION = 1
"""Of the interpretation; golden vectors in ``tests/`` hold it fixed."""

_UNIT = 2.0**-52


class FatalTargetError(Exception):
    """A row that counts has a NaN or no valid token, or the residual is impossible; nothing is emitted."""

    def __init__(self, row: int) -> None:
        self.row = row
        super().__init__(f"row {row}")


class RoundResult(NamedTuple):
    """What a round emits: the accepted proposals, then ``token`` unless an accepted stop token ended the output."""

    emitted: tuple[int, ...]
    num_accepted: int
    token: int | None
    is_correction: bool
    num_rounding: int = 0


def greedy_round(rows: Sequence[Sequence[float]], proposals: Sequence[int], stop_ids: Collection[int]) -> RoundResult:
    """Interpret the greedy pseudocode; ``rows[i]`` are scores that predict proposal i, the last row the extra token."""
    accepted = 0
    for i in range(len(proposals)):
        target_token = _argmax(rows[i], i)
        if proposals[i] != target_token:
            return _result(proposals, accepted, target_token, is_correction=True)
        accepted += 1
        if proposals[i] in stop_ids:
            return _result(proposals, accepted, None)
    return _result(proposals, accepted, _argmax(rows[len(proposals)], len(proposals)))


def stochastic_round(
    rows: Sequence[Probs],
    proposals: Sequence[int],
    laws: Sequence[Probs | None],
    stop_ids: Collection[int],
    uniform: Uniform,
) -> RoundResult:
    """Interpret the stochastic pseudocode; ``uniform`` is asked in the order in which the pseudocode draws."""
    accepted = 0
    for i in range(len(proposals)):
        q = _checked(rows[i], i)
        y = proposals[i]
        law = laws[i]
        p = [1.0 if x == y else 0.0 for x in range(len(q))] if law is None else law
        u = uniform("accept_uniform", i)
        if u * p[y] < q[y]:
            accepted += 1
            if y in stop_ids:
                return _result(proposals, accepted, None)
            continue
        residual = [max(q[x] - p[x], 0.0) for x in range(len(q))]
        residual_mass = math.fsum(residual)
        floor = len(q) * _UNIT
        num_rounding = 0
        if residual_mass <= floor:
            if max(abs(q[x] - p[x]) for x in range(len(q))) > 2 * floor:
                raise FatalTargetError(i)
            residual, num_rounding = list(q), 1
        z = _sample(residual, uniform("correction_sample", i))
        return _result(proposals, accepted, z, is_correction=True, num_rounding=num_rounding)
    q_extra = _checked(rows[len(proposals)], len(proposals))
    purpose = "target_extra" if proposals else "target_baseline"
    return _result(proposals, accepted, _sample(q_extra, uniform(purpose, len(proposals))))


def coupled_round(
    rows: Sequence[Probs],
    proposals: Sequence[int],
    stop_ids: Collection[int],
    noise: Callable[[int, int], float],
    first_pos: int,
) -> RoundResult:
    """Interpret the coupled rule; ``noise(position, token id)`` is standard Gumbel, row 0 predicts ``first_pos``."""
    for i in range(len(proposals) + 1):
        q = _checked(rows[i], i)
        scores = [math.log(q[x]) + noise(first_pos + i, x) if q[x] > 0 else -math.inf for x in range(len(q))]
        target_token = _argmax(scores, i)
        if i == len(proposals):
            return _result(proposals, i, target_token)
        if proposals[i] != target_token:
            return _result(proposals, i, target_token, is_correction=True)
        if proposals[i] in stop_ids:
            return _result(proposals, i + 1, None)
    raise AssertionError("a round ends in one of the returns above")


def _result(
    proposals: Sequence[int], accepted: int, token: int | None, *, is_correction: bool = False, num_rounding: int = 0
) -> RoundResult:
    last = () if token is None else (token,)
    return RoundResult((*proposals[:accepted], *last), accepted, token, is_correction, num_rounding)


def _argmax(scores: Sequence[float], row: int) -> int:
    if any(math.isnan(score) or score == math.inf for score in scores) or max(scores) == -math.inf:
        raise FatalTargetError(row)
    best = 0
    for x in range(1, len(scores)):
        if scores[x] > scores[best]:  # strictly: the lowest id of equals wins
            best = x
    return best


def _checked(probs: Probs, row: int) -> Probs:
    if any(math.isnan(prob) for prob in probs) or not any(prob > 0 for prob in probs):
        raise FatalTargetError(row)
    return probs


def _sample(weights: Sequence[float], u: float) -> int:
    """Return the first id whose cumulative weight passes ``u`` of the total; an id of weight 0 passes nothing."""
    total = sum(weights)
    reached = 0.0
    last = -1
    for x, weight in enumerate(weights):
        if weight > 0:
            reached += weight
            last = x
            if u * total < reached:
                return x
    return last  # the product rounded up to the total
