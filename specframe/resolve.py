"""From names to things: a strategy by name, its pinned manifest, and its drafters from plugins, once they fit."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs

from specframe.drafting import Terms
from specframe.errors import (
    IncompatibleManifest,
    InvalidManifest,
    InvalidStrategy,
    PluginError,
    SpecframeError,
    UnknownName,
    described,
)
from specframe.manifest.collector import collect, strings_of
from specframe.manifest.file import read
from specframe.manifest.identity import Manifest
from specframe.manifest.report import Strings, check
from specframe.manifest.source import Source, open_source
from specframe.plugins import DrafterEntry, Plugins, load
from specframe.proposal import Drafter, Needs
from specframe.remote import check_worker, start_worker
from specframe.strategy import DrafterUse, Strategy, shipped, structure
from specframe.target import Target

_GIVEN = Needs(draws=True)  # what a drafter is taken for that was given as an object, and declares nothing


def resolve_with_plugins(strategy: str | Path | Strategy, plugins: Plugins | None = None) -> tuple[Strategy, Plugins]:
    """Return a strategy, and the plugins without those that it disables; ``plugins`` that are given are used as they are.

    A strategy is given as such, as a TOML path, or by name: a shipped one, else a registered drafter's defaults. It is read
    first, so that nothing is imported that it disables. Raises ``InvalidStrategy``, ``UnknownName`` with a suggestion, or
    ``PluginError`` where the name is a broken plugin's.
    """
    known = _read_strategy(strategy)
    loaded = plugins if plugins is not None else load(known.disable if known is not None else ())
    return known if known is not None else _with_defaults(str(strategy), loaded), loaded


def resolve_checked(
    strategy: str | Path | Strategy, *, kernel: str | None = None, settings: Sequence[str] = ()
) -> tuple[Strategy, Plugins]:
    """Return a strategy and the plugins, the drafters' options checked; ``kernel`` and ``settings`` override the strategy's.

    ``settings``: see ``with_settings``. Loads no model library unless a plugin does.
    """
    resolved, plugins = resolve_with_plugins(strategy)
    resolved = with_settings(resolved, settings)
    if kernel is not None:
        resolved = attrs.evolve(resolved, kernel=kernel)
    for use in resolved.drafters:
        check_use(use, plugins)
    return resolved, plugins


def with_settings(strategy: Strategy, settings: Sequence[str]) -> Strategy:
    """Return a strategy with options of its drafters set, each as ``DRAFTER.NAME=VALUE``.

    The value is as in a strategy file; what is no TOML value there is a text. Raises ``InvalidStrategy`` for a setting of
    another form, or of a drafter that the strategy does not use.
    """
    uses = strategy.named_drafters
    for setting in settings:
        place, _, text = setting.partition("=")
        who, _, name = place.rpartition(".")
        if not (who and name and text):
            raise InvalidStrategy(
                f"an option must be DRAFTER.NAME=VALUE, as prompt_lookup.max_ngram=4 (got '{setting}')"
            )
        if who not in uses:
            has = f"its drafters: {', '.join(uses)}" if uses else "it has no drafters"
            raise InvalidStrategy(f"option '{setting}' is of no drafter of strategy '{strategy.name}'; {has}")
        uses[who] = attrs.evolve(uses[who], options={**uses[who].options, name: _value(text)})
    return attrs.evolve(strategy, drafters=tuple(uses.values()))


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _with_defaults(name: str, plugins: Plugins) -> Strategy:
    """Return the strategy of a registered drafter alone."""
    try:
        plugins.drafter(name)
    except UnknownName as error:
        known = UnknownName("strategy", name, {"none", *shipped(), *error.known})
        known.__notes__ = list(getattr(error, "__notes__", ()))
        raise known from None
    return Strategy(name=name, drafters=(DrafterUse(name),))


def _read_strategy(strategy: str | Path | Strategy) -> Strategy | None:
    """Return a strategy that needs no plugin to be known, or None for what may be a drafter's name."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str | Path):
        raise InvalidStrategy(f"'strategy' must be a name, a .toml path or a Strategy (got {strategy!r})")
    if isinstance(strategy, Path) or strategy.endswith(".toml"):
        return Strategy.from_toml(strategy)
    if strategy == "none":
        return Strategy()
    path = shipped().get(strategy)
    return Strategy.from_toml(path) if path is not None else None


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
    for who, use in strategy.named_drafters.items():
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
        name: _given(use, given) if use.use in given else _make(name, use, plugins, target)
        for name, use in strategy.named_drafters.items()
    }


def structured_options(use: DrafterUse, plugins: Plugins) -> Any:
    """Return a drafter's options as its own class. Raises ``InvalidStrategy`` naming the key."""
    return structure(use.options, plugins.drafter(use.use).options, f"options of drafter '{use.use}'")


def terms_of(strategy: Strategy, plugins: Plugins, given: Mapping[str, Drafter]) -> dict[str, Terms]:
    """Return what a strategy's drafters are lent rounds on, by name; a given one has declared nothing and may draw."""
    declared = {
        name: _GIVEN if use.use in given else plugins.drafter(use.use).needs
        for name, use in strategy.named_drafters.items()
    }
    return {
        name: Terms(
            budget_s=use.budget_ms / 1e3 if use.budget_ms is not None else None,
            may_draw=declared[name].draws,
            is_cheap=declared[name].cheap,
        )
        for name, use in strategy.named_drafters.items()
    }


def check_use(use: DrafterUse, plugins: Plugins) -> None:
    """Raise ``InvalidStrategy`` for options that are not the drafter's, or for a drafter that cannot run in a worker."""
    structured_options(use, plugins)
    if use.worker:
        check_worker(use, plugins.drafter(use.use).needs)


def _given(use: DrafterUse, given: Mapping[str, Drafter]) -> Drafter:
    if use.worker:
        raise InvalidStrategy(
            f"drafter '{use.use}' was given as an object of this process and cannot run in a worker; register it in a "
            "plugin, or leave 'worker' out"
        )
    return given[use.use]


def _make(name: str, use: DrafterUse, plugins: Plugins, target: Target) -> Drafter:
    entry, options = plugins.drafter(use.use), structured_options(use, plugins)
    if use.worker:
        check_worker(use, entry.needs)
        return start_worker(name, use, plugins.owner(entry), target.facts)
    facts, lend = target.facts, getattr(target, "views", None)
    if entry.needs.views and lend is not None:
        facts = attrs.evolve(facts, views=lend(entry.needs.views))
    try:
        return entry.factory(options, facts)
    except SpecframeError:
        raise
    except Exception as error:
        cause = described(error)
        raise PluginError(f"drafter '{use.use}' of {entry.plugin} could not be made: {cause}") from error
