"""Results of a comparison on a scripted machine, made through the real measuring in no time, to make reports of."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import attrs
from comparisons import LIBRARY as THEIRS
from comparisons import NO_METER, MadeArm, made_plan

from specframe.bench.arms import Outcome
from specframe.bench.lines import ArmRecord, ByteCounts, Header
from specframe.bench.measure import Measurer, Prepared
from specframe.bench.plan import Plan, strategy_arm
from specframe.bench.results import ResultWriter
from specframe.bench.workload import WorkItem
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.testing import Machine, ScriptedDrafter

WORDS = (
    "The",
    " quick",
    " brown",
    " fox",
    " jumps",
    " over",
    " the",
    " lazy",
    " dog",
    ".",
    "\n",
    " It",
    " is",
    " 42",
    ",",
    " so",
)
STRATA = {"chat": 0.35, "json": 0.85, "code": 0.7, "rewrite": 0.9}
"""How likely the first token of a proposal stands, by stratum."""

PLAIN, AGAIN, LOOKUP, DRAFT, LIBRARY = "plain", "plain again", "lookup", "draft, adaptive", "transformers"
MACHINE = {"architecture": "x86_64", "cores": "2", "power": "not available"}


class LibraryArm(MadeArm):
    """An arm that is a little slower than plain decoding and tells nothing of its rounds."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.engine())
        self._machine = machine

    def run(self, prompt_ids, max_new_tokens, *, seed, on_tokens):
        outcome = super().run(prompt_ids, max_new_tokens, seed=seed, on_tokens=on_tokens)
        self._machine.spend(0.2)
        return Outcome(outcome.token_ids)


def write_results(
    path: Path,
    *,
    strata: Sequence[str] = tuple(STRATA),
    num_items: int = 4,
    repeats: int = 2,
    max_new_tokens: int = 60,
    names: Sequence[str] = (PLAIN, AGAIN, LOOKUP, DRAFT, LIBRARY),
    words: Sequence[str] = WORDS,
    has_entropies: bool = True,
    joules: float | None = None,
    num_left: int = 0,
    title: str = "",
    again_s: float = 1.0,
    change=lambda record: record,
) -> Plan:
    """Write a file of results and return its plan.

    ``names``: of the five arms; ``joules``: of a second, None for no meter; ``num_left``: requests that are not done;
    ``title``: what begins the names of items; ``again_s``: how many times as long the control takes; ``change``: makes of
    each request's record another.
    """
    noise = random.Random(7)
    machine = Machine(lambda k: 0.04 + 0.004 * k, prefill_s=0.3, noise=lambda: noise.uniform(0.97, 1.03))
    kind = [""]

    def chance(num_emitted, position):
        return STRATA.get(kind[0], 0.6) * 0.95**position

    copying = ScriptedDrafter(machine, chance, ask_s=0.0005)
    drafting = ScriptedDrafter(machine, lambda emitted, position: 0.7 * 0.97**position, token_s=0.008)
    arms = {
        PLAIN: MadeArm(machine.engine()),
        AGAIN: MadeArm(machine.engine()),
        LOOKUP: MadeArm(machine.engine(copying, length=Length(max_tokens=6))),
        DRAFT: MadeArm(machine.engine(copying, drafting, length=Length("adaptive", 8))),
        LIBRARY: LibraryArm(machine),
    }
    items = [
        WorkItem("test", stratum, f"{title}{stratum} {number}", "x")
        for stratum in strata
        for number in range(num_items)
    ]
    settings = (
        strategy_arm(Strategy()),
        strategy_arm(Strategy()),
        strategy_arm(Strategy(name="lookup", length=Length(max_tokens=6), drafters=(DrafterUse("d0"),))),
        strategy_arm(
            Strategy(name="draft", length=Length("adaptive", 8), drafters=(DrafterUse("d0"), DrafterUse("d1")))
        ),
        THEIRS,
    )
    plan = made_plan(
        dict(zip(names, settings, strict=True)),
        items,
        machine=MACHINE,
        max_new_tokens=max_new_tokens,
        repeats=repeats,
    )
    by_name = dict(zip(names, arms.values(), strict=True))
    measurer = Measurer(table=None, meter=NO_METER, session=0, clock=machine.clock)
    with ResultWriter(path) as writer:
        writer.write(
            Header(plan.digest, plan.as_data(), MACHINE, {"torch": "2"}, "rapl" if joules else "not available")
        )
        for place, name in enumerate(names):
            writer.write(_arm_record(place, name))
        turns = plan.turns()
        for turn in turns[: len(turns) - num_left]:
            item = items[turn.index]
            kind[0] = item.kind
            prepared = Prepared(item, (turn.index % 16, 3))
            record = measurer.measure(turn, by_name[turn.arm], prepared, max_new_tokens=max_new_tokens, seed=None)
            pieces = tuple(words[token % len(words)] for token in record.token_ids)
            record = attrs.evolve(record, pieces=pieces, text="".join(pieces))
            if turn.arm == names[1] and again_s != 1:
                later_s = (again_s - 1) * record.end_to_end_s
                record = attrs.evolve(
                    record,
                    end_to_end_s=again_s * record.end_to_end_s,
                    decode_s=again_s * record.decode_s,
                    phases={**record.phases, "other": record.phases["other"] + later_s},
                )
            if joules is not None:
                record = attrs.evolve(record, energy_j=joules * record.end_to_end_s)
            if has_entropies:
                drafters = {name: _with_entropies(stats, noise) for name, stats in record.drafters.items()}
                record = attrs.evolve(record, drafters=drafters)
            writer.write(change(record))
    return plan


def _arm_record(place, name):
    peak, drafts = 900_000_000, (place == 3) * 120_000_000
    return ArmRecord(
        name,
        target_load_s=1.9,
        drafters_load_s=0.002 + (place == 3) * 0.8,
        bytes=ByteCounts(
            artifact=540_000_000 + drafts,
            logical={"target weights": 540_000_000, "drafts": drafts},
            deduplicated=540_000_000 + drafts,
            incremental=drafts,
            peak_resident=peak + drafts + place * 2_000_000,
        ),
    )


def _with_entropies(stats, noise):
    """Return a drafter's counts with an entropy for each evaluated token, lower where it was accepted."""
    fates = [True] * stats.num_accepted + [False] * (stats.num_evaluated - stats.num_accepted)
    return attrs.evolve(
        stats,
        entropies=tuple((noise.gammavariate(2, 0.35 if is_accepted else 0.9), is_accepted) for is_accepted in fates),
    )
