"""The command line of specframe: every command under its name.

Thin: a command calls the public API and formats what it returns. What a command needs is imported inside it, so that
``--help`` and ``plugins`` load no model library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from specframe import receipt_commands
from specframe._version import __version__
from specframe.bench import command as bench_commands
from specframe.commands import AsJson, fail, is_json_asked, print_json
from specframe.errors import SpecframeError, described
from specframe.generate_command import generate
from specframe.manifest import commands as manifest_commands
from specframe.testing import command as testing_commands
from specframe.train import command as train_commands

if TYPE_CHECKING:
    from specframe.plugins import DrafterEntry, Plugin

ORDER = ("generate", "plugins", "compare", "new-drafter", "certify", "train-draft", "manifest", "receipt", "doctor")


class _Group(TyperGroup):
    """The commands in the order in which a newcomer meets them, with specframe's own errors as one readable line each."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(self.commands, key=ORDER.index)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except SpecframeError as error:
            if ctx.params["traceback"]:
                raise
            fail(error, as_json=is_json_asked(ctx))


app = typer.Typer(cls=_Group, no_args_is_help=True, pretty_exceptions_enable=False)
app.command("generate")(generate)
app.add_typer(manifest_commands.app, name="manifest")
app.add_typer(receipt_commands.app, name="receipt")
app.add_typer(bench_commands.app, name="compare")
app.command("train-draft")(train_commands.train_draft)
app.command("certify")(testing_commands.certify)


def main() -> None:
    """Run the command line; exits with 0, 1 (the answer is no), 2 (an error, or wrong usage) or 130 (interrupted)."""
    app(prog_name="specframe")


def _show_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"specframe {__version__}")
        raise typer.Exit


@app.callback(help="Exact speculative decoding: a drafter can make generation slower, never different.")
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", envvar="SPECFRAME_TRACEBACK", help="Show Python's traceback of an error.")
    ] = False,
) -> None:
    pass


@app.command()
def plugins(
    as_json: AsJson = False,
) -> None:
    """List the installed plugins: drafters with their options, grammars, and what is broken or disabled."""
    from specframe import plugins as plugin_loader

    found = plugin_loader.load().all
    if as_json:
        print_json({"plugins": [_plugin_record(plugin) for plugin in found]})
    elif found:
        typer.echo("\n".join(line for plugin in found for line in _plugin_lines(plugin)))
    else:
        typer.echo("no plugins are installed")


@app.command()
def doctor(
    paths: Annotated[bool, typer.Option("--paths", help="Name folders too, and show paths in errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Tell what a bug report needs: versions, devices, plugins, kernel probes and caches. Loads no model.

    Exit status: 0 if nothing is wrong, 1 if something is.
    """
    from specframe.doctor import as_text, examine

    report = examine(paths=paths)
    if as_json:
        print_json(report)
    else:
        typer.echo(as_text(report))
    if report["problems"]:
        raise typer.Exit(1)


@app.command("new-drafter")
def new_drafter(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Lower-case words joined by - or _, as best_guess.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="Where its folder goes.", show_default="here")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write the skeleton of a drafter: an installable distribution with a test, ready to be certified.

    It goes into a new folder specframe-NAME; nothing is overwritten.
    """
    from specframe.skeleton import write_skeleton

    folder = write_skeleton(name, output)
    if as_json:
        print_json({"folder": str(folder), "files": sorted(file.name for file in folder.iterdir())})
    else:
        typer.echo(f"wrote {folder}; its README.md says how to install, test and certify it")


def _plugin_record(plugin: Plugin) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "is_disabled": plugin.is_disabled,
        "error": described(plugin.error) if plugin.error is not None else None,
        "drafters": {name: {"options": _options(entry)} for name, entry in plugin.drafters.items()},
        "grammars": sorted(plugin.grammars),
    }


def _options(entry: DrafterEntry) -> dict[str, dict[str, Any]]:
    """Return an options class's names, each with its default or without one."""
    import attrs

    return {field.name: _default(field.default) for field in attrs.fields(entry.options)}


def _made(factory: Any) -> Any:
    try:
        return factory()
    except Exception as error:  # a stranger's code; the list goes on
        return f"broken ({type(error).__name__})"


def _default(default: Any) -> dict[str, Any]:
    import attrs

    if default is attrs.NOTHING:
        return {"is_required": True}
    factory = getattr(default, "factory", None)  # attrs keeps a factory in place of a default
    if factory is None:
        return {"is_required": False, "default": default}
    return {"is_required": False, "default": "computed" if default.takes_self else _made(factory)}


def _plugin_lines(plugin: Plugin) -> Sequence[str]:
    lines = [f"{plugin.name}  ({plugin.distribution} {plugin.version})"]
    if plugin.is_disabled:
        lines.append("  disabled")
    if plugin.error is not None:
        lines.append(f"  broken: {described(plugin.error)}")
    for name, entry in plugin.drafters.items():
        lines.append(f"  drafter {name}")
        lines += [f"    {option} {_spell(facts)}" for option, facts in _options(entry).items()]
    lines += [f"  grammar {name}" for name in plugin.grammars]
    return lines


def _spell(facts: Mapping[str, Any]) -> str:
    """Spell a default as a strategy file would; TOML has no null, so None says that the key is left out."""
    if facts["is_required"]:
        return "(required)"
    return "(not set)" if facts["default"] is None else f"= {json.dumps(facts['default'], default=str)}"


if __name__ == "__main__":
    main()
