"""Loading plugins: one that is broken neither stops nor hides another, and is blamed by name."""

import types

import attrs
import pluggy
import pytest

import specframe
from specframe import plugins
from specframe.errors import InvalidStrategy, PluginError, UnknownName


@attrs.frozen
class Options:
    size: int = 1


class Distribution:
    def __init__(self, name, version):
        self.name, self.version = name, version


class Point:
    """An entry point of a distribution that is not installed."""

    def __init__(self, name, module, distribution="acme-plugins", version="1.2"):
        self.name, self._module = name, module
        self.dist = Distribution(distribution, version) if distribution else None

    def load(self):
        if isinstance(self._module, BaseException):
            raise self._module
        return self._module


def module(**functions):
    made = types.ModuleType("fake")
    for name, function in functions.items():
        setattr(made, name, function)
    return made


def drafter_plugin(*names, options=Options, needs=None, api=1):
    @specframe.hookimpl
    def specframe_register_drafters(register):
        for name in names:
            register(name, lambda options, facts: None, options=options, needs=needs or specframe.Needs(), api=api)

    return module(specframe_register_drafters=specframe_register_drafters)


def grammar_plugin(name, api=1):
    @specframe.hookimpl
    def specframe_register_grammars(register):
        register(name, lambda source, facts: source, api=api)

    return module(specframe_register_grammars=specframe_register_grammars)


@pytest.fixture
def install(monkeypatch):
    monkeypatch.delenv(plugins.DISABLE_VARIABLE, raising=False)

    def install(*points, disable=()):
        monkeypatch.setattr(plugins, "entry_points", lambda group: list(points) if group == "specframe" else [])
        return plugins.load(disable)

    return install


def test_what_is_registered_is_found(install):
    """Prevents a registration from being lost, whichever hook it came through."""
    loaded = install(Point("one", drafter_plugin("a", "b")), Point("two", grammar_plugin("g")))
    assert loaded.drafter("b").name == "b"
    assert loaded.drafter("a").options is Options
    assert loaded.grammar("g").compile("x", None) == "x"
    assert [plugin.error for plugin in loaded.all] == [None, None]


def test_each_load_is_fresh(install):
    """Prevents a global registry, by which one engine's plugins reach another's."""
    first = install(Point("one", drafter_plugin("a")))
    second = install(Point("two", drafter_plugin("b")))
    with pytest.raises(UnknownName):
        second.drafter("a")
    assert first.drafter("a")


BROKEN = ImportError("No module named 'faiss'")


def test_a_broken_plugin_stops_no_other(install):
    """Prevents one bad installation from taking every engine down; its cause is kept and told when it is named."""
    loaded = install(Point("broken", BROKEN, "broken-dist", "0.3"), Point("fine", drafter_plugin("fine")))
    assert loaded.drafter("fine")
    with pytest.raises(PluginError) as caught:
        loaded.drafter("broken")
    assert str(caught.value) == "plugin 'broken' of broken-dist 0.3 is broken: ImportError: No module named 'faiss'"
    assert caught.value.__cause__ is BROKEN


def test_an_unknown_name_lists_broken_plugins(install):
    """Prevents "unknown drafter" where the truth is that its plugin did not load."""
    loaded = install(Point("broken", BROKEN))
    with pytest.raises(UnknownName) as caught:
        loaded.drafter("something")
    assert caught.value.__notes__ == [
        "plugin 'broken' of acme-plugins 1.2 is broken: ImportError: No module named 'faiss'"
    ]


def test_unknown_names_suggest_and_list(install):
    """Prevents a typing error from a message without a way out."""
    loaded = install(
        Point("one", drafter_plugin("prompt_lookup", "draft_model")), Point("two", grammar_plugin("regex"))
    )
    with pytest.raises(UnknownName) as caught:
        loaded.drafter("promt_lookup")
    assert str(caught.value) == (
        "unknown drafter 'promt_lookup'; did you mean 'prompt_lookup'? installed: draft_model, prompt_lookup"
    )
    with pytest.raises(UnknownName, match="unknown grammar 'zzz'; installed: regex"):
        loaded.grammar("zzz")
    with pytest.raises(UnknownName, match="installed: none"):
        install().drafter("x")
    assert issubclass(UnknownName, LookupError)


