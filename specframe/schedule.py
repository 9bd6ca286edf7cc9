"""The cost model of speculation: what a round, a token and a whole generation are expected to cost. Pure functions.

Knows numbers only: seconds, tokens, bytes and probabilities. Source: the report's "Cost model, scheduling, grammar, and
draft selection", whose symbols stand in the docstrings, and its KV formula. Survival ``S_i`` is the probability that the
first i proposed tokens all stand; no independence is assumed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, Protocol

import attrs


def expected_tokens(survival: Sequence[float]) -> float:
    """Return E[G(k)] = 1 + S_1 + ... + S_k, the tokens that a round emits; ``survival`` holds S_1 to S_k."""
    return 1.0 + sum(survival)


def constant_survival(acceptance: float, num_tokens: int) -> tuple[float, ...]:
    """Return S_1 to S_k where every conditional acceptance is the same; E[G(k)] is then (1 - a^(k+1)) / (1 - a)."""
    return tuple(acceptance**position for position in range(1, num_tokens + 1))


def _seconds(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if any(second < 0 for second in (value if isinstance(value, tuple) else (value,))):
        raise ValueError(f"'{attribute.name}' must be >= 0 seconds (got {value!r})")


def _for_each_position(instance: RoundCosts, attribute: attrs.Attribute[Any], value: tuple[float, ...]) -> None:
    if value and len(value) != len(instance.draft_s):
        raise ValueError(f"'{attribute.name}' must have an entry for each of {len(instance.draft_s)} positions")


class RoundSeconds(Protocol):
    """What a finished round took, such as a ``RoundRecord``, whose fields these are; round 0 is the prefill."""

    @property
    def round_id(self) -> int: ...
    @property
    def num_proposed(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...
    @property
    def draft_s(self) -> float: ...
    @property
    def forward_s(self) -> float: ...
    @property
    def sync_s(self) -> float: ...
    @property
    def decide_s(self) -> float: ...
    @property
    def commit_s(self) -> float: ...


@attrs.frozen
class RoundCosts:
    """What the parts of a round of k proposals cost, in seconds.

    ``draft_s``: d_1 to d_k; ``verify_s``: V_t(k); ``sync_s``: C_sync(k); ``rollback_s`` and ``residual_s``: C_rollback(j, k)
    and C_residual(j) of a rejection at j = 1 to k, empty for 0; the others as in the report. Raises ``ValueError``.
    """

    verify_s: float = attrs.field(validator=_seconds)
    draft_s: tuple[float, ...] = attrs.field(default=(), validator=_seconds)
    sync_s: float = attrs.field(default=0.0, validator=_seconds)
    rollback_s: tuple[float, ...] = attrs.field(default=(), validator=[_seconds, _for_each_position])
    residual_s: tuple[float, ...] = attrs.field(default=(), validator=[_seconds, _for_each_position])
    full_accept_s: float = attrs.field(default=0.0, validator=_seconds)
    cache_append_s: float = attrs.field(default=0.0, validator=_seconds)
    telemetry_s: float = attrs.field(default=0.0, validator=_seconds)

    @classmethod
    def measured(cls, records: Iterable[RoundSeconds], num_tokens: int) -> RoundCosts | None:
        """Return the median costs of the rounds that proposed exactly so many tokens, the prefill apart; None without one.

        Drafting is spread evenly over the positions. What rounds that lost a token took to judge and to commit is C_residual
        and C_rollback, the same at every position; what rounds that stand whole took for both is C_full_accept. Where there
        are none of either, all rounds speak for them.
        """
        rounds = [record for record in records if record.round_id and record.num_proposed == num_tokens]
        if not rounds:
            return None
        whole = [record for record in rounds if record.num_accepted == num_tokens] or rounds
        broken = [record for record in rounds if record.num_accepted < num_tokens] or rounds
        draft_s = statistics.median(record.draft_s for record in rounds)
        sync_s = statistics.median(record.sync_s for record in rounds)
        return cls(
            verify_s=statistics.median(record.forward_s for record in rounds),
            draft_s=(draft_s / num_tokens,) * num_tokens if num_tokens else (),
            sync_s=sync_s if num_tokens else sync_s + draft_s,  # asked, and nothing proposed
            rollback_s=(statistics.median(record.commit_s for record in broken),) * num_tokens,
            residual_s=(statistics.median(record.decide_s for record in broken),) * num_tokens,
            full_accept_s=statistics.median(record.decide_s + record.commit_s for record in whole),
        )


def expected_round_cost(costs: RoundCosts, survival: Sequence[float]) -> float:
    """Return E[C_round(k)] in seconds; ``survival`` holds S_1 to S_k, k being the length of ``costs.draft_s``.

    A rejection at j happens with probability S_(j-1) (1 - a_j) = S_(j-1) - S_j. Raises ``ValueError`` for another length.
    """
    num_tokens = len(costs.draft_s)
    if len(survival) != num_tokens:
        raise ValueError(f"'survival' must hold S_1 to S_{num_tokens} (got {len(survival)} values)")
    stands = (1.0, *survival)
    rejections = [before - after for before, after in pairwise(stands)]
    return (
        sum(costs.draft_s)
        + costs.verify_s
        + costs.sync_s
        + sum(chance * cost for chance, cost in zip(rejections, costs.rollback_s, strict=False))
        + sum(chance * cost for chance, cost in zip(rejections, costs.residual_s, strict=False))
        + stands[-1] * costs.full_accept_s
        + costs.cache_append_s
        + costs.telemetry_s
    )


def cost_per_token(costs: RoundCosts, survival: Sequence[float]) -> float:
    """Return E[C_round(k)] / E[G(k)], the steady-state seconds per token; k = 0 is plain decoding, C_t(1)."""
    return expected_round_cost(costs, survival) / expected_tokens(survival)


def pays(plain_s: float, speculative_s: float) -> bool:
    """Tell whether the break-even condition holds: speculation costs less per token than C_t(1)."""
    return speculative_s < plain_s


def best_length(costs_of: Callable[[int], RoundCosts], survival: Sequence[float]) -> int:
    """Return the k from 0 to ``len(survival)`` of the least cost per token; the shortest of equals."""
    lengths = range(len(survival) + 1)
    return min(lengths, key=lambda length: cost_per_token(costs_of(length), survival[:length]))


@attrs.frozen
class SessionCosts:
    """What a generation costs beside its rounds, in seconds.

    L_t and P_t(S) fall due in any case; the rest is what a draft adds before its first token, the report's F.
    """

    target_load_s: float = 0.0
    target_prefill_s: float = 0.0
    draft_load_s: float = 0.0
    draft_prefill_s: float = 0.0
    draft_initialization_s: float = 0.0
    extra_allocation_s: float = 0.0

    @property
    def fixed_s(self) -> float:
        """F = L_d + P_d(S) + C_draft_initialization + C_extra_allocation."""
        return self.draft_load_s + self.draft_prefill_s + self.draft_initialization_s + self.extra_allocation_s

    def baseline_s(self, num_tokens: float, plain_s: float) -> float:
        """Return T_baseline = L_t + P_t(S) + T_decode for so many tokens after the prefill's."""
        return self.target_load_s + self.target_prefill_s + num_tokens * plain_s

    def speculative_s(self, num_tokens: float, speculative_s: float, *, finalize_s: float = 0.0) -> float:
        """Return T_spec = L_t + L_d + P_t(S) + P_d(S) + T_draft + ... + T_finalize.

        ``speculative_s``: the cost per token, which holds drafting, verifying, rejecting, synchronising and rolling back.
        """
        return self.baseline_s(num_tokens, speculative_s) + self.fixed_s + finalize_s

    def min_tokens(self, plain_s: float, speculative_s: float) -> float:
        """Return N_min = F / (C_t(1) - C_spec), beyond which the draft pays; infinity where it never does."""
        return self.fixed_s / (plain_s - speculative_s) if pays(plain_s, speculative_s) else math.inf


def kv_bytes(num_positions: int, *, num_layers: int, num_kv_heads: int, head_dim: int, element_bytes: int) -> int:
    """Return M_KV = 2 S L H_KV D b, the bytes of the keys and values of one sequence, before any padding.

    A target and an independent draft both have one, and their sum is part of the peak.
    """
    return 2 * num_positions * num_layers * num_kv_heads * head_dim * element_bytes


def logit_bytes(num_tokens: int, *, vocab_size: int, element_bytes: int) -> int:
    """Return M_target_logits = (k + 1) V b, the bytes of the rows of a round of k proposals where all come back."""
    return (num_tokens + 1) * vocab_size * element_bytes


def law_bytes(num_tokens: int, *, vocab_size: int, element_bytes: int = 8) -> int:
    """Return k V b, the bytes of a round's draft laws where all are kept for residual verification."""
    return num_tokens * vocab_size * element_bytes
