"""Finding, loading, blocking and blaming plugins.

Imports neither torch nor transformers. Every plugin is loaded into a manager of its own, so that one that is broken
neither stops nor changes another, and every registration has an owner.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

import attrs
import pluggy

from specframe import hookspecs
from specframe.errors import InvalidStrategy, PluginError, UnknownName, described
from specframe.grammar import Grammar
from specframe.proposal import Drafter, Needs, TargetFacts

GROUP = "specframe"
DISABLE_VARIABLE = "SPECFRAME_DISABLE_PLUGINS"

_logger = logging.getLogger("specframe")

E = TypeVar("E", "DrafterEntry", "GrammarEntry")


@attrs.frozen
class DrafterEntry:
    """A drafter as a plugin registered it; ``factory(options, facts)`` makes one."""

    name: str
    factory: Callable[[Any, TargetFacts], Drafter]
    options: type[Any]
    needs: Needs
    plugin: str = "a plugin"


@attrs.frozen
class GrammarEntry:
    """A grammar language as a plugin registered it; ``compile(source, facts)`` makes a grammar."""

    name: str
    compile: Callable[[str, TargetFacts], Grammar]
    plugin: str = "a plugin"


@attrs.define
class Plugin:
    """One entry point of the group: where it comes from, what it registered, or why it is broken or off."""

    name: str
    distribution: str
    version: str
    drafters: dict[str, DrafterEntry] = attrs.field(factory=dict)
    grammars: dict[str, GrammarEntry] = attrs.field(factory=dict)
    error: BaseException | None = None
    is_disabled: bool = False

    def __str__(self) -> str:
        return f"plugin '{self.name}' of {self.distribution} {self.version}"


class Plugins:
    """The plugins of one engine; made afresh for each, never a global."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        self.all = list(plugins)

    def drafter(self, name: str) -> DrafterEntry:
        """Return the drafter of that name. Raises ``PluginError`` with its cause, or ``UnknownName`` with a suggestion."""
        return self._find("drafter", name, lambda plugin: plugin.drafters)

    def owner(self, entry: DrafterEntry) -> Plugin:
        """Return the plugin that registered a drafter."""
        return next(plugin for plugin in self.all if plugin.drafters.get(entry.name) is entry)

    def grammar(self, name: str) -> GrammarEntry:
        """Return the grammar language of that name; raises like ``drafter``."""
        return self._find("grammar", name, lambda plugin: plugin.grammars)

    def _find(self, kind: str, name: str, entries: Callable[[Plugin], Mapping[str, E]]) -> E:
        owners = [plugin for plugin in self.all if name in entries(plugin)]
        if len(owners) > 1:
            raise PluginError(
                f"{kind} '{name}' is registered by two plugins: {' and '.join(map(str, owners))}; "
                f"disable one with {DISABLE_VARIABLE} or the strategy's 'disable'"
            )
        if owners:
            return entries(owners[0])[name]
        for plugin in self.all:
            if plugin.name == name and plugin.is_disabled:
                raise PluginError(
                    f"{kind} '{name}' is disabled ({plugin}); remove it from {DISABLE_VARIABLE} or 'disable'"
                )
            if plugin.name == name and plugin.error is not None:
                raise PluginError(f"{plugin} is broken: {described(plugin.error)}") from plugin.error
        unknown = UnknownName(kind, name, {known for plugin in self.all for known in entries(plugin)})
        for plugin in self.all:  # what the name may be one of
            if plugin.error is not None:
                unknown.add_note(f"{plugin} is broken: {described(plugin.error)}")
            elif plugin.is_disabled:
                unknown.add_note(f"{plugin} is disabled")
        raise unknown


def load(disable: Iterable[str] = ()) -> Plugins:
    """Load every installed plugin that is not disabled.

    ``disable`` and the environment variable ``SPECFRAME_DISABLE_PLUGINS`` (comma separated, or ``all``) name plugins by
    entry point or by distribution; a name that is neither is told in the log. A plugin that fails to load is kept with its
    cause.
    """
    blocked = {*disable, *filter(None, map(str.strip, os.environ.get(DISABLE_VARIABLE, "").split(",")))}
    points = sorted(entry_points(group=GROUP), key=lambda point: (point.name, _distribution(point)))
    known = {name for point in points for name in (point.name, _distribution(point))}
    for name in sorted(blocked - known - {"all"}):  # no error: what is not installed does not run
        _logger.warning(
            "nothing is disabled by '%s' (%s or 'disable'): %s",
            name,
            DISABLE_VARIABLE,
            UnknownName("plugin", name, known),
        )
    return Plugins(_load_one(point, blocked) for point in points)


