"""A comparison's plan: all that decides its outcome, fixed under a digest before results exist.

Plain data and its file. Whether a run keeps to its plan is a comparison of two plans, field by field.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from specframe._version import __version__
from specframe.bench.gates import DEFAULT_GATES, Gate, as_data
from specframe.bench.workload import Corpus, WorkItem
from specframe.errors import InvalidPlan, InvalidStrategy
from specframe.files import save
from specframe.manifest.digest import canonical, digest
from specframe.strategy import Strategy, structure

FORMAT = 1


def _at_least_1(instance: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if value < 1:
        raise InvalidPlan(f"'{attribute.name}' must be >= 1 (got {value!r})")


def _seeds(instance: Any, attribute: attrs.Attribute[Any], value: tuple[int, ...]) -> None:
    if not value or any(not 0 <= seed < 2**64 for seed in value) or len(set(value)) < len(value):
        raise InvalidPlan(f"'{attribute.name}' must be different integers from 0 to 2**64 - 1 (got {value!r})")


@attrs.frozen
class PlannedItem:
    """A prompt of the plan: where it belongs, and the SHA-256 of all that it is."""

    kind: str
    name: str
    sha256: str


@attrs.frozen
class Turn:
    """One request of a plan: an arm's turn at an item. ``order``: its place among the arms that take that item in a row."""

    arm: str
    index: int
    repeat: int
    order: int

    @property
    def key(self) -> tuple[str, int, int]:
        """What tells it from every other turn."""
        return self.arm, self.index, self.repeat


@attrs.frozen
class Plan:
    """What a comparison will do.

    ``arms``: settings by name, in any plain form; ``items``: the corpus, in order, which ``corpus`` says where to find;
    ``model``: the target's name, ``target`` the digest of its manifest, or None; ``dtype``, ``device``, ``kernel``: as for
    ``load``; ``sampling``: the policy of all arms, None for greedy; ``seeds``: the seed family, taken in turn by the repeats
    of a sampled request; ``order_seed`` shuffles the arms; ``keeps_entropies``: whether draft laws' entropies are recorded,
    which takes time; ``weighs_arms``: whether each arm's memory and loading are measured in a process of its own;
    ``machine``: its class; ``version``: of specframe.
    """

    arms: Mapping[str, Mapping[str, Any]]
    items: tuple[PlannedItem, ...]
    machine: Mapping[str, str]
    corpus: Corpus = attrs.field(factory=Corpus)
    gates: tuple[Gate, ...] = DEFAULT_GATES
    model: str = "demo"
    target: str | None = None
    dtype: str | None = None
    device: str | None = None
    kernel: str | None = None
    sampling: Mapping[str, Any] | None = None
    keeps_entropies: bool = False
    weighs_arms: bool = True
    max_new_tokens: int = attrs.field(default=128, validator=_at_least_1)
    repeats: int = attrs.field(default=3, validator=_at_least_1)
    seeds: tuple[int, ...] = attrs.field(default=(0,), validator=_seeds)
    order_seed: int = 0
    version: str = __version__
    format: int = FORMAT

    @property
    def digest(self) -> str:
        """The digest of every field."""
        return digest("plan-v1", self.as_data())

    @property
    def baseline(self) -> str | None:
        """The first arm that is plain decoding by specframe, or None."""
        return next((name for name, arm in self.arms.items() if is_plain(arm)), None)

    def turns(self) -> list[Turn]:
        """Return every request in order: repeat by repeat, item by item, the arms in an order of its own.

        Orders are balanced: of as many items as there are arms, one after another, each arm is first once, second once, and so
        on, in a drawn order that is turned further from item to item. So none profits from its place.
        """
        turns = []
        for repeat, index in itertools.product(range(self.repeats), range(len(self.items))):
            block, shift = divmod(repeat * len(self.items) + index, len(self.arms))
            names = list(self.arms)
            random.Random(f"{self.order_seed}/{block}").shuffle(names)
            names = names[shift:] + names[:shift]
            turns += [Turn(name, index, repeat, order) for order, name in enumerate(names)]
        return turns

    def seed(self, repeat: int) -> int | None:
        """Return the seed of a repeat; None when greedy."""
        return self.seeds[repeat % len(self.seeds)] if self.sampling is not None else None

    def as_data(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {**attrs.asdict(self), "gates": as_data(self.gates)}

    def write(self, path: Path) -> None:
        """Write the plan and its digest as JSON. Raises ``InvalidRequest`` where the file cannot be written."""
        content = {"digest": self.digest, "plan": self.as_data()}
        save(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def strategy_arm(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as an arm's settings."""
    return {"strategy": attrs.asdict(strategy)}


def is_plain(arm: Mapping[str, Any]) -> bool:
    """Tell whether an arm's settings are plain decoding by specframe."""
    return "strategy" in arm and not arm["strategy"]["drafters"]


def is_judged(arm: Mapping[str, Any]) -> bool:
    """Tell whether a verdict is due on an arm: it is a strategy, and not plain decoding."""
    return "strategy" in arm and not is_plain(arm)


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
    plan = plan_of(content["plan"], where)
    if content.get("digest") != plan.digest:
        raise InvalidPlan(f"{where} was changed after it was fixed: its digest is not that of its content")
    return plan


def plan_of(data: Mapping[str, Any], where: str) -> Plan:
    """Return the plan that ``as_data`` told; ``where`` names the source in ``InvalidPlan``."""
    if data.get("format") != FORMAT:
        raise InvalidPlan(f"{where} has format {data.get('format')!r}; this specframe reads {FORMAT}")
    try:
        plan = structure(data, Plan, where)
    except InvalidStrategy as error:
        raise InvalidPlan(str(error)) from error
    for name, arm in plan.arms.items():
        if not _is_described(arm):
            raise InvalidPlan(f"{where}: arm '{name}' is neither a strategy with its drafters nor one of transformers'")
    return plan


def _is_described(arm: Mapping[str, Any]) -> bool:
    strategy, library = arm.get("strategy"), arm.get("library")
    has_drafters = isinstance(strategy, Mapping) and isinstance(strategy.get("drafters"), Sequence)
    return has_drafters or isinstance(library, Mapping)


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
