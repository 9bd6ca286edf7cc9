"""The truncations of a distribution, from temperature on: pure functions of a support and its log weights, in float64.

Each gives the support of the transformers warper of its name; ties at an edge are cut as there. Knows nothing about rows,
devices or requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from specframe.distribution import Floats, Ids

if TYPE_CHECKING:
    from specframe.sampling import SamplingPolicy

Warper = Callable[[Ids, Floats], tuple[Ids, Floats]]


def build_warpers(policy: SamplingPolicy) -> list[Warper]:
    """Return the steps from temperature on, in order; each takes and returns a support and its log weights."""
    warpers: list[Warper] = []
    if policy.temperature not in (None, 0, 1):
        warpers.append(_temperature(float(policy.temperature or 1)))
    if policy.top_k is not None:
        warpers.append(_top_k(policy.top_k))
    if policy.top_p is not None and policy.top_p < 1:
        warpers.append(_top_p(policy.top_p))
    if policy.min_p:
        warpers.append(_min_p(policy.min_p))
    if policy.typical_p is not None and policy.typical_p < 1:
        warpers.append(_typical(policy.typical_p))
    return warpers


def _temperature(temperature: float) -> Warper:
    def warp(ids: Ids, weights: Floats) -> tuple[Ids, Floats]:
        # Relative to the peak, so that a tiny temperature empties the tail instead of overflowing.
        with np.errstate(over="ignore"):
            scaled = (weights - weights.max()) / temperature
        return _keep(ids, scaled, np.isfinite(scaled))

    return warp


def _top_k(count: int) -> Warper:
    def warp(ids: Ids, weights: Floats) -> tuple[Ids, Floats]:
        if count >= len(ids):
            return ids, weights
        threshold = np.partition(weights, len(weights) - count)[len(weights) - count]
        return _keep(ids, weights, weights >= threshold)

    return warp


def _top_p(mass: float) -> Warper:
    def warp(ids: Ids, weights: Floats) -> tuple[Ids, Floats]:
        probs = np.exp(weights - weights.max())
        tail = (1.0 - mass) * probs.sum()
        # Ids below tail / n add up to less than the tail: they are cut in any order, so only the others are sorted.
        contenders = np.flatnonzero(probs >= tail / len(probs))
        # Among equals the highest ids stay, as after transformers' ascending sort.
        order = contenders[np.argsort(probs[contenders], kind="stable")[::-1]]
        # Mass of an id and of all less likely ones; an id is cut when that is at most the tail (as transformers does).
        rest = max(0.0, probs.sum() - probs[order].sum())
        mass_from = np.cumsum(probs[order][::-1])[::-1] + rest
        num_kept = max(1, int((mass_from > tail).sum()))
        kept = np.sort(order[:num_kept])
        return ids[kept], weights[kept]

    return warp


def _min_p(ratio: float) -> Warper:
    log_ratio = np.log(ratio)

    def warp(ids: Ids, weights: Floats) -> tuple[Ids, Floats]:
        return _keep(ids, weights, weights >= weights.max() + log_ratio)

    return warp


def _typical(mass: float) -> Warper:
    def warp(ids: Ids, weights: Floats) -> tuple[Ids, Floats]:
        log_probs = weights - weights.max()
        log_probs -= np.log(np.exp(log_probs).sum())
        probs = np.exp(log_probs)
        surprise = np.abs(-log_probs + (probs * log_probs).sum())
        order = np.argsort(surprise, kind="stable")
        last = min(int((np.cumsum(probs[order]) < mass).sum()), len(order) - 1)
        return _keep(ids, weights, surprise <= surprise[order[last]])

    return warp


def _keep(ids: Ids, weights: Floats, mask: Any) -> tuple[Ids, Floats]:
    return (ids, weights) if mask.all() else (ids[mask], weights[mask])
