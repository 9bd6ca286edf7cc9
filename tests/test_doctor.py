"""The doctor: what it finds, what it finds wrong, and what it never tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from specframe import doctor
from specframe._version import __version__
from specframe.doctor import as_text, examine, hide_paths
from specframe.manifest.remember import remember


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "Jane Doe's cache"
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(folder))
    return folder


def install(folder: Path, name: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a distribution with one plugin."""
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[specframe]\n{name} = {name}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(folder)


DRAFTER = """
import attrs, specframe
@attrs.frozen
class Options: pass
@specframe.hookimpl
def specframe_register_drafters(register):
    register("prompt_lookup", object, options=Options, needs=specframe.Needs(), api=1)
"""


def test_a_whole_installation_has_no_problems() -> None:
    """The one under test: every part is there, under the version that runs."""
    report = examine()
    assert report["problems"] == []
    assert report["specframe"] == __version__
    assert report["packages"]["torch"]["installed"] == metadata.version("torch")
    assert report["packages"]["llguidance"]["extra"] == "grammar"
    assert "pytest" not in report["packages"]
    assert report["devices"]["processors"] == os.cpu_count()
    assert {plugin["name"]: plugin["state"] for plugin in report["plugins"]} == {
        "draft_model": "loaded",
        "grammar": "loaded",
        "prompt_lookup": "loaded",
    }
    assert {"grammar", "prompt_lookup"} <= {*report["strategies"]}
    assert report["demo"] == "installed"
    json.dumps(report)


def test_what_is_wrong_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken plugin, a name that two claim, a package that is missing or too old, a cache that cannot be written."""
    install(tmp_path, "glass", "raise RuntimeError('it fell')", monkeypatch)
    install(tmp_path, "double", DRAFTER, monkeypatch)
    versions = {"torch": "1.13", "gguf": None, "llguidance": None}
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: versions[name] if name in versions else real(name))
    (tmp_path / "file").touch()
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "file" / "cache"))
    report = examine()
    problems = "\n".join(report["problems"])
    assert "plugin 'glass' of glass 1.2 is broken: RuntimeError: it fell" in problems
    assert "drafter 'prompt_lookup' is registered by two plugins" in problems
    assert "(installed: 1.13)" in problems
    assert "gguf >=" in problems
    assert "llguidance" not in problems  # an extra is nobody's duty
    assert "the cache folder cannot be written; set SPECFRAME_CACHE_DIR" in problems
    assert [plugin["state"] for plugin in report["plugins"] if plugin["name"] == "glass"] == ["broken"]


def test_a_part_that_fails_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that does not load is when a report is needed most."""
    monkeypatch.setitem(sys.modules, "torch", None)
    report = examine()
    assert "devices" not in report
    assert report["plugins"]
    assert any(problem.startswith("devices: ModuleNotFoundError") for problem in report["problems"])
    assert "devices: ModuleNotFoundError" in as_text(report)


def test_a_specframe_that_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the path alone it has no plugins, and nothing else says why."""
    monkeypatch.setattr(doctor, "DISTRIBUTION", "specframe-that-is-not-there")
    assert any("not installed, so its plugins are not found" in problem for problem in examine()["problems"])


def test_graphics_cards_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their memory: what fits on them is half of the questions."""
    import torch

    card = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: card)
    assert examine()["devices"]["cuda"] == ["NVIDIA H200, 140.0 GiB"] * 2


def test_kernel_probes_and_caches_are_counted(cache: Path) -> None:
    """Verdicts are remembered without the model that they are on; so they are counted."""
    assert examine()["kernel_probes"] == {"bitwise": 0, "not_bitwise": 0, "wrong": 0}
    for number, (wrong, is_bitwise) in enumerate([("", True), ("", True), ("", False), ("no mask", False)]):
        verdict = {"wrong": wrong, "is_bitwise": is_bitwise}
        remember("kernel-probe", [number], lambda verdict=verdict: verdict)
    model = cache / "some-model"
    model.mkdir()
    (model / "config.json").write_bytes(b" " * 3_000_000)
    report = examine()
    assert report["kernel_probes"] == {"bitwise": 2, "not_bitwise": 1, "wrong": 1}
    facts = report["caches"]["specframe"]
    assert facts == {
        "chosen_by": "SPECFRAME_CACHE_DIR", "exists": True, "is_writable": True, "num_models": 1, "megabytes": 3,
    }  # fmt: skip


def test_no_path_is_told_unless_asked_for(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is pasted in public; folders carry names of people. Errors of strangers' modules may hold any of them."""
    home = tmp_path / "home of jdoe"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    told = [f"cannot import name 'x' from 'y' ({home}/lib/y.py)", "no '/srv/Jane Doe/weights'", f"see {sys.prefix}/x"]
    install(tmp_path, "leaky", f"raise ImportError({'; '.join(told)!r})", monkeypatch)
    hidden, shown = examine(), examine(paths=True)
    texts = json.dumps(hidden) + as_text(hidden)
    for secret in ("jdoe", "Jane", str(tmp_path), sys.prefix, str(Path.home())):
        assert secret not in texts
        if secret != str(tmp_path):
            assert secret in json.dumps(shown) + as_text(shown)
    assert "cannot import name 'x' from 'y'" in texts
    assert shown["caches"]["specframe"]["path"] == str(cache)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("No module named 'faiss'", "No module named 'faiss'"),
        ("and/or, 3/4, <=2", "and/or, 3/4, <=2"),
        ("open /srv/a/b.py: failed", "open <path> failed"),
        ("open '/srv/a b/c.py' failed", "open <path> failed"),
        (r"open C:\Users\jane\x.py", "open <path>"),
        ("see ~/x", "see <path>"),
    ],
)
def test_paths_are_found_in_texts(text: str, expected: str) -> None:
    """What is no path stays: it is the message."""
    assert hide_paths(text) == expected


def test_the_text_fits_a_terminal_and_tells_everything() -> None:
    """As it is pasted."""
    text = as_text(examine())
    assert text.startswith(f"specframe {__version__}, Python ")
    assert text.endswith("problems\n  none")
    for part in ("packages", "devices", "plugins", "strategies", "kernel probes", "caches", "demo"):
        assert f"\n{part}\n" in text
    assert max(map(len, text.splitlines())) <= 120


def run(*arguments: str, **environment: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "specframe.cli", "doctor", *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    return done.returncode, done.stdout


def test_the_exit_status_says_whether_something_is_wrong(tmp_path: Path) -> None:
    """For scripts; the report is whole either way."""
    (tmp_path / "file").touch()
    code, out = run("--json", SPECFRAME_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert code == 1
    assert len(json.loads(out)["problems"]) == 1
