"""From names to things: a strategy by name, its pinned manifest, and its drafters from plugins, once they fit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from specframe.errors import (
    IncompatibleManifest,
    InvalidManifest,
    InvalidStrategy,
    PluginError,
    SpecframeError,
    UnknownName,
)
from specframe.manifest.collector import collect, strings_of
from specframe.manifest.file import read
from specframe.manifest.identity import Manifest
from specframe.manifest.report import Strings, check
from specframe.manifest.source import Source, open_source
from specframe.plugins import DrafterEntry, Plugins, load
from specframe.proposal import Drafter
from specframe.strategy import DrafterUse, Strategy, shipped, structure
from specframe.target import Target


def resolve_with_plugins(strategy: str | Path | Strategy, plugins: Plugins | None = None) -> tuple[Strategy, Plugins]:
    """Return a strategy, and the plugins without those that it disables; ``plugins`` that are given are used as they are."""
    loaded = plugins if plugins is not None else load()
    resolved = resolve_strategy(strategy, loaded)
    return resolved, load(resolved.disable) if resolved.disable and plugins is None else loaded


def resolve_strategy(strategy: str | Path | Strategy, plugins: Plugins) -> Strategy:
    """Return a strategy given as such, as a TOML path, or by name: a shipped one, else a registered drafter's defaults.

    Raises ``UnknownName`` with a suggestion, or ``PluginError`` where the name is a broken plugin's.
    """
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str | Path):
        raise InvalidStrategy(f"'strategy' must be a name, a .toml path or a Strategy (got {strategy!r})")
    if isinstance(strategy, Path) or strategy.endswith(".toml"):
        return Strategy.from_toml(strategy)
    if strategy == "none":
        return Strategy()
    files = shipped()
    if strategy in files:
        return Strategy.from_toml(files[strategy])
    try:
        plugins.drafter(strategy)
    except UnknownName as error:
        known = UnknownName("strategy", strategy, {"none", *files, *error.known})
        known.__notes__ = list(getattr(error, "__notes__", ()))
        raise known from None
    return Strategy(name=strategy, drafters=(DrafterUse(strategy),))


def read_pin(strategy: Strategy) -> Manifest | None:
    """Return the manifest that a strategy pins, or None. Raises ``InvalidManifest``."""
    pinned = strategy.identity.manifest
    if pinned is not None and not os.path.isfile(pinned):
        raise InvalidManifest(
            f"strategy '{strategy.name}' pins the manifest '{pinned}', which is not there; in a strategy file the path is "
            "relative to that file"
        )
    return read(pinned) if pinned is not None else None


def has_needs(strategy: Strategy, plugins: Plugins) -> bool:
    """Tell whether a strategy's drafters need anything of the target."""
    needs = [plugins.drafter(use.use).needs for use in strategy.drafters]
    return any(need.tokenizer != "none" or need.features is not None for need in needs)


def check_needs(
    strategy: Strategy,
    plugins: Plugins,
    target: Callable[[], Manifest | None],
    *,
    given: Mapping[str, Drafter] = {},
    target_strings: Strings = lambda: None,
) -> dict[str, Source]:
    """Compare the target with what a strategy's drafters need of it; return where the drafters' own models are.

    ``target`` is asked only if a drafter needs something; drafters that are ``given`` are not checked. No weights are read.
    Raises ``IncompatibleManifest`` with the first reason and the way out.
    """
    found: dict[str, Source] = {}
    for who, use in named_uses(strategy).items():
        if use.use in given:
            continue
        entry = plugins.drafter(use.use)
        needs = entry.needs
        kinds: list[str] = [needs.tokenizer] if needs.tokenizer != "none" else []
        kinds += ["features"] if needs.features is not None else []
        if not kinds:
            continue
        identity = target()
        if identity is None:
            raise IncompatibleManifest(
                f"drafter '{who}' needs a target whose tokenizer and configuration can be compared; this one states "
                "no identity; set one in its facts"
            )
        name = _model_name(use, entry, plugins)
        if name is None and needs.model is not None and needs.tokenizer != "none":
            kinds.remove(needs.tokenizer)  # no model of its own to compare
        source = open_source(name) if name is not None else None
        draft_strings: Strings = partial(strings_of, source) if source is not None else lambda: None
        draft = collect(source) if source is not None else None
        if source is not None:
            found[who] = source
        elif needs.tokenizer in kinds:  # where its own model comes from is the drafter's business
            kinds.remove(needs.tokenizer)
            if identity.tokenizer is None:
                raise IncompatibleManifest(
                    f"drafter '{who}' needs the target's tokenizer, and the target has none; save it beside the model"
                )
        for kind in kinds:
            report = check(
                identity,
                draft,
                _kind(kind, draft),
                declared=_declared(entry),
                target_strings=target_strings,
                draft_strings=draft_strings,
            )
            report.require(f"drafter '{who}'")
    return found


