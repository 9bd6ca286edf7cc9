"""Certification: every check of a drafter or a strategy, in order, and the certificate that states them.

Statistical tests are judged last and together: the plan's odds of failing a right drafter are those of all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import attrs

from specframe._version import __version__
from specframe.bench.workload import CORE, WorkItem, core_workload
from specframe.engine import Engine
from specframe.errors import described
from specframe.generation import Generation
from specframe.manifest.digest import canonical
from specframe.plugins import Plugins
from specframe.prompt import encode
from specframe.proposal import Drafter, TargetFacts
from specframe.resolve import make_drafters, resolve_with_plugins, terms_of
from specframe.strategy import Strategy
from specframe.target import Target
from specframe.testing import conformance, contract, laws, parity
from specframe.testing.certificate import Certificate, Check
from specframe.testing.finding import Finding, Statistic, failed
from specframe.testing.plan import FULL, Plan
from specframe.testing.runs import Subject, quiet, request_of, run
from specframe.testing.statistics import holm
from specframe.testing.table import random_table
from specframe.testing.transforms import Transforms

COUPLED, RESIDUAL = "greedy and coupled", "residual"


class Progress(NamedTuple):
    """How far a certification is: the check that begins now, how many are done, and of how many."""

    check: str
    num_done: int
    num_checks: int


Say = Callable[[Progress], None]


def certify(
    make_drafter: Callable[[TargetFacts], Drafter],
    *,
    name: str = "drafter",
    target: Target | None = None,
    prompts: Sequence[str] = (),
    strategy: Strategy | None = None,
    generation: type[Generation] = Generation,
    plan: Plan = FULL,
    say: Say = lambda progress: None,
) -> Certificate:
    """Certify a drafter: contract, equalities and laws on table targets, and parity on ``target`` where one is given.

    ``make_drafter(facts)`` returns a new drafter for a target; tables have no tokenizer and lend no weights, so a drafter that
    needs either raises, and is certified on its target alone. ``prompts``: what that target is asked, for a drafter that has
    nothing to say to the core workload, which is asked if there are none. ``strategy``: mode, length and kernel of the
    rounds; ``generation``: the round loop, for certifying a changed verifier; ``say`` is told before each check.
    """
    chosen = attrs.evolve(strategy or Strategy(), drafters=())
    subject = Subject(name, lambda target: {name: make_drafter(target.facts)}, chosen, generation)
    about = {"strategy": _told(chosen), "drafters": {name: "given"}}
    engine = Engine(target, subject.make(target), strategy=chosen) if target is not None else None
    return _certify(subject, about, _why_no_tables(subject), engine, prompts, plan, say)


def certify_strategy(
    strategy: str | Path | Strategy,
    *,
    engine: Engine | None = None,
    prompts: Sequence[str] = (),
    plugins: Plugins | None = None,
    plan: Plan = FULL,
    say: Say = lambda progress: None,
) -> Certificate:
    """Certify a strategy, or a drafter of that name with its defaults; see ``certify``.

    ``engine``: one that runs this strategy on a real target, for the part on it, which is asked ``prompts``. Raises
    ``UnknownName``, ``InvalidStrategy`` or ``PluginError``.
    """
    resolved, loaded = resolve_with_plugins(strategy, plugins)
    # Drafters are made anew for most checks: in this process, where a worker's own would take a start each.
    resolved = attrs.evolve(resolved, drafters=tuple(attrs.evolve(use, worker=False) for use in resolved.drafters))

    def make(target: Target) -> Mapping[str, Drafter]:
        return make_drafters(resolved, loaded, target, {})

    terms = {name: each._replace(budget_s=None) for name, each in terms_of(resolved, loaded, {}).items()}
    subject = Subject(resolved.name, make, resolved, terms=terms)
    entries = {use.use: loaded.drafter(use.use) for use in resolved.drafters}
    about = {"strategy": _told(resolved), "drafters": {name: entry.plugin for name, entry in entries.items()}}
    needs = [
        f"{name} needs {what}, which a table has not"
        for name, entry in entries.items()
        for what, is_needed in (
            ("the target's tokenizer", entry.needs.tokenizer != "none"),
            ("hidden states", entry.needs.features is not None),
        )
        if is_needed
    ]
    return _certify(subject, about, ", ".join(needs) or _why_no_tables(subject), engine, prompts, plan, say)


@quiet()
def _certify(
    subject: Subject,
    about: dict[str, Any],
    why_no_tables: str,
    engine: Engine | None,
    prompts: Sequence[str],
    plan: Plan,
    say: Say,
) -> Certificate:
    start = time.perf_counter()
    steps: dict[str, Callable[[], Finding]] = {}
    if why_no_tables:
        told = f"not run on table targets: {why_no_tables}" + ("" if engine is not None else "; give a target")
        steps["tables"] = lambda: Finding("skipped", told)
    else:
        is_deterministic = contract.is_deterministic(subject)
        steps |= contract.checks(subject, plan, is_deterministic=is_deterministic)
        steps |= parity.checks(subject, plan)
        steps |= laws.enumerations(subject, plan, is_deterministic=is_deterministic)
        steps |= laws.monte_carlo(subject, plan)
    if engine is not None:
        about |= {
            "kernel": str(engine.kernel),
            "target": engine.target.facts.dtype,
            "device": engine.target.facts.device,
            "prompts": {"count": len(prompts), "sha256": _digest(prompts)} if prompts else CORE,
        }
        steps |= _on_target(subject, engine, prompts, plan)
    done: dict[str, tuple[Finding, float]] = {}
    for name, step in steps.items():
        say(Progress(name, len(done), len(steps)))
        began = time.perf_counter()
        done[name] = _outcome(step), time.perf_counter() - began
    checks = _judged_together(done, plan)
    say(Progress("", len(done), len(steps)))
    return Certificate(
        subject=subject.name,
        about=about,
        plan={**attrs.asdict(plan), "checks": list(steps), "correction": "Holm, over all p-values"},
        versions=_versions(),
        manifests=_manifests(engine),
        classes=_classes(checks, engine),
        checks=checks,
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=time.perf_counter() - start,
    )


def _on_target(subject: Subject, engine: Engine, asked: Sequence[str], plan: Plan) -> dict[str, Callable[[], Finding]]:
    """Return the checks on a real target; the first measures the bound of near-ties for those after."""
    target, kernel = engine.target, engine.kernel
    prompts = _prompts(target.facts, asked, plan)
    measured: list[conformance.Conformance] = []

    def conforms() -> Finding:
        measured.append(conformance.measure(target, _prompts(target.facts, (), plan)[:4], kernel))
        return conformance.judge(measured[0], kernel)

    def compare(*, is_greedy: bool) -> Finding:
        bound = measured[0].bound if measured else 0.0
        arguments: dict[str, Any] = {"kernel": kernel, "bound": bound, "is_greedy": is_greedy}
        return parity.on_target(target, engine.drafters, subject, prompts, plan, **arguments)

    def transform() -> Finding:
        transforms = Transforms()
        watching = transforms.watch(subject.generation)
        for seed, prompt in enumerate(prompts):
            request = request_of(
                target,
                prompt,
                {"max_new_tokens": plan.num_target_tokens, "temperature": parity.TEMPERATURE, "seed": seed},
            )
            run(
                target,
                engine.drafters,
                subject.rounds(verifier="residual"),
                request,
                kernel=kernel,
                generation=watching,
                terms=subject.terms,
            )
        tests = laws.transformed(transforms, plan)
        if transforms.num_impossible:
            return failed(f"{transforms.num_impossible} draws or decisions have probability 0")
        return Finding("passed", "draws, rejections and corrections have their laws", {"prompts": len(prompts)}, tests)

    return {
        "target: kernel": conforms,
        "target: greedy parity": partial(compare, is_greedy=True),
        "target: coupled parity": partial(compare, is_greedy=False),
        "target: residual draws": transform,
    }


def _outcome(step: Callable[[], Finding]) -> Finding:
    try:
        return step()
    except Exception as error:  # of a drafter or an engine that is being judged
        return failed(f"it raised {described(error)}")


def _judged_together(done: Mapping[str, tuple[Finding, float]], plan: Plan) -> tuple[Check, ...]:
    """Return the checks, those failed that have a statistical finding when all tests are taken together."""
    tests = [
        (name, what, tested)
        for name, (finding, _) in done.items()
        for what, tested in finding.tests.items()
        if tested.p_value is not None
    ]
    adjusted = holm([tested.p_value or 0.0 for _, _, tested in tests])
    checks = []
    for name, (finding, seconds) in done.items():
        p_values = {
            what: {"p": tested.p_value or 0.0, "adjusted": p, "num_values": tested.num_values}
            for (owner, what, tested), p in zip(tests, adjusted, strict=True)
            if owner == name
        }
        found = [what for what, values in p_values.items() if values["adjusted"] < plan.alpha]
        status, told = finding.status, finding.told
        if found:
            status = "failed"
            told = "; ".join(
                f"{what} do not have their law (adjusted p = {p_values[what]['adjusted']:.1g})" for what in found
            )
        figures = {**finding.figures, **_untested(finding.tests)}
        checks.append(Check(name, status, told, figures, p_values, round(seconds, 3)))
    return tuple(checks)


def _untested(tests: Mapping[str, Statistic]) -> dict[str, Any]:
    few = {what: tested.num_values for what, tested in tests.items() if tested.p_value is None}
    return {"too_few_values_for_a_test": few} if few else {}


def _classes(checks: Sequence[Check], engine: Engine | None) -> dict[str, str]:
    """Return the exactness classes that were shown, by way to verify."""
    shown = {check.name for check in checks if check.status == "passed"}
    classes = {}
    if any(name.startswith(("greedy", "coupled")) or name.endswith("parity") for name in shown):
        is_bitwise = engine is not None and engine.kernel.is_certified
        classes[COUPLED] = "bitwise" if is_bitwise else "token-exact"
    if any(name.startswith(("exact law", "Monte Carlo")) or name.endswith("residual draws") for name in shown):
        classes[RESIDUAL] = "distribution-exact"
    return classes


def _why_no_tables(subject: Subject) -> str:
    """Return why a subject cannot run on tables, or an empty text."""
    try:
        for drafter in subject.make(random_table()).values():
            drafter.close()
    except Exception as error:  # a stranger's factory
        return f"it could not be made for one ({described(error)})"
    return ""


def _prompts(facts: TargetFacts, asked: Sequence[str], plan: Plan) -> list[tuple[int, ...]]:
    """Return the prompts that are asked as ids, each a chat where there is a template.

    By default they are of every kind of the core workload; of a target without a tokenizer, ids that repeat themselves.
    """
    if facts.tokenizer is None and not asked:
        num_ids = min(facts.vocab_size, 29)
        return [tuple((number + step * step) % num_ids for step in range(40)) for number in range(plan.num_prompts)]
    by_kind: dict[str, list[WorkItem]] = {}
    for item in core_workload():
        by_kind.setdefault(item.kind, []).append(item)
    by_turns = itertools.chain.from_iterable(itertools.zip_longest(*by_kind.values()))
    texts = asked or [item.prompt for item in by_turns if item is not None][: plan.num_prompts]
    has_template = bool(getattr(facts.tokenizer, "chat_template", None))
    return [encode([{"role": "user", "content": text}] if has_template else text, facts) for text in texts]


def _digest(prompts: Sequence[str]) -> str:
    """Return what tells two lists of prompts apart and does not tell them."""
    return hashlib.sha256(canonical(list(prompts))).hexdigest()


def _manifests(engine: Engine | None) -> dict[str, str]:
    if engine is None:
        return {}
    identities = {"target": engine.identity, **engine.draft_identities}
    return {name: identity.digest for name, identity in identities.items() if identity is not None}


def _versions() -> dict[str, str]:
    libraries = {name: version(name) for name in ("torch", "transformers", "numpy")}
    return {"specframe": __version__, "python": platform.python_version(), **libraries, "machine": platform.machine()}


def _told(strategy: Strategy) -> dict[str, Any]:
    """Return a strategy as plain data; a path is told by the last part of it."""
    told: dict[str, Any] = _without_folders(attrs.asdict(strategy))
    return told


def _without_folders(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_folders(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_folders(item) for item in value]
    return PurePath(value).name if isinstance(value, str | PurePath) and len(PurePath(value).parts) > 1 else value