def error_of(install, plugin_module):
    """Load one plugin and return what was kept of its failure."""
    loaded = install(Point("mine", plugin_module))
    found = loaded.all[0]
    assert found.drafters == {} == found.grammars
    return found.error


def test_a_misspelt_hook_is_told(install):
    """Prevents a plugin with a misspelt hook from doing nothing at all."""

    @specframe.hookimpl
    def specframe_register_drafter(register):
        raise AssertionError("never called")

    error = error_of(install, module(specframe_register_drafter=specframe_register_drafter))
    assert isinstance(error, pluggy.PluginValidationError)
    assert "specframe_register_drafter" in str(error)


def test_a_misspelt_argument_is_told(install):
    """Prevents a hook with a wrong signature from an obscure failure."""

    @specframe.hookimpl
    def specframe_register_drafters(registry):
        raise AssertionError("never called")

    error = error_of(install, module(specframe_register_drafters=specframe_register_drafters))
    assert isinstance(error, pluggy.PluginValidationError)
    assert "registry" in str(error)


def test_wrappers_are_refused(install):
    """Prevents a plugin from wrapping registration, and so from changing what another plugin registered."""

    @pluggy.HookimplMarker("specframe")(wrapper=True)
    def specframe_register_drafters(register):
        return (yield)

    error = error_of(install, module(specframe_register_drafters=specframe_register_drafters))
    assert isinstance(error, PluginError)
    assert "wraps a hook" in str(error)


@pytest.mark.parametrize(
    "plugin", [drafter_plugin("x", api=2), grammar_plugin("x", api=0), drafter_plugin("x", api="1")]
)
def test_an_unknown_api_is_refused(install, plugin):
    """Prevents a plugin for another contract from being called by this one."""
    error = error_of(install, plugin)
    assert isinstance(error, PluginError)
    assert "asks for api" in str(error)
    assert "this specframe has api 1" in str(error)


def test_no_hooks_is_an_error(install):
    """Prevents a forgotten @hookimpl from looking like a plugin without drafters."""
    error = error_of(install, module(specframe_register_drafters=lambda register: None))
    assert isinstance(error, PluginError)
    assert "mark one with @specframe.hookimpl" in str(error)


class Plain:
    pass


@pytest.mark.parametrize("options", [dict, Plain, {"size": 1}, Options()])
def test_options_must_be_an_attrs_class(install, options):
    """Prevents options that cannot be checked for unknown keys."""
    error = error_of(install, drafter_plugin("x", options=options))
    assert isinstance(error, InvalidStrategy)
    assert "'options' must be an attrs class" in str(error)


def test_needs_must_be_needs(install):
    """Prevents a need that nothing checks."""
    error = error_of(install, drafter_plugin("x", needs={"tokenizer": "same"}))
    assert isinstance(error, InvalidStrategy)
    assert "'needs' must be a specframe.Needs" in str(error)


def test_a_failing_registration_leaves_nothing_behind(install):
    """Prevents half of a broken plugin from being used."""

    @specframe.hookimpl
    def specframe_register_drafters(register):
        register("first", lambda options, facts: None, options=Options, needs=specframe.Needs(), api=1)
        raise ZeroDivisionError("half way")

    loaded = install(Point("mine", module(specframe_register_drafters=specframe_register_drafters)))
    assert isinstance(loaded.all[0].error, ZeroDivisionError)
    with pytest.raises(UnknownName):
        loaded.drafter("first")


