"""Comparisons on targets whose costs and texts are known: plans, arms and what runs them."""

from __future__ import annotations

from typing import Any

from specframe import Engine, Length, Strategy
from specframe.bench.arms import EngineArm
from specframe.bench.energy import EnergyMeter
from specframe.bench.gates import default_gates
from specframe.bench.lines import ArmRecord, Rounds
from specframe.bench.machine import machine_class
from specframe.bench.measure import Prepared
from specframe.bench.plan import Plan, planned, strategy_arm
from specframe.bench.run import Bench, run
from specframe.bench.workload import WorkItem
from specframe.strategy import DrafterUse
from specframe.testing import Machine, ScriptedDrafter

PLAIN = strategy_arm(Strategy())
DRAFTED = strategy_arm(Strategy(name="drafted", drafters=(DrafterUse("scripted"),)))
LIBRARY = {"library": {"num_lookup": None, "assistant": None}}


class MadeArm(EngineArm):
    """An engine that was made by hand as an arm."""

    def __init__(self, engine: Engine, **arguments: Any) -> None:
        self.engine, self._arguments, self.last = engine, arguments, None


def items(*kinds: str) -> list[WorkItem]:
    """Return an item of each kind, each of another name."""
    return [WorkItem("test", kind, f"item {index}", f"prompt {index}") for index, kind in enumerate(kinds)]


def made_plan(arms: dict[str, Any], corpus: list[WorkItem], **settings: Any) -> Plan:
    """Return a plan for arms that a test makes itself."""
    given = {"gates": default_gates(is_greedy=True), "machine": machine_class(), "max_new_tokens": 12, "repeats": 1}
    return Plan(arms=arms, items=planned(corpus), **{**given, **settings})


def made_bench(arms: dict[str, Any], corpus: list[WorkItem], table: Any = None) -> Bench:
    """Return arms with prompts of a few ids, another for each item."""
    return Bench(arms, [Prepared(item, (index % 4, 1 + index % 3)) for index, item in enumerate(corpus)], table)


def run_made(plan: Plan, bench: Bench, path: Any, **settings: Any) -> Any:
    """Run a plan with arms that a test has made; nothing is measured in other processes."""
    given = {"load": lambda plan: bench, "measure_arm": lambda plan, name: ArmRecord(name), "meter": NO_METER}
    return run(plan, path, **{**given, **settings})


def made_rounds(
    num_proposed: tuple[int, ...], num_accepted: tuple[int, ...], num_emitted: tuple[int, ...], **seconds: Any
) -> Rounds:
    """Return the rounds of a request, whose phases took no time but for those that are given."""
    nothing = (0.0,) * len(num_proposed)
    columns = {f"{name}_s": nothing for name in ("draft", "forward", "sync", "decide", "commit", "emit")}
    return Rounds(num_proposed, num_accepted, num_emitted, **{**columns, **seconds})


class _NoMeter(EnergyMeter):
    def __init__(self) -> None:
        self.source, self._counters = "not available", []


NO_METER = _NoMeter()


def machine_comparison(
    machine: Machine, drafted: dict[str, tuple[ScriptedDrafter, Length]], kinds: tuple[str, ...], **settings: Any
) -> tuple[Plan, Bench]:
    """Return a plan and its arms on a machine: plain decoding, the same again, and drafters with their lengths."""
    corpus = items(*kinds)
    made = {name: MadeArm(machine.engine(drafter, length=length)) for name, (drafter, length) in drafted.items()}
    plain = {name: MadeArm(machine.engine()) for name in ("plain", "again")}
    described = {name: {**DRAFTED, "name": name} for name in drafted}
    return made_plan({"plain": PLAIN, "again": PLAIN, **described}, corpus, **settings), made_bench(
        {**plain, **made}, corpus
    )
