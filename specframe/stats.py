"""Statistics of a generation as plain data: one form, for the command line's JSON and for receipts.

Knows no files. Counts and seconds are ``records.Stats``'s fields; rates that follow from them stand beside them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import attrs

from specframe.positions import PositionStats
from specframe.records import DrafterStats, Stats

_RATES = ("tokens_per_call", "total_s", "num_proposed", "num_accepted")
_DRAFTER_RATES = ("acceptance",)
_POSITION_RATES = ("num_rejected", "acceptance", "survival")


def plain(stats: Stats) -> dict[str, Any]:
    """Return statistics as dictionaries, lists and numbers; entropies are left out, they are as many as tokens."""
    return {
        "num_rounds": stats.num_rounds,
        "num_target_calls": stats.num_target_calls,
        "num_tokens": stats.num_tokens,
        "min_margin": finite(stats.min_margin),
        "num_rounding": stats.num_rounding,
        "drafters": {name: _drafter(drafter) for name, drafter in stats.drafters.items()},
        "seconds": dict(stats.seconds),
        "first_token_s": stats.first_token_s,
        "draft_prefill_s": stats.draft_prefill_s,
        "positions": [_position(position) for position in stats.positions],
        **{name: getattr(stats, name) for name in _RATES},
    }


def without_rates(data: Any) -> Any:
    """Return what ``plain`` returned with the fields of ``Stats`` alone; what has another form stays as it is."""
    fields = _fields(data, _RATES)
    if isinstance(fields, dict) and isinstance(drafters := fields.get("drafters"), Mapping):
        fields["drafters"] = {name: _fields(drafter, _DRAFTER_RATES) for name, drafter in drafters.items()}
    return fields


def finite(value: float | None) -> float | None:
    """Return a number that JSON can hold: a margin is infinite where no other id was possible, and then there is none."""
    return value if value is not None and math.isfinite(value) else None


def _drafter(drafter: DrafterStats) -> dict[str, Any]:
    return {
        "num_proposed": drafter.num_proposed,
        "num_evaluated": drafter.num_evaluated,
        "num_accepted": drafter.num_accepted,
        "seconds": drafter.seconds,
        "positions": [_position(position) for position in drafter.positions],
        **{name: getattr(drafter, name) for name in _DRAFTER_RATES},
    }


def _position(position: PositionStats) -> dict[str, Any]:
    return {**attrs.asdict(position), **{name: getattr(position, name) for name in _POSITION_RATES}}


def _fields(data: Any, rates: tuple[str, ...]) -> Any:
    if not isinstance(data, Mapping):
        return data
    fields = {name: value for name, value in data.items() if name not in rates}
    if isinstance(positions := fields.get("positions"), list):
        names = {*_POSITION_RATES}
        fields["positions"] = [
            {name: value for name, value in position.items() if name not in names}
            if isinstance(position, Mapping)
            else position
            for position in positions
        ]
    return fields