def test_one_plugin_registering_twice(install):
    """Prevents the second registration from silently replacing the first."""
    error = error_of(install, drafter_plugin("x", "x"))
    assert isinstance(error, PluginError)
    assert "registers drafter 'x' twice" in str(error)


def test_two_plugins_of_one_name(install):
    """Prevents the order of installation from deciding which drafter a strategy means."""
    points = Point("one", drafter_plugin("x"), "dist-a", "1"), Point("two", drafter_plugin("x", "y"), "dist-b", "2")
    loaded = install(*points)
    with pytest.raises(PluginError) as caught:
        loaded.drafter("x")
    for part in ("drafter 'x'", "plugin 'one' of dist-a 1", "plugin 'two' of dist-b 2", plugins.DISABLE_VARIABLE):
        assert part in str(caught.value)
    assert loaded.drafter("y")
    assert install(*points, disable=["dist-a"]).drafter("x")


@pytest.mark.parametrize("name", ["mine", "acme-plugins"])
@pytest.mark.parametrize("how", ["argument", "environment"])
def test_disabled_plugins_are_not_loaded(install, monkeypatch, name, how):
    """Prevents a blocked plugin's code from running, or its drafters from being found."""
    point = Point("mine", AssertionError("loaded although disabled"))
    if how == "environment":
        monkeypatch.setenv(plugins.DISABLE_VARIABLE, f"other, {name} ,")
        loaded = install(point, Point("rest", drafter_plugin("x"), "other-dist"))
    else:
        loaded = install(point, Point("rest", drafter_plugin("x"), "other-dist"), disable=[name])
    assert loaded.all[0].is_disabled
    assert loaded.all[0].error is None
    assert loaded.drafter("x")
    with pytest.raises(PluginError, match="'mine' is disabled"):
        loaded.drafter("mine")


def test_all_plugins_can_be_disabled(install, monkeypatch):
    """Prevents a way out from missing when any plugin breaks an import."""
    monkeypatch.setenv(plugins.DISABLE_VARIABLE, "all")
    loaded = install(Point("one", drafter_plugin("x")), Point("two", BROKEN))
    assert all(plugin.is_disabled for plugin in loaded.all)


def test_an_entry_point_without_a_distribution(install):
    """Prevents a hand-made entry point from an attribute error in the message that should help."""
    loaded = install(Point("loose", BROKEN, distribution=None))
    with pytest.raises(PluginError, match="plugin 'loose' of unknown distribution unknown"):
        loaded.drafter("loose")


def test_system_exits_are_not_kept(install):
    """Prevents Ctrl-C during a slow import from being stored as a broken plugin."""
    with pytest.raises(KeyboardInterrupt):
        install(Point("slow", KeyboardInterrupt()))


def test_a_panic_of_an_extension_module_is_kept(install):
    """Some raise what is no ``Exception`` as they are imported; it stops nothing else."""
    loaded = install(Point("mine", BaseException("panicked")), Point("rest", drafter_plugin("x"), "other-dist"))
    assert loaded.drafter("x")
    with pytest.raises(PluginError, match=r"'mine' of acme-plugins 1\.2 is broken: BaseException: panicked"):
        loaded.drafter("mine")


def test_a_distribution_that_was_half_removed_stops_no_other(tmp_path, monkeypatch, caplog):
    """Its metadata are gone and its entry points are not; a name that disables nothing is looked for among them."""
    for name in ("one", "two"):
        info = tmp_path / f"{name}-1.0.dist-info"
        info.mkdir()
        (info / "entry_points.txt").write_text("[specframe]\nhalf = half_removed\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins.DISABLE_VARIABLE, "halve")
    loaded = plugins.load()
    assert "did you mean 'half'?" in caplog.text
    assert {plugin.name for plugin in loaded.all if plugin.error is None} >= {"prompt_lookup"}
    with pytest.raises(PluginError, match="plugin 'half' of unknown distribution unknown is broken: ModuleNotFound"):
        loaded.drafter("half")