def _kind(declared: str, draft: Manifest | None) -> str:
    """Return the kind of drafter to check for: one that can read a map of reduced columns needs none for a whole head."""
    is_whole = draft is not None and draft.model.output_map is None
    return "same" if declared == "reduced" and is_whole else declared


def _model_name(use: DrafterUse, entry: DrafterEntry, plugins: Plugins) -> str | None:
    """Return the name of a drafter's own model, from its options."""
    if entry.needs.model is None:
        return None
    options = structured_options(use, plugins)
    name = getattr(options, entry.needs.model, None)
    if name is not None and not isinstance(name, str | Path):
        raise InvalidStrategy(f"options of drafter '{use.use}': '{entry.needs.model}' must name a model (got {name!r})")
    return str(name) if name is not None else None


def _declared(entry: DrafterEntry) -> dict[str, Any]:
    features = entry.needs.features
    if features is None:
        return {}
    fields = {
        "features.hidden_size": features.hidden_size,
        "features.last_layer": max(features.layers, default=None),
        "features.weights": features.weights,
    }
    return {path: value for path, value in fields.items() if value is not None}


def make_drafters(
    strategy: Strategy, plugins: Plugins, target: Target, given: Mapping[str, Drafter]
) -> dict[str, Drafter]:
    """Return a strategy's drafters by name, in order; ``given`` ones are used as they are, before plugins are asked.

    A strategy without drafters takes all given ones. A drafter used twice gets a number behind its name. Raises
    ``UnknownName``, ``InvalidStrategy`` for its options, or ``PluginError`` where a factory fails.
    """
    unused = sorted(given.keys() - {use.use for use in strategy.drafters})
    if not strategy.drafters:
        return dict(given)
    if unused:
        raise InvalidStrategy(
            f"strategy '{strategy.name}' does not use the given drafters {', '.join(unused)}; name them in it"
        )
    return {
        name: given[use.use] if use.use in given else _make(use, plugins, target)
        for name, use in named_uses(strategy).items()
    }


def named_uses(strategy: Strategy) -> dict[str, DrafterUse]:
    """Return a strategy's drafters by name, in order; one that is used twice gets a number behind its name."""
    named: dict[str, DrafterUse] = {}
    for use in strategy.drafters:
        names = itertools.chain([use.use], (f"{use.use}#{count}" for count in itertools.count(2)))
        named[next(name for name in names if name not in named)] = use
    return named


def structured_options(use: DrafterUse, plugins: Plugins) -> Any:
    """Return a drafter's options as its own class. Raises ``InvalidStrategy`` naming the key."""
    return structure(use.options, plugins.drafter(use.use).options, f"options of drafter '{use.use}'")


def _make(use: DrafterUse, plugins: Plugins, target: Target) -> Drafter:
    entry, options = plugins.drafter(use.use), structured_options(use, plugins)
    facts, lend = target.facts, getattr(target, "views", None)
    if entry.needs.views and lend is not None:
        facts = attrs.evolve(facts, views=lend(entry.needs.views))
    try:
        return entry.factory(options, facts)
    except SpecframeError:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise PluginError(f"drafter '{use.use}' of {entry.plugin} could not be made: {cause}") from error
