"""Arms by name: what a word such as ``prompt_lookup@adaptive`` or ``transformers-lookup:10`` stands for.

``transformers`` (its own ``generate``), ``transformers-lookup:K`` (its prompt lookup of K tokens),
``transformers-assisted:MODEL`` (its assisted generation), or a strategy: a shipped one or a drafter by name, a TOML file,
or ``none``, and behind it, if its lengths are to be others, ``@fixed:K``, ``@adaptive`` or ``@adaptive:K``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from specframe.bench.plan import strategy_arm
from specframe.errors import InvalidRequest
from specframe.lengths import make_policy
from specframe.manifest.collector import collect, collect_all, strings_of
from specframe.manifest.source import Source, open_source
from specframe.plugins import Plugins
from specframe.resolve import check_needs, read_pin, resolve_with_plugins, structured_options
from specframe.strategy import Length, Strategy

if TYPE_CHECKING:
    from specframe.bench.arms import WatchedArm
    from specframe.transformers_target import TransformersTarget

LIBRARY = "transformers"
_LOOKUP, _ASSISTED = f"{LIBRARY}-lookup:", f"{LIBRARY}-assisted:"
_LENGTHS = re.compile(r"(?P<strategy>.+)@(?P<policy>fixed|adaptive)(:(?P<tokens>[1-9][0-9]*))?")
_LIBRARY_PLAIN = {
    "num_beams": 1,
    "repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
}  # a model's own settings may be others
_LIBRARY_OFF = {"top_k": 0, "top_p": 1.0, "typical_p": 1.0}  # what transformers puts on by itself when it samples
_LIBRARY_SAMPLING = frozenset(
    ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram_size")
)


@attrs.frozen
class LibraryArm:
    """A reference arm: transformers' ``generate``, with prompt lookup or an assistant if there is one."""

    num_lookup: int | None = None
    assistant: str | None = None


def describe(
    spec: str, target: Source, *, kernel: str | None = None, sampling: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return all that decides what an arm does, as plain data: its settings, its code, and its models' digests.

    Loads no weights. Raises ``UnknownName``, ``InvalidStrategy``, ``PluginError``, ``InvalidRequest`` or
    ``IncompatibleManifest``.
    """
    arm, plugins = parse(spec, kernel)
    if isinstance(arm, LibraryArm):
        library_sampling(sampling)
        models = {"assistant": collect_all(open_source(arm.assistant)).digest} if arm.assistant else {}
        return {"spec": spec, "library": attrs.asdict(arm), "models": models}
    for use in arm.drafters:
        structured_options(use, plugins)
    pin = read_pin(arm)
    sources = check_needs(arm, plugins, lambda: collect(target), target_strings=lambda: strings_of(target))
    return {
        "spec": spec,
        **strategy_arm(arm),
        "length_policy": make_policy(arm.length.policy, is_flat=False).name,
        "plugins": {use.use: plugins.drafter(use.use).plugin for use in arm.drafters},
        "models": {who: collect_all(source).digest for who, source in sources.items()},
        "pin": pin.digest if pin is not None else None,
    }


def build(
    spec: str,
    target: TransformersTarget,
    *,
    kernel: str | None = None,
    sampling: Mapping[str, Any] | None = None,
    keep_entropies: bool = False,
) -> WatchedArm:
    """Return the arm, with what it loads. Raises as ``describe``, and what loading raises."""
    from specframe.bench.arms import AssistedArm, EngineArm, TransformersArm
    from specframe.loading import load_draft

    arm, _ = parse(spec, kernel)
    if isinstance(arm, Strategy):
        return EngineArm(target, arm, keep_entropies=keep_entropies, **(sampling or {}))
    arguments = {**_stops(target), **library_sampling(sampling)}
    if arm.assistant is not None:
        assistant = load_draft(arm.assistant, dtype=target.facts.dtype, device=target.facts.device)
        return AssistedArm(target.model, assistant.runner.model, **arguments)
    if arm.num_lookup is not None:
        arguments["prompt_lookup_num_tokens"] = arm.num_lookup
    return TransformersArm(target.model, **arguments)


def library_sampling(sampling: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a sampling policy as arguments of transformers' ``generate``, which a model's own settings cannot change.

    Raises ``InvalidRequest`` for what it lacks.
    """
    if sampling is None:
        return dict(_LIBRARY_PLAIN)
    given = {name: value for name, value in sampling.items() if value is not None}
    for name in sorted(given.keys() - _LIBRARY_SAMPLING):
        raise InvalidRequest(name, "is unknown to transformers' generate", given[name], "leave its arms out")
    return {"do_sample": True, **_LIBRARY_PLAIN, **_LIBRARY_OFF, **given}


def parse(spec: str, kernel: str | None = None) -> tuple[Strategy | LibraryArm, Plugins]:
    """Return what a spec names, and the plugins that it may use; ``kernel`` overrides a strategy's."""
    if spec == LIBRARY or spec.startswith(f"{LIBRARY}-"):
        return _parse_library(spec), Plugins(())
    lengths = _LENGTHS.fullmatch(spec)
    strategy, plugins = resolve_with_plugins(lengths["strategy"] if lengths else spec)
    if lengths:
        max_tokens = int(lengths["tokens"]) if lengths["tokens"] else strategy.length.max_tokens
        strategy = attrs.evolve(strategy, length=Length(lengths["policy"], max_tokens))
    if kernel is not None:
        strategy = attrs.evolve(strategy, kernel=kernel)
    return strategy, plugins


def file_of(spec: str) -> str | None:
    """Return the strategy file or the model that a spec names, None where it names what is installed."""
    if spec.startswith(_ASSISTED):
        return spec.removeprefix(_ASSISTED)
    lengths = _LENGTHS.fullmatch(spec)
    name = lengths["strategy"] if lengths else spec
    return name if name.endswith(".toml") else None


def _parse_library(spec: str) -> LibraryArm:
    if spec == LIBRARY:
        return LibraryArm()
    count = spec.removeprefix(_LOOKUP)
    if spec.startswith(_LOOKUP) and count.isdecimal() and int(count) > 0:
        return LibraryArm(num_lookup=int(count))
    model = spec.removeprefix(_ASSISTED)
    if spec.startswith(_ASSISTED) and model:
        return LibraryArm(assistant=model)
    raise InvalidRequest("arm", f"must be {LIBRARY}, {_LOOKUP}K, {_ASSISTED}MODEL or a strategy", spec)


def _stops(target: TransformersTarget) -> dict[str, Any]:
    """Return the target's stop ids as arguments of ``generate``, so that every arm ends at the same ones."""
    stop_ids = sorted(target.facts.stop_ids)
    return {"eos_token_id": stop_ids, "pad_token_id": stop_ids[0]} if stop_ids else {}
