"""Running the command line, in the test's process or in one of its own."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import NamedTuple

import pytest

from specframe.cli import main


class Outcome(NamedTuple):
    """What a run of the command line left."""

    code: int
    out: str
    err: str


class CommandLine:
    """Runs the command line in this process; ``stdin`` is its input, ``terminal`` says that a person reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: str, stdin: str = "", terminal: bool = False) -> Outcome:
        self._monkeypatch.setenv("COLUMNS", "80")
        self._monkeypatch.setattr(sys, "argv", ["specframe", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        self._monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
        with pytest.raises(SystemExit) as exit_:
            main()
        code = exit_.value.code
        assert code is None or isinstance(code, int)
        return Outcome(code or 0, *self._capsys.readouterr())


def run_alone(*arguments: str) -> tuple[int, str, list[str]]:
    """Run the command line in a process of its own; return its status, its output, and the modules that were imported."""
    code = (
        "import sys\n"
        "from specframe.cli import main\n"
        "sys.argv = ['specframe', *sys.argv[1:]]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as exit_:\n"
        "    print(exit_.code or 0, *sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    status, *modules = done.stderr.splitlines()[-1].split()
    return int(status), done.stdout, modules
