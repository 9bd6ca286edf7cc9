"""What is built: a wheel and an sdist that hold everything that runs. ``make package`` installs them and runs the examples."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import pytest

from specframe._version import __version__

ROOT = Path(__file__).parents[1]
WHEEL, SDIST = f"specframe-{__version__}-py3-none-any.whl", f"specframe-{__version__}.tar.gz"
PLUGINS = ("draft_model", "grammar", "prompt_lookup")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of this checkout, and the wheel made from that; no network is used."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def in_wheel(built: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist()}


def files_of(folder: Path) -> Iterator[str]:
    """Yield the files that belong to a folder of the checkout, relative to the root."""
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith("."):
            yield path.relative_to(ROOT).as_posix()


def test_the_wheel_holds_all_that_runs(built: Path) -> None:
    """Every file of the packages, data among them, under the names that the code looks for; and nothing else."""
    expected = {
        *files_of(ROOT / "specframe"),
        *(
            name.removeprefix("plugins/")
            for plugin in PLUGINS
            for name in files_of(ROOT / f"plugins/specframe_{plugin}")
        ),
        *(name.replace("manifests/", "specframe/_manifests/", 1) for name in files_of(ROOT / "manifests")),
        *(
            name.replace("examples/third_party_drafter/", "specframe/_skeleton/", 1)
            for name in files_of(ROOT / "examples/third_party_drafter")
        ),
    }
    found = {name for name in in_wheel(built) if ".dist-info/" not in name}
    assert found == expected
    assert {"specframe/py.typed", "specframe/bench/core.jsonl", "specframe/_manifests/strategies/grammar.toml"} <= found


def test_the_metadata_are_this_projects(built: Path) -> None:
    """Version from one place, extras, licence, the command, the plugins."""
    files = {
        name.partition(".dist-info/")[2]: text.decode()
        for name, text in in_wheel(built).items()
        if ".dist-info/" in name
    }
    metadata = Parser().parsestr(files["METADATA"])
    assert (metadata["Name"], metadata["Version"]) == ("specframe", __version__)
    assert {"dev", "grammar", "report"} <= {*metadata.get_all("Provides-Extra")}
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "licenses/LICENSE" in files
    assert "specframe = specframe.cli:main" in files["entry_points.txt"]
    for plugin in PLUGINS:
        assert f"{plugin} = specframe_{plugin}" in files["entry_points.txt"]


def test_the_sdist_holds_what_a_build_and_a_test_need(built: Path) -> None:
    """The wheel above was made from it; its tests and examples are there too, this workplace's files are not."""
    with tarfile.open(built / SDIST) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    for name in ("pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "Makefile"):
        assert name in names
    assert {*files_of(ROOT / "examples")} <= names
    assert {*files_of(ROOT / "tests")} <= names
    assert not [name for name in names if name.startswith((".ci", ".venv", "build/", "dist/")) or "__pycache__" in name]
