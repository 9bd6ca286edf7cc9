"""Making a plan: from what a person asks for to everything that decides the outcome. Loads no weights, runs no arm."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from specframe.bench.gates import Gate, default_gates
from specframe.bench.machine import machine_class
from specframe.bench.plan import Plan, changes, is_judged, planned
from specframe.bench.specs import LIBRARY, describe, file_of
from specframe.bench.workload import CORE, Corpus, is_shipped
from specframe.errors import InvalidPlan, InvalidRequest, InvalidStrategy, SpecframeError
from specframe.manifest.collector import collect
from specframe.manifest.source import open_source
from specframe.sampling import SamplingPolicy
from specframe.strategy import structure

PLAIN, CONTROL = "plain", "plain again"
DEMO_ARMS = {
    PLAIN: "none",
    CONTROL: "none",
    "lookup": "prompt_lookup",
    "lookup, fixed": "prompt_lookup@fixed:7",
    LIBRARY: LIBRARY,
    "transformers lookup": "transformers-lookup:10",
}


def draw_up(
    arms: Mapping[str, str],
    corpus: Corpus,
    *,
    gates: tuple[Gate, ...] | None = None,
    certificates: Mapping[str, str] = {},
    **settings: Any,
) -> Plan:
    """Return a plan. ``arms``: specs by name (see ``specs.py``), plain decoding among them; ``settings``: fields of ``Plan``.

    ``gates``: the default ones if not given; ``certificates``: files of ``certify`` by arm, evidence that its sampling is
    exact. Raises ``InvalidPlan``, and what reading the corpus, the arms and the model raises.
    """
    sampling = settings.get("sampling")
    if sampling is not None and SamplingPolicy(**sampling).is_greedy:
        raise InvalidRequest("sampling", "needs a temperature above 0", sampling, "leave it out for greedy decoding")
    source, kernel = open_source(settings.get("model", "demo")), settings.get("kernel")
    described = {name: describe(spec, source, kernel=kernel, sampling=sampling) for name, spec in arms.items()}
    for name, file in certificates.items():
        if name not in described:
            raise InvalidPlan(f"a certificate is given for arm '{name}'; the arms are {', '.join(described)}")
        described[name]["certificate"] = _read_certificate(Path(file), name, described[name])
    plan = Plan(
        arms=described,
        items=planned(corpus.items()),
        machine=machine_class(),
        corpus=corpus,
        gates=gates if gates is not None else default_gates(is_greedy=sampling is None),
        target=collect(source, weights=True, dtype=settings.get("dtype")).digest,
        **settings,
    )
    if plan.baseline is None:
        raise InvalidPlan("a plan must have an arm that is plain decoding by specframe: give the strategy 'none'")
    return plan


def renew(plan: Plan) -> Plan:
    """Return the plan that the same wishes give now: with today's files, models, code and machine."""
    kept = {name: getattr(plan, name) for name in _WISHES}
    now = draw_up({name: arm["spec"] for name, arm in plan.arms.items()}, plan.corpus, gates=plan.gates, **kept)
    certified = {name: {"certificate": arm["certificate"]} for name, arm in plan.arms.items() if "certificate" in arm}
    return attrs.evolve(now, arms={name: {**arm, **certified.get(name, {})} for name, arm in now.arms.items()})


_WISHES = (
    "model", "dtype", "device", "kernel", "sampling", "keeps_entropies", "weighs_arms", "max_new_tokens", "repeats",
    "seeds", "order_seed",
)  # fmt: skip


def require_unchanged(plan: Plan) -> None:
    """Raise ``InvalidPlan`` where a run now would not be the planned one, with every difference.

    And what reading the corpus, the arms and the model raises, with the names of files that are looked for in vain.
    """
    try:
        told = changes(plan, renew(plan))
    except SpecframeError as missing:
        if absent := _absent(plan):
            missing.add_note(
                f"there is no {' and no '.join(map(repr, absent))} in '{Path.cwd()}'; paths in a plan are relative to the "
                "folder that it was made in: run it there"
            )
        raise
    if told:
        error = InvalidPlan(
            "a run would not be the one that was planned, so its results would be invalid; make a new plan"
        )
        for sentence in told:
            error.add_note(sentence)
        raise error


def _absent(plan: Plan) -> list[str]:
    """Return the relative paths of a plan under which nothing stands here; a model's name may be an id instead."""
    named = [source for source in plan.corpus.sources if not is_shipped(source)]
    named += [plan.model, *(file for arm in plan.arms.values() if (file := file_of(arm["spec"])) is not None)]
    return [
        name for name in dict.fromkeys(named) if name != "demo" and not os.path.isabs(name) and not os.path.exists(name)
    ]


def demo_plan() -> Plan:
    """Return the built-in plan: a few prompts of five kinds on the demo model, sized to end in minutes on two cores."""
    corpus = Corpus((CORE, "adversarial"), limit=2)
    return draw_up(DEMO_ARMS, corpus, model="demo", dtype="float32", max_new_tokens=48, repeats=2)


def read_gates(path: str | Path) -> tuple[Gate, ...]:
    """Read gates from a JSON list of objects with the fields of ``Gate``. Raises ``InvalidPlan``."""
    path = Path(path)
    where = f"gates '{path.name}'"
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidPlan(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"{where} is not JSON: {error}") from error
    if not isinstance(data, list) or not data:
        raise InvalidPlan(f"{where} must hold a list of gates (got {type(data).__name__})")
    try:
        return tuple(structure(gate, Gate, f"{where}, gate {number}") for number, gate in enumerate(data, start=1))
    except InvalidStrategy as error:
        raise InvalidPlan(str(error)) from error


def _read_certificate(path: Path, name: str, arm: Mapping[str, Any]) -> dict[str, str]:
    """Return a certificate's verdict and digest. Raises ``InvalidPlan`` where it is none, or another drafter's."""
    where = f"certificate '{path.name}'"
    try:
        data = path.read_bytes()
        content = json.loads(data)
    except OSError as error:
        raise InvalidPlan(f"{where} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidPlan(f"{where} is not JSON: {error}") from error
    about = content.get("about") if isinstance(content, dict) else None
    drafters = about.get("drafters") if isinstance(about, dict) else None
    if not isinstance(drafters, dict) or content.get("schema") != "specframe.certificate":
        raise InvalidPlan(f"{where} is no certificate; 'specframe certify NAME -o FILE' writes one")
    if not is_judged(arm) or drafters.keys() != arm["plugins"].keys():
        raise InvalidPlan(f"{where} is about '{content.get('subject')}', not about the drafters of arm '{name}'")
    if drafters != arm["plugins"]:
        raise InvalidPlan(f"{where} is about {drafters}, and arm '{name}' runs {arm['plugins']}; certify them again")
    return {"verdict": str(content.get("verdict")), "sha256": hashlib.sha256(data).hexdigest()}
