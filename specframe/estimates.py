"""What a length policy learns from finished rounds: costs by size, and how far a drafter's proposals stand.

Pure bookkeeping over numbers; nothing here reads a clock. Every estimate has an answer before anything was measured, and
forgets what is long ago.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from specframe.records import DrafterShare

_NUM_SAMPLES, _NUM_BELIEVED = 8, 2
_SHAPE_WEIGHT = 1.0  # in samples, of what a known shape says of a size
_DECAY = 0.85  # of evidence, for each proposal that follows it
_PRIOR_ACCEPTANCE = 0.82
_PRIOR_WEIGHT = 2.0  # in proposals; of the prior, and of what it says of the first position
_HOPE = 1.0  # more proposals of the prior, which lose weight as real ones do: to begin with, patience
_NEXT_WEIGHT = 4.0  # of what a position says of the next one


class CostCurve:
    """Seconds by size, from few and noisy samples; size 0 is the base.

    A cost is the lower quartile of its last samples, because a disturbed machine only ever makes a call slower.

    ``shape``: what the sizes 0, 1, ... cost over size 0, two of them or more, where that is known. A cost then begins as what
    the shape says, on the scale of all that was measured.

    Without it the first sample of a size may lower what was expected, and only the second may raise it; no size costs more
    than a larger one; what was not measured lies on a line between its neighbours, goes on at the mean slope, and falls to
    almost nothing below the least size, so that less is tried. ``prior_slope`` is what to expect of each further unit while
    one size is known, as a share of its cost, 0 for nothing.
    """

    def __init__(self, prior_slope: float, shape: Sequence[float] = ()) -> None:
        self._prior_slope, self._shape = prior_slope, shape
        self._samples: dict[int, deque[float]] = {}
        self._measured: dict[int, float] = {}
        self._table: list[float] = []

    @property
    def has_base(self) -> bool:
        """Whether it is known what size 0 costs."""
        return 0 in self._measured or bool(self._shape and self._measured)

    @property
    def is_comparable(self) -> bool:
        """Whether it is known what sizes cost over each other."""
        return bool(self._shape) or self.has_base

    @property
    def largest(self) -> int:
        """The largest size that was measured; 0 also where none was."""
        return max(self._measured, default=0)

    def add(self, size: int, seconds: float) -> None:
        """Take note of a cost."""
        samples = self._samples.setdefault(size, deque(maxlen=_NUM_SAMPLES))
        samples.append(seconds)
        self._measured[size] = sorted(samples)[(len(samples) - 1) // 4]
        self._table = []

    def upto(self, size: int) -> list[float]:
        """Return the costs of the sizes from 0 to ``size``, or more of them, in seconds."""
        if size >= len(self._table):
            largest = max(size, 15, self.largest)
            self._table = self._make_shaped_table(largest) if self._shape else self._make_table(largest)
        return self._table

    def _make_shaped_table(self, largest: int) -> list[float]:
        slope = (self._shape[-1] - self._shape[0]) / (len(self._shape) - 1)
        beyond = range(1, largest + 2 - len(self._shape))
        table = [*self._shape, *(self._shape[-1] + slope * step for step in beyond)]
        num_samples = {size: len(samples) for size, samples in self._samples.items()}
        scales = [num_samples[size] * seconds / table[size] for size, seconds in self._measured.items()]
        scale = sum(scales) / sum(num_samples.values()) if scales else 1.0
        table = [scale * cost for cost in table]
        for size, seconds in self._measured.items():
            table[size] = (_SHAPE_WEIGHT * table[size] + num_samples[size] * seconds) / (
                _SHAPE_WEIGHT + num_samples[size]
            )
        return table

    def _make_table(self, largest: int) -> list[float]:
        often = [size for size, samples in self._samples.items() if size == 0 or len(samples) >= _NUM_BELIEVED]
        believed = sorted(often if any(often) or self._prior_slope else self._measured)
        if not believed:
            return [0.0] * (largest + 1)
        points = list(zip(believed, _suffix_minimum([self._measured[size] for size in believed]), strict=True))
        (first, first_cost), (last, last_cost) = points[0], points[-1]
        slope = (last_cost - first_cost) / (last - first) if last > first else self._prior_slope * first_cost
        table = [first_cost * (size + 1) / (first + 1) for size in range(first + 1)]
        for (low, low_cost), (high, high_cost) in pairwise([*points, (largest, last_cost + slope * (largest - last))]):
            table += [low_cost + (high_cost - low_cost) * step / (high - low) for step in range(1, high - low + 1)]
        for size in self._measured.keys() - set(believed):
            table[size] = min(table[size], self._measured[size])
        return _suffix_minimum(table)


class Chances(NamedTuple):
    """Of one position: ``stands``, S_i of the proposals that have a token there; ``reach``, the share that have one."""

    stands: float
    reach: float


class Survival:
    """How far a drafter's proposals stand and how far they reach, position by position.

    S_i is counted among the proposals that have an i-th token, so that a drafter that goes on only where it is sure is judged
    by what it then proposes. A position without evidence follows from the one before it.
    """

    def __init__(self) -> None:
        self._stands, self._reach = _Rates([_HOPE * _PRIOR_ACCEPTANCE], [_HOPE]), _Rates([], [])
        self._num_evaluated = self._num_accepted = 0.0
        self._table: list[Chances] = []

    def learn(self, share: DrafterShare) -> None:
        """Take note of a round in which the drafter was asked."""
        self._table = []
        self._reach.add(share.num_proposed, share.limit)
        if share.num_evaluated:
            is_broken = share.num_evaluated > share.num_accepted
            self._stands.add(share.num_accepted, share.num_proposed if is_broken else share.num_accepted)
            self._num_evaluated = _DECAY * self._num_evaluated + share.num_evaluated
            self._num_accepted = _DECAY * self._num_accepted + share.num_accepted

    def upto(self, num_tokens: int) -> list[Chances]:
        """Return the chances at the positions 1 to ``num_tokens``, those where a drafter may have a token."""
        if num_tokens > len(self._table):
            num_accepted = self._num_accepted + _PRIOR_WEIGHT * _PRIOR_ACCEPTANCE
            step = num_accepted / (self._num_evaluated + _PRIOR_WEIGHT)
            stands = self._stands.chain(num_tokens, step, (_PRIOR_WEIGHT, _NEXT_WEIGHT))
            self._table = list(map(Chances, stands, self._reach.chain(num_tokens, 1.0, (1.0, 1.0))))
        return self._table[:num_tokens]


class _Rates:
    """Hits among trials by position; at a position that is tried again, what is old loses weight."""

    def __init__(self, hits: list[float], trials: list[float]) -> None:
        self._hits, self._trials = hits, trials

    def add(self, num_hits: int, num_trials: int) -> None:
        """Take note that the first positions were tried, and that the first of those were hits."""
        missing = [0.0] * (num_trials - len(self._trials))
        self._hits += missing
        self._trials += missing
        for index in range(num_trials):
            self._hits[index] = _DECAY * self._hits[index] + (index < num_hits)
            self._trials[index] = _DECAY * self._trials[index] + 1.0

    def chain(self, length: int, step: float, weights: tuple[float, float]) -> list[float]:
        """Return a rate for each position, drawn to ``step`` times the rate before it, 1 before the first.

        ``weights``: how many trials that counts, at the first position and at the others.
        """
        rates, rate, weight = [], 1.0, weights[0]
        for index in range(length):
            known = index < len(self._trials)
            hits, trials = (self._hits[index], self._trials[index]) if known else (0.0, 0.0)
            rate = (hits + weight * step * rate) / (trials + weight)
            rates.append(rate)
            weight = weights[1]
        return rates


def _suffix_minimum(values: Sequence[float]) -> list[float]:
    return list(accumulate(reversed(values), min))[::-1]
