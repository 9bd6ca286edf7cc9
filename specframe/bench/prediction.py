"""What the cost model makes of measured rounds: seconds per token, speed, and the least output for which a draft pays."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import attrs

from specframe.bench.acceptance import add_positions
from specframe.bench.lines import ArmRecord, RequestRecord
from specframe.records import draft_prefill_s
from specframe.schedule import RoundCosts, SessionCosts, cost_per_token, expected_round_cost, expected_tokens


@attrs.frozen
class Prediction:
    """What the cost model makes of the measured costs d_i and V(k), the lengths that were chosen, and the survival S_i.

    ``plain_s``, ``speculative_s``: seconds per token while decoding; ``decode_speed``: their ratio; ``speed``: end to end at
    the outputs' own lengths; ``min_tokens``: N_min with loading and prefilling the draft, infinite where it never pays;
    ``break_even``: N_min over the median length of the outputs; ``session``: what falls due once,
    loading included.
    """

    plain_s: float
    speculative_s: float
    decode_speed: float
    speed: float
    min_tokens: float
    break_even: float
    session: SessionCosts


class Seconds(NamedTuple):
    """What one round of a request took; see ``schedule.RoundSeconds``."""

    round_id: int
    num_proposed: int
    num_accepted: int
    draft_s: float
    forward_s: float
    sync_s: float
    decide_s: float
    commit_s: float


def round_seconds(record: RequestRecord) -> list[Seconds]:
    """Return what the rounds of a request took."""
    rounds = record.rounds
    columns = [getattr(rounds, name) for name in Seconds._fields[1:]]
    return [Seconds(index, *row) for index, row in enumerate(zip(*columns, strict=True))]


def predict(own: Sequence[RequestRecord], plain: Sequence[RequestRecord], arm: ArmRecord | None) -> Prediction | None:
    """Return the cost model's account of finished requests; None where their rounds, or plain decoding's, are too few.

    A round of k proposals costs what those of the run cost in the median, and gives 1 + S_1 + ... + S_k tokens.
    """
    plain_costs = RoundCosts.measured((row for record in plain for row in round_seconds(record)), 0)
    rounds = [row for record in own for row in round_seconds(record)]
    lengths = Counter(row.num_proposed for row in rounds if row.round_id)
    if plain_costs is None or not lengths:
        return None
    plain_s = cost_per_token(plain_costs, ())
    survival = [position.survival or 0.0 for position in add_positions(record.positions for record in own)]
    spent_s = num_tokens = 0.0
    for length, count in lengths.items():
        costs = RoundCosts.measured(rounds, length)
        assert costs is not None
        spent_s += count * expected_round_cost(costs, survival[:length])
        num_tokens += count * expected_tokens(survival[:length])
    speculative_s = spent_s / num_tokens
    if plain_s <= 0 or speculative_s <= 0:  # too short for the clock
        return None
    session = SessionCosts(
        target_load_s=(arm.target_load_s if arm is not None else None) or 0.0,
        target_prefill_s=statistics.median(record.first_token_s or 0.0 for record in plain),
        draft_load_s=(arm.drafters_load_s if arm is not None else None) or 0.0,
        draft_prefill_s=statistics.median(map(draft_prefill_of, own)),
    )
    num_decoded = [len(record.token_ids) - record.num_first for record in own]
    in_turn = attrs.evolve(session, target_load_s=0.0, draft_load_s=0.0)  # requests are timed on what is loaded
    baseline_s = sum(in_turn.baseline_s(count, plain_s) for count in num_decoded)
    least = session.min_tokens(plain_s, speculative_s)
    return Prediction(
        plain_s=plain_s,
        speculative_s=speculative_s,
        decode_speed=plain_s / speculative_s,
        speed=baseline_s / sum(in_turn.speculative_s(count, speculative_s) for count in num_decoded),
        min_tokens=least,
        break_even=least / max(statistics.median(num_decoded), 1),
        session=session,
    )


def draft_prefill_of(record: RequestRecord) -> float:
    """Return the seconds of a request in which drafts read its prompt (``records.draft_prefill_s``)."""
    return draft_prefill_s(zip(record.rounds.num_proposed, record.rounds.draft_s, strict=True))
