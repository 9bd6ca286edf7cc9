"""The help of every command reads well in 80 columns, and the shell completes what it names."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer

from specframe.cli import app


def every_command():
    """Return the words of every command and group, with the command."""
    root = typer.main.get_command(app)
    found = [((), root)]
    for words, command in found:
        found += [((*words, name), inner) for name, inner in getattr(command, "commands", {}).items()]
    return found


COMMANDS = every_command()


def broken_words(command, printed):
    """Return the words of a command's help that do not stand whole in what was printed."""
    told = [command.help or ""]
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        told += [parameter.help or "", *(parameter.opts if parameter.param_type_name == "option" else ())]
    for inner in getattr(command, "commands", {}).values():
        told += [inner.name, inner.get_short_help_str(limit=10_000)]
    return {word for text in told for word in text.split()} - {*printed.replace("│", " ").split()}


@pytest.fixture
def help_of(monkeypatch, capsys):
    """Return what ``specframe WORDS --help`` prints on a terminal of 80 columns."""

    def run(words):
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as exit_:
            app([*words, "--help"], prog_name="specframe")
        assert exit_.value.code == 0
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(("words", "command"), COMMANDS, ids=[" ".join(words) or "specframe" for words, _ in COMMANDS])
class TestHelp:
    def test_it_fits(self, words, command, help_of):
        """Nothing runs over, and nothing is cut off."""
        printed = help_of(words)
        assert max(map(len, printed.splitlines())) <= 80
        assert "…" not in printed

    def test_no_word_is_broken(self, words, command, help_of):
        """Every word of every help text, and every option's name, stands whole on one line."""
        assert not broken_words(command, help_of(words))

    def test_every_option_has_help(self, words, command, help_of):
        """A name alone tells nothing; a first line is a sentence."""
        assert command.help
        assert command.help.partition("\n")[0].rstrip().endswith(".")
        for parameter in command.params:
            assert getattr(parameter, "help", None), (words, parameter.name)


def test_a_broken_word_is_seen(help_of):
    """A negative control."""
    printed = help_of(("plugins",))
    assert broken_words(dict(COMMANDS)["plugins",], printed) == set()
    assert broken_words(dict(COMMANDS)["plugins",], printed.replace("installed", "instal led")) == {"installed"}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("specframe gen", "generate"), ("specframe manifest d", "diff"), ("specframe generate --strat", "--strategy")],
)
def test_the_shell_completes(typed, offered):
    """In bash, as after ``specframe --install-completion``; no model library is waited for."""
    code = (
        "import sys\n"
        "from specframe.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*sys.modules, file=sys.stderr)\n"
    )
    words = typed.split()
    environment = {"_SPECFRAME_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert offered in done.stdout.split()
    assert {"torch", "transformers", "numpy"}.isdisjoint(done.stderr.split())
