"""A reader who does what a page shows: its files, its Python and its commands, in order, in one folder.

A block with ``title="NAME"`` is a file, and written. Lines after a command are what it prints (``...`` stands for anything).
A block after ``<!-- block: parse -->`` would take too long here: its Python is compiled, the options of its commands checked.
"""

from __future__ import annotations

import inspect
import io
import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
import typer
from models import save_model
from packaging.requirements import Requirement

from specframe import Strategy, demo, plugins
from specframe.cli import app, main
from specframe.resolve import structured_options

ROOT = Path(__file__).parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])
EXAMPLES = sorted((ROOT / "examples").rglob("README.md"))
_BLOCK = re.compile(
    r"(?P<parse>^<!-- block: parse -->\n)?^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
_VARIABLE = re.compile(r"[A-Z_]+=")


class Block(NamedTuple):
    """A code block of a page; ``line``: where its text begins; ``title``: the file that it is."""

    language: str
    title: str | None
    text: str
    line: int
    is_parsed_only: bool


class Command(NamedTuple):
    """A command line, and the lines that it is said to print."""

    line: str
    output: str


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page. Fails where a fence is left over, whose code nobody would run."""
    found = [
        Block(
            match["language"],
            match["title"],
            match["text"],
            text.count("\n", 0, match.start("text")),
            match["parse"] is not None,
        )
        for match in _BLOCK.finditer(text)
    ]
    assert text.count("```") == 2 * len(found), "a code block that cannot be read: indented, or with an unknown fence"
    return found


def commands(text: str) -> list[Command]:
    """Return the commands of a ``console`` block, each with what the page says that it prints."""
    found: list[Command] = []
    for line in text.replace("\\\n", "").splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], ""))
        else:
            found[-1] = found[-1]._replace(output=f"{found[-1].output}{line}\n")
    return found


class Reader:
    """Reads pages in a folder; ``fixture`` gives a test of a page what it asks for."""

    def __init__(self, folder: Path, fixture: Callable[[str], Any]) -> None:
        self.folder, self._fixture = folder, fixture
        self.scope: dict[str, Any] = {"__name__": "page"}
        self._titles: set[str] = set()

    def read(self, page: Path) -> None:
        """Do what a page shows, and run the tests that it defines."""
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}:{block.line}"
            if block.title is not None:
                (self.folder / block.title).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / block.title).write_text(block.text, encoding="utf-8")
                self._titles.add(block.title)
            try:
                _READ[block.language](self, block, where)
            except (Exception, SystemExit) as error:
                error.add_note(f"in the block at {where}")
                raise
        for test in [value for name, value in self.scope.items() if name.startswith("test_")]:
            test(**{name: self._fixture(name) for name in inspect.signature(test).parameters})

    def python(self, block: Block, where: str) -> None:
        code = compile(block.text, where, "exec")
        if not block.is_parsed_only:
            exec(code, self.scope)

    def console(self, block: Block, where: str) -> None:
        shown = commands(block.text)
        assert shown
        for command in shown:
            self._run(command, is_parsed_only=block.is_parsed_only)

    def toml(self, block: Block, where: str) -> None:
        """A strategy file, or a file with a name that something else on the page reads."""
        data = tomllib.loads(block.text)
        if data.keys() <= {field.name for field in attrs.fields(Strategy)}:
            path = self.folder / (block.title or "unnamed.toml")
            path.write_text(block.text, encoding="utf-8")
            strategy = Strategy.from_toml(path)
            for use in strategy.drafters:
                structured_options(use, plugins.load(strategy.disable))
        else:
            assert block.title is not None, "neither a strategy nor a file with a name"

    def json(self, block: Block, where: str) -> None:
        json.loads(block.text)

    def text(self, block: Block, where: str) -> None:
        """What something prints, or a file with a name."""

    def _run(self, command: Command, *, is_parsed_only: bool) -> None:
        words = shlex.split(command.line, comments=True)
        with pytest.MonkeyPatch.context() as patch:
            while _VARIABLE.match(words[0]):
                name, _, value = words.pop(0).partition("=")
                patch.setenv(name, value)
            program, *arguments = words
            if is_parsed_only:
                assert program == "specframe"
                parse(arguments)
                return
            source, target = (self._redirected(arguments, sign) for sign in "<>")
            stdin = source.read_text(encoding="utf-8") if source is not None else ""
            code, printed = _PROGRAMS[program](self, arguments, stdin)
        if target is not None:
            target.write_text(printed, encoding="utf-8")
        is_error = command.output.startswith("error:")
        assert code == (2 if is_error else 0), f"{command.line}: status {code}\n{printed}"
        if command.output:
            assert _as_pattern(command.output).fullmatch(_tidy(printed)), f"{command.line} prints:\n{printed}"

    def _redirected(self, arguments: list[str], sign: str) -> Path | None:
        if sign not in arguments:
            return None
        index = arguments.index(sign)
        name = arguments[index + 1]
        del arguments[index : index + 2]
        return self.folder / name

    def specframe(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        printed = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed), redirect_stderr(printed):
            patch.setattr(sys, "argv", ["specframe", *arguments])
            patch.setattr(sys, "stdin", io.StringIO(stdin))
            patch.setenv("COLUMNS", "80")
            try:
                main()
            except SystemExit as exit_:
                code = exit_.code or 0
                assert isinstance(code, int)
        return code, printed.getvalue()

    def pip(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        """Install the distribution in this folder by its metadata; of others check what is asked for, `.[...]` being ours."""
        command, *names = [argument for argument in arguments if argument != "--no-deps"]
        assert command == "install"
        if names == ["-e", "."]:
            project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
            info = self.folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
            info.mkdir()
            metadata = f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
            (info / "METADATA").write_text(metadata, encoding="utf-8")
            points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["specframe"].items())
            (info / "entry_points.txt").write_text(f"[specframe]\n{points}", encoding="utf-8")
            return 0, ""
        if names[:1] == ["-c"]:
            assert (ROOT / names[1]).is_file()
            names = names[2:]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
            "optional-dependencies"
        ]
        for name in names:
            requirement = Requirement(f"specframe{name[1:]}" if name.startswith(".[") else name)
            assert requirement.name != "specframe" or requirement.extras <= extras.keys()
        return 0, ""

    def make(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        """What a target of the Makefile does is its own; here it must be one."""
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        for name in arguments:
            assert re.search(rf"^{name}:", makefile, re.MULTILINE), name
        return 0, ""

    def pytest(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        """The tests of a page run at its end; here their file must be one of the page's."""
        assert set(arguments) <= self._titles
        return 0, ""

    def echo(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        return 0, " ".join(arguments) + "\n"

    def in_the_checkout(self, arguments: Sequence[str], stdin: str) -> tuple[int, str]:
        """A program that is run on files of the checkout, which have tests of their own."""
        assert all((ROOT / name).exists() or name == ".venv/bin/activate" for name in arguments), arguments
        return 0, ""


_READ: dict[str, Callable[[Reader, Block, str], None]] = {
    "python": Reader.python,
    "console": Reader.console,
    "toml": Reader.toml,
    "json": Reader.json,
    "text": Reader.text,
}
_PROGRAMS: dict[str, Callable[[Reader, Sequence[str], str], tuple[int, str]]] = {
    "specframe": Reader.specframe,
    "pip": Reader.pip,
    "make": Reader.make,
    "pytest": Reader.pytest,
    "echo": Reader.echo,
    "python": Reader.in_the_checkout,
    "source": Reader.in_the_checkout,
}


def parse(arguments: Sequence[str]) -> None:
    """Check the options of a command without running it; wrong ones are errors."""
    command: Any = typer.main.get_command(app)
    name, rest = "specframe", list(arguments)
    while hasattr(command, "commands"):
        name, *rest = rest
        command = command.commands[name]
    command.make_context(name, rest)


def _as_pattern(output: str) -> re.Pattern[str]:
    return re.compile(re.escape(_tidy(output)).replace(r"\.\.\.", ".*"), re.DOTALL)


def _tidy(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def stand_in(cache: Path) -> Path:
    """Put a tiny model where the demo's weights are converted to, and return the file that it stands for."""
    file = cache / demo.GGUF_FILE
    file.write_bytes(b"in the place of the demo's weights")
    save_model(cache / demo.folder_name(file), max_position_embeddings=2048)
    return file
