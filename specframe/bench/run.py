"""Running a plan: every turn that its file of results lacks, in order, each written when it is finished.

Knows arms and files; what the numbers mean is ``metrics.py``'s. Killed at any moment and started again it goes on where it
was: a turn is done when its line is whole in the file, and is never done twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import attrs
from filelock import FileLock, Timeout

from specframe.bench.arms import WatchedArm
from specframe.bench.energy import EnergyMeter
from specframe.bench.lines import ArmRecord, ByteCounts, Header
from specframe.bench.machine import machine_class, versions
from specframe.bench.measure import Measurer, Prepared
from specframe.bench.memory import measure_apart
from specframe.bench.plan import Plan, Turn, changes, plan_of
from specframe.bench.results import Results, ResultWriter, is_unbegun, not_written, read_results
from specframe.bench.specs import build
from specframe.errors import InvalidResults
from specframe.loading import load_target
from specframe.prompt import encode
from specframe.text import TokenBytes

WARM_UP_TOKENS = 8


class Progress(NamedTuple):
    """How far a run is: ``doing`` in words; ``seconds_left`` is None until it can be told."""

    num_done: int
    num_all: int
    doing: str
    seconds_left: float | None = None


Say = Callable[[Progress], None]


@attrs.frozen
class Bench:
    """What a plan's turns are run with. ``table``: the target's bytes by token, None without a tokenizer."""

    arms: Mapping[str, WatchedArm]
    prepared: Sequence[Prepared]
    table: TokenBytes | None


def run(
    plan: Plan,
    path: str | Path,
    *,
    load: Callable[[Plan], Bench] | None = None,
    measure_arm: Callable[[Plan, str], ArmRecord] | None = None,
    say: Say = lambda progress: None,
    meter: EnergyMeter | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Results:
    """Do what a file of results lacks of a plan, and return all of them.

    ``load`` and ``measure_arm`` are those below unless given; nothing is loaded where nothing is lacking. Raises
    ``InvalidResults`` for a file of another plan or machine, or one that another process writes, and ``ResultsNotWritten``.
    """
    path = Path(path)
    meter = meter or EnergyMeter()
    with _alone(path):
        results = _take_up(plan, path, meter.source)
        _go_on(plan, path, results, load or load_bench, measure_arm or measure_planned, say, meter, clock)
        return read_results(path)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep every other run away from a file of results: its turns would be done twice."""
    lock = FileLock(f"{path}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise InvalidResults(f"results '{path.name}' are being written by another run; let it end") from error
    except OSError as error:
        raise not_written(path, error) from error
    try:
        yield
    finally:
        with suppress(OSError):  # some systems keep a file that is open
            Path(lock.lock_file).unlink()
        lock.release()


def load_bench(plan: Plan) -> Bench:
    """Load the target, the arms and the prompts of a plan."""
    target = load_target(plan.model, dtype=plan.dtype, device=plan.device)
    settings: dict[str, Any] = {
        "kernel": plan.kernel,
        "sampling": plan.sampling,
        "keep_entropies": plan.keeps_entropies,
    }
    has_chat = bool(getattr(target.tokenizer, "chat_template", None))
    prepared = []
    for item in plan.corpus.items():
        if item.judge is not None:
            item.judge("{}")  # a package that judging needs is asked for now, not in the middle
        prepared.append(Prepared(item, encode(item.messages if has_chat else item.prompt, target.facts)))
    return Bench(
        {name: build(arm["spec"], target, **settings) for name, arm in plan.arms.items()},
        prepared,
        TokenBytes(target.tokenizer),
    )


def measure_planned(plan: Plan, name: str) -> ArmRecord:
    """Return what an arm of a plan costs once, measured in a process of its own if the plan says so."""
    if not plan.weighs_arms:
        return ArmRecord(name)
    spec = plan.arms[name]["spec"]
    found = measure_apart(plan.model, spec, dtype=plan.dtype, device=plan.device, kernel=plan.kernel)
    counts = ByteCounts(
        artifact=found["artifact"],
        logical=found["logical"],
        deduplicated=found["deduplicated"],
        incremental=found["incremental"],
        peak_resident=found["max_resident"],
        unknown=tuple(found["unknown"]),
    )
    return ArmRecord(name, found["target_load_s"], found["drafters_load_s"], counts)


def _take_up(plan: Plan, path: Path, energy: str) -> Results:
    """Return the results that are there, or begin a file; another plan's, or another machine's, are refused."""
    if not path.exists() or is_unbegun(path):
        header = Header(plan.digest, plan.as_data(), machine_class(), versions(), energy)
        with ResultWriter(path) as writer:
            writer.write(header)
        return read_results(path)
    results = read_results(path)
    where = f"results '{path.name}'"
    if results.header.plan_digest != plan.digest:
        told = changes(plan_of(results.header.plan, where), plan)
    elif results.header.machine != (now := machine_class()):
        told = [f"machine.{key}: {results.header.machine.get(key)!r}, now {now[key]!r}" for key in now
                if results.header.machine.get(key) != now[key]]  # fmt: skip
    else:
        return results
    error = InvalidResults(f"{where} belong to another plan or machine; give another file")
    for sentence in told:
        error.add_note(sentence)
    raise error


def _go_on(
    plan: Plan,
    path: Path,
    results: Results,
    load: Callable[[Plan], Bench],
    measure_arm: Callable[[Plan, str], ArmRecord],
    say: Say,
    meter: EnergyMeter,
    clock: Callable[[], float],
) -> None:
    turns, done = plan.turns(), {record.key for record in results.requests}
    left = [turn for turn in turns if turn.key not in done]
    unmeasured = [name for name in plan.arms if name not in results.arms]
    if not left and not unmeasured:
        return
    with ResultWriter(path, num_bytes=results.num_bytes) as writer:
        measured = dict(results.arms)
        for name in unmeasured:
            same = next((record for other, record in measured.items() if plan.arms[other] == plan.arms[name]), None)
            if same is None and plan.weighs_arms:
                say(Progress(len(done), len(turns), f"memory and loading of {name}"))
            measured[name] = attrs.evolve(same, arm=name) if same is not None else measure_arm(plan, name)
            writer.write(measured[name])
        if not left:
            return
        say(Progress(len(done), len(turns), "loading"))
        bench = load(plan)
        measurer = Measurer(table=bench.table, meter=meter, session=_next_session(results), clock=clock)
        for name, arm in bench.arms.items():
            say(Progress(len(done), len(turns), f"warm-up of {name}"))
            measurer.measure(
                Turn(name, 0, 0, 0), arm, bench.prepared[0], max_new_tokens=WARM_UP_TOKENS, seed=plan.seed(0)
            )
        start = time.monotonic()
        for count, turn in enumerate(left):
            spent = time.monotonic() - start
            prepared = bench.prepared[turn.index]
            doing = f"{prepared.item.kind} '{prepared.item.name}', {turn.arm}"
            seconds_left = spent / count * (len(left) - count) if count else None
            say(Progress(len(done) + count, len(turns), doing, seconds_left))
            writer.write(
                measurer.measure(
                    turn,
                    bench.arms[turn.arm],
                    prepared,
                    max_new_tokens=plan.max_new_tokens,
                    seed=plan.seed(turn.repeat),
                )
            )
        say(Progress(len(turns), len(turns), "done"))


def _next_session(results: Results) -> int:
    return max((record.session for record in results.requests), default=-1) + 1
