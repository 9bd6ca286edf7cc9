"""From names to things: a strategy by name, and a strategy's drafters from plugins."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from specframe.errors import PluginError, UnknownName
from specframe.plugins import Plugins
from specframe.proposal import Drafter, TargetFacts
from specframe.strategy import DrafterUse, Strategy, shipped, structure


def resolve_strategy(strategy: str | Path | Strategy, plugins: Plugins) -> Strategy:
    """Return a strategy given as such, as a TOML path, or by name: a shipped one, else a registered drafter's defaults.

    Raises ``UnknownName`` with a suggestion, or ``PluginError`` where the name is a broken plugin's.
    """
    if isinstance(strategy, Strategy):
        return strategy
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


def make_drafters(
    strategy: Strategy, plugins: Plugins, facts: TargetFacts, given: Mapping[str, Drafter]
) -> dict[str, Drafter]:
    """Return a strategy's drafters by name, in order; ``given`` ones are used as they are, before plugins are asked.

    A strategy without drafters takes all given ones. A drafter used twice gets a number behind its name. Raises
    ``UnknownName``, ``InvalidStrategy`` for its options, or ``PluginError`` where a factory fails.
    """
    if not strategy.drafters:
        return dict(given)
    made: dict[str, Drafter] = {}
    for use in strategy.drafters:
        count = sum(name.partition("#")[0] == use.use for name in made)
        made[use.use if not count else f"{use.use}#{count + 1}"] = given.get(use.use) or _make(use, plugins, facts)
    return made


def _make(use: DrafterUse, plugins: Plugins, facts: TargetFacts) -> Drafter:
    entry = plugins.drafter(use.use)
    options = structure(use.options, entry.options, f"options of drafter '{use.use}'")
    try:
        return entry.factory(options, facts)
    except Exception as error:
        if isinstance(error, ValueError | LookupError | OSError):
            raise
        raise PluginError(f"drafter '{use.use}' could not be made: {type(error).__name__}: {error}") from error
