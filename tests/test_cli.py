"""The command line as a whole, how its commands fail, and those that have no module of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import CommandLine, run_alone

from specframe import skeleton
from specframe._version import __version__
from specframe.errors import InvalidRequest, SpecframeError, UnknownName


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[SpecframeError], None]:
    """Let ``new-drafter`` fail with an error."""

    def fail_with(error: SpecframeError) -> None:
        def fail(*_: object) -> Path:
            raise error

        monkeypatch.setattr(skeleton, "write_skeleton", fail)

    return fail_with


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two installed distributions: 'dice', a plugin with a drafter and a grammar, and 'glass', which breaks."""
    (tmp_path / "dice_plugin.py").write_text(
        "import attrs, specframe\n"
        "@attrs.frozen\n"
        "class Options:\n"
        "    sides: int\n"
        "    max_tokens: int | None = None\n"
        "    names: tuple[str, ...] = ('a', 'b')\n"
        "    faces: list[int] = attrs.field(factory=lambda: [1, 6])\n"
        "@specframe.hookimpl\n"
        "def specframe_register_drafters(register):\n"
        "    register('dice', object, options=Options, needs=specframe.Needs(), api=1)\n"
        "@specframe.hookimpl\n"
        "def specframe_register_grammars(register):\n"
        "    register('abnf', object, api=1)\n"
    )
    (tmp_path / "glass_plugin.py").write_text("raise RuntimeError('it fell')\n")
    for name, version in (("dice", "1.2"), ("glass", "0.1")):
        info = tmp_path / f"{name}_dist-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-dist\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[specframe]\n{name} = {name}_plugin\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_version_is_told(run: CommandLine) -> None:
    """One line with the version that the package has."""
    assert run("--version") == (0, f"specframe {__version__}\n", "")


def test_an_error_is_one_readable_line(run: CommandLine, failing: Callable[[SpecframeError], None]) -> None:
    """Notes, such as broken plugins, follow on lines of their own; there is no traceback."""
    error = UnknownName("drafter", "lokup", ["lookup"])
    error.add_note("plugin 'glass' of glass-dist 0.1 is broken: RuntimeError: it fell")
    failing(error)
    assert run("new-drafter", "mine") == (
        2,
        "",
        "error: unknown drafter 'lokup'; did you mean 'lookup'? installed: lookup\n"
        "plugin 'glass' of glass-dist 0.1 is broken: RuntimeError: it fell\n",
    )
    assert json.loads(run("new-drafter", "mine", "--json").out) == {"error": str(error), "notes": error.__notes__}


@pytest.mark.parametrize("is_variable", [False, True])
def test_a_traceback_can_be_asked_for(
    run: CommandLine,
    failing: Callable[[SpecframeError], None],
    monkeypatch: pytest.MonkeyPatch,
    is_variable: bool,
) -> None:
    """With the option or the variable the error goes its way."""
    failing(InvalidRequest("n", "must be >= 1", 0))
    monkeypatch.setenv("SPECFRAME_TRACEBACK", "1" if is_variable else "0")
    with pytest.raises(InvalidRequest):
        run(*(() if is_variable else ("--traceback",)), "new-drafter", "mine")


def test_plugins_are_listed_as_json(run: CommandLine, strangers: Path) -> None:
    """Names, origin, options with their defaults, grammars, and the reason why one is broken."""
    found = {plugin["name"]: plugin for plugin in json.loads(run("plugins", "--json").out)["plugins"]}

    assert found["dice"] == {
        "name": "dice",
        "distribution": "dice-dist",
        "version": "1.2",
        "is_disabled": False,
        "error": None,
        "drafters": {
            "dice": {
                "options": {
                    "sides": {"is_required": True},
                    "max_tokens": {"is_required": False, "default": None},
                    "names": {"is_required": False, "default": ["a", "b"]},
                    "faces": {"is_required": False, "default": [1, 6]},
                }
            }
        },
        "grammars": ["abnf"],
    }
    assert found["glass"]["error"] == "RuntimeError: it fell"
    assert found["glass"]["drafters"] == {}


def test_plugins_are_listed_as_text(run: CommandLine, strangers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options stand as a strategy file spells them; a disabled plugin is there and says so."""
    monkeypatch.setenv("SPECFRAME_DISABLE_PLUGINS", "specframe")  # the distribution: all first-party plugins
    text = run("plugins").out

    assert text == (
        "dice  (dice-dist 1.2)\n"
        "  drafter dice\n"
        "    sides (required)\n"
        "    max_tokens (not set)\n"
        '    names = ["a", "b"]\n'
        "    faces = [1, 6]\n"
        "  grammar abnf\n"
        f"draft_model  (specframe {__version__})\n"
        "  disabled\n"
        "glass  (glass-dist 0.1)\n"
        "  broken: RuntimeError: it fell\n"
        f"grammar  (specframe {__version__})\n"
        "  disabled\n"
        f"prompt_lookup  (specframe {__version__})\n"
        "  disabled\n"
    )


def test_listing_plugins_loads_no_model_library() -> None:
    """With the first-party plugin listed, neither torch nor transformers nor numpy is imported."""
    _, out, modules = run_alone("plugins", "--json")

    assert "prompt_lookup" in [plugin["name"] for plugin in json.loads(out)["plugins"]]
    assert {"torch", "transformers", "numpy"}.isdisjoint(modules)


def test_a_closed_pipe_is_silent() -> None:
    """``specframe plugins | head -0`` prints no error."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "specframe.cli", "plugins"], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)

    assert done.stderr == ""


def test_a_drafters_skeleton_is_written_once(run: CommandLine, tmp_path: Path) -> None:
    """The second time it says that it is there, and writes nothing."""
    arguments = ("new-drafter", "best-guess", "--output", str(tmp_path), "--json")
    record = json.loads(run(*arguments).out)
    assert record["folder"] == str(tmp_path / "specframe-best-guess")
    assert "specframe_best_guess.py" in record["files"]
    outcome = run(*arguments)
    assert outcome.code == 2
    assert "nothing was written" in json.loads(outcome.out)["error"]