def load_only(name: str, distribution: str) -> Plugins:
    """Load one plugin, by its entry point and its distribution, whatever is disabled; for a process that was told which."""
    points = [point for point in entry_points(group=GROUP, name=name) if _distribution(point) == distribution]
    return Plugins(_load_one(point, set()) for point in points)


def _load_one(point: EntryPoint, blocked: set[str]) -> Plugin:
    plugin = Plugin(point.name, _distribution(point), _told(point, "version") or "unknown")
    if blocked & {"all", plugin.name, plugin.distribution}:
        plugin.is_disabled = True
        return plugin
    try:
        _register(plugin, point.load())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a stranger's module raises is kept, and told when it is named
        plugin.error = error
        plugin.drafters.clear()
        plugin.grammars.clear()
    return plugin


def _register(plugin: Plugin, module: Any) -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(module, name=plugin.name)
    manager.check_pending()
    hooks = (manager.hook.specframe_register_drafters, manager.hook.specframe_register_grammars)
    implementations = [implementation for hook in hooks for implementation in hook.get_hookimpls()]
    if not implementations:
        raise PluginError(f"{plugin} implements none of the hooks; mark one with @specframe.hookimpl")
    if any(implementation.wrapper or implementation.hookwrapper for implementation in implementations):
        raise PluginError(f"{plugin} wraps a hook; registration hooks take plain implementations only")
    hooks[0](register=partial(register_drafter, plugin))
    hooks[1](register=partial(register_grammar, plugin))


def register_drafter(
    plugin: Plugin, name: str, factory: Callable[..., Drafter], *, options: type[Any], needs: Needs, api: int
) -> None:
    """Add a drafter to a plugin; see ``hookspecs.RegisterDrafter``."""
    _check_entry(plugin, "drafter", name, api, plugin.drafters)
    if not isinstance(options, type) or not attrs.has(options):
        raise InvalidStrategy(f"drafter '{name}': 'options' must be an attrs class (got {options!r})")
    if not isinstance(needs, Needs):
        raise InvalidStrategy(f"drafter '{name}': 'needs' must be a specframe.Needs (got {needs!r})")
    if needs.model is not None and needs.model not in attrs.fields_dict(options):
        raise PluginError(
            f"drafter '{name}': needs.model names an option, and '{needs.model}' is none of {options.__name__}"
        )
    try:
        attrs.resolve_types(options)
    except NameError as error:
        raise PluginError(f"the options of drafter '{name}' have an unknown type: {error}") from error
    plugin.drafters[name] = DrafterEntry(name, factory, options, needs, str(plugin))


def register_grammar(plugin: Plugin, name: str, compile: Callable[[str, TargetFacts], Grammar], *, api: int) -> None:
    """Add a grammar language to a plugin; see ``hookspecs.RegisterGrammar``."""
    _check_entry(plugin, "grammar", name, api, plugin.grammars)
    plugin.grammars[name] = GrammarEntry(name, compile, str(plugin))


def _check_entry(plugin: Plugin, kind: str, name: str, api: int, known: Mapping[str, Any]) -> None:
    if not isinstance(name, str) or not name:
        raise PluginError(f"a {kind} of {plugin} must be registered under a name (got {name!r})")
    if api != hookspecs.API:
        raise PluginError(f"{kind} '{name}' of {plugin} asks for api {api!r}; this specframe has api {hookspecs.API}")
    if name in known:
        raise PluginError(f"{plugin} registers {kind} '{name}' twice")


def _distribution(point: EntryPoint) -> str:
    return _told(point, "name") or "unknown distribution"


def _told(point: EntryPoint, attribute: str) -> str | None:
    """Return what a distribution says about itself; nothing where it was half removed, or is damaged."""
    try:
        return getattr(point.dist, attribute) if point.dist else None
    except Exception:
        return None
