"""A comparison's plan: all that decides its outcome, fixed under a digest before results exist.

Plain data and its file. Whether a run keeps to its plan is a comparison of two plans, field by field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.gates import DEFAULT_GATES, Gate, as_data
from specframe.bench.workload import WorkItem
from specframe.errors import InvalidPlan, InvalidStrategy
from specframe.files import write_whole
from specframe.manifest.digest import canonical, digest
from specframe.strategy import Strategy, structure

FORMAT = 1


@attrs.frozen
class PlannedItem:
    """A prompt of the plan: where it belongs, and the SHA-256 of all that it is."""

    kind: str
    name: str
    sha256: str


@attrs.frozen
class Plan:
    """What a comparison will do.

    ``arms``: settings by name, in any plain form; ``items``: the corpus, in order; ``seeds``: the seed family, one for each
    repeat of a sampled request; ``order_seed`` shuffles the arms; ``sampling``: the policy of all arms, None for greedy;
    ``target``: the digest of the target's manifest, or None; ``machine``: its class.
    """

    arms: Mapping[str, Mapping[str, Any]]
    items: tuple[PlannedItem, ...]
    machine: Mapping[str, str]
    gates: tuple[Gate, ...] = DEFAULT_GATES
    target: str | None = None
    sampling: Mapping[str, Any] | None = None
    max_new_tokens: int = 128
    repeats: int = 3
    seeds: tuple[int, ...] = (0,)
    order_seed: int = 0
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """The digest of every field."""
        return digest("plan-v1", self.as_data())

    def as_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {**attrs.asdict(self), "gates": as_data(self.gates)}

    def write(self, path: Path) -> None:
        """Write the plan and its digest as JSON. Raises ``OSError``."""
        content = {"digest": self.digest, "plan": self.as_data()}
        write_whole(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def strategy_arm(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as an arm's settings."""
    return {"strategy": attrs.asdict(strategy)}


def planned(items: Iterable[WorkItem]) -> tuple[PlannedItem, ...]:
    """Return the items of a corpus as a plan holds them."""
    return tuple(
        PlannedItem(item.kind, item.name, hashlib.sha256(canonical(attrs.asdict(item))).hexdigest()) for item in items
    )


def read_plan(path: str | Path) -> Plan:
    """Read a plan. Raises ``InvalidPlan`` for a file that is none, was changed, or is of a newer format."""
    path = Path(path)
    where = f"plan '{path.name}'"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidPlan(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"{where} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("plan"), dict):
        raise InvalidPlan(f"{where} must hold an object with the keys 'digest' and 'plan'")
    data = content["plan"]
    if data.get("format") != FORMAT:
        raise InvalidPlan(f"{where} has format {data.get('format')!r}; this specframe reads {FORMAT}")
    try:
        plan = structure(data, Plan, where)
    except InvalidStrategy as error:
        raise InvalidPlan(str(error)) from error
    if content.get("digest") != plan.digest:
        raise InvalidPlan(f"{where} was changed after it was fixed: its digest is not that of its content")
    return plan


def changes(plan: Plan, now: Plan) -> list[str]:
    """Return how a run departs from its plan, a sentence each; a run with any is invalid."""
    return [
        f"{path}: planned {_shown(first)}, now {_shown(second)}"
        for path, first, second in _differences(plan.as_data(), now.as_data())
    ]


_MISSING = object()


def _differences(first: Any, second: Any, path: str = "") -> Iterable[tuple[str, Any, Any]]:
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted(first.keys() | second.keys()):
            name = f"{path}.{key}" if path else str(key)
            yield from _differences(first.get(key, _MISSING), second.get(key, _MISSING), name)
    elif _is_sequence(first) and _is_sequence(second):
        for index in range(max(len(first), len(second))):
            ours, theirs = (values[index] if index < len(values) else _MISSING for values in (first, second))
            yield from _differences(ours, theirs, f"{path}[{index}]")
    elif first is _MISSING or second is _MISSING or canonical(first) != canonical(second):
        yield path, first, second


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _shown(value: Any) -> str:
    return "nothing" if value is _MISSING else json.dumps(value, ensure_ascii=False, sort_keys=True)
