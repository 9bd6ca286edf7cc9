"""What a certification runs: sizes, seeds, bounds and error odds, all fixed before anything is run.

The plan stands in the certificate, so that nobody can look at a result first and choose the number of draws after.
"""

from __future__ import annotations

from typing import Any

import attrs

from specframe.testing.grammars import CycleGrammar

PROMPTS = ((0, 1, 2, 0, 1, 2, 2, 0, 1), (2, 1, 1, 0, 2, 1, 1))
"""They repeat themselves, so that drafters that look for repetition find some; of three ids, so that every table takes them."""

POLICIES = ("temperature", "top-k", "top-p", "penalties", "mask")


@attrs.frozen
class Plan:
    """The sizes of a certification.

    Equalities on tables: ``num_tables``, ``num_seeds``, ``lengths`` (tokens a round), ``num_tokens`` (a generation's budget),
    and the sampling ``policies`` by name. Laws: ``num_chained``, tokens of the outputs that are enumerated with two proposals
    a round; ``largest_deviation`` of an enumerated probability from the target's; ``num_outputs``, generations of each Monte
    Carlo test; ``num_bins`` of the tests of uniformity; ``alpha``, the odds that a right drafter fails any of the statistical
    tests, all of them together (Holm). A real target: ``num_prompts``, ``num_target_tokens``, ``num_target_seeds``.
    """

    name: str
    num_tables: int
    num_seeds: int
    lengths: tuple[int, ...]
    num_tokens: int
    num_outputs: int
    num_prompts: int
    num_target_tokens: int
    num_target_seeds: int
    num_bins: int = 8
    alpha: float = 1e-4
    largest_deviation: float = 1e-12
    num_chained: int = 4
    policies: tuple[str, ...] = POLICIES


FULL = Plan(
    "full",
    num_tables=2,
    num_seeds=2,
    lengths=(1, 3, 8),
    num_tokens=16,
    num_outputs=400,
    num_prompts=12,
    num_target_tokens=64,
    num_target_seeds=2,
)
QUICK = Plan(
    "quick",
    num_tables=1,
    num_seeds=1,
    lengths=(1, 4),
    num_tokens=20,
    num_outputs=250,
    num_prompts=4,
    num_target_tokens=32,
    num_target_seeds=1,
    num_chained=3,
)

_PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2}


def greedy_policies(vocab_size: int, stop_ids: frozenset[int] = frozenset()) -> dict[str, dict[str, Any]]:
    """Return the arguments of greedy requests by the policy's name."""
    return {"plain": {}, "penalties": _PENALTIES, "mask": {"grammar": _mask(vocab_size, stop_ids)}}


def sampling_policies(vocab_size: int, stop_ids: frozenset[int] = frozenset()) -> dict[str, dict[str, Any]]:
    """Return the arguments of sampled requests by the policy's name, without seeds."""
    return {
        "temperature": {"temperature": 0.8},
        "top-k": {"temperature": 1.0, "top_k": 2},
        "top-p": {"temperature": 1.2, "top_p": 0.8},
        "penalties": {"temperature": 0.9, **_PENALTIES},
        "mask": {"temperature": 0.9, "grammar": _mask(vocab_size, stop_ids)},
    }


def _mask(vocab_size: int, stop_ids: frozenset[int]) -> CycleGrammar:
    """Return a grammar that leaves every choice, forces an id, forbids one, and forces another."""
    ids = frozenset(range(vocab_size))
    free = ids - stop_ids
    return CycleGrammar([ids, {1}, free - {2} or free, {0}], vocab_size=vocab_size, stop_ids=stop_ids)
