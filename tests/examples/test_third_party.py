"""Drafters of others: each distribution is built, installed and found as a stranger's would be, and passes its own tests."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import specframe
from specframe import testing
from specframe.bench.metrics import summarise
from specframe.bench.planning import draw_up
from specframe.bench.run import run
from specframe.bench.workload import Corpus
from specframe.skeleton import write_skeleton

EXAMPLES = Path(__file__).parents[2] / "examples"
DISTRIBUTIONS = sorted(path for path in EXAMPLES.glob("third_party_*") if path.is_dir())
DRAFTERS = ("repeat_last", "followers", "early_exit", "abbreviations")
OPTIONS = {"early_exit": {"layers": 1}, "abbreviations": {"file": str(EXAMPLES / "third_party_text" / "terms.toml")}}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distributions installed, and one that ``specframe new-drafter`` wrote; no network is used."""
    folder = tmp_path_factory.mktemp("installed")
    made = write_skeleton("best-guess", tmp_path_factory.mktemp("made"))
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*pip, "--target", folder, *DISTRIBUTIONS, made], check=True)
    tests = folder / "tests"
    tests.mkdir()
    for source in (*DISTRIBUTIONS, made):
        for test in source.glob("test_*.py"):
            shutil.copy(test, tests)
    return folder


def test_the_distributions_pass_their_own_tests(installed: Path) -> None:
    """Among them: found by name, plain decoding's text, certified. The sources are not on the path."""
    path = os.pathsep.join([str(installed), *filter(os.path.isdir, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--rootdir", ".", "."]
    done = subprocess.run(command, cwd=installed / "tests", env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    num_tests = sum(path.read_text(encoding="utf-8").count("\ndef test_") for path in (installed / "tests").iterdir())
    assert num_tests >= 12
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)  # and nothing beside: none failed, none skipped
    assert passed is not None
    assert int(passed[1]) >= num_tests


@pytest.mark.real_model
def test_the_demo_target_says_the_same_with_each(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by name on a real model, each proposes and none is heard."""
    monkeypatch.syspath_prepend(installed)
    target = specframe.load_target("demo")
    arguments = {"max_new_tokens": 16, "temperature": 0.7, "seed": 1}
    repeating = "red green blue red green blue red green"
    abbreviating = "TCP is the Transmission Control Protocol. TCP is the Transmission"
    with specframe.Engine(target) as engine:
        plain = {prompt: engine.generate(prompt, **arguments) for prompt in (repeating, abbreviating)}
    for name in (*DRAFTERS, "best_guess"):
        prompt = abbreviating if name == "abbreviations" else repeating
        use = specframe.DrafterUse(name, OPTIONS.get(name, {}))
        with specframe.Engine(target, strategy=specframe.Strategy(drafters=(use,))) as engine:
            result = engine.generate(prompt, **arguments)
        assert result.token_ids == plain[prompt].token_ids, name
        assert result.stats.drafters[name].num_proposed > 0, name
        assert result.events == (), name


def test_each_shows_up_in_a_comparison(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Named as an arm like any other, each has its speed, its acceptance and a verdict; its text is plain decoding's."""
    monkeypatch.syspath_prepend(installed)
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "manifest")
    from folders import save_model

    model = save_model(tmp_path / "tiny", max_position_embeddings=2048)
    arms = {"plain": "none", **{name: name for name in DRAFTERS}, **{name: f"{name}.toml" for name in OPTIONS}}
    monkeypatch.chdir(tmp_path)
    for name, options in OPTIONS.items():
        given = ", ".join(f"{option} = {json.dumps(value)}" for option, value in options.items())
        (tmp_path / f"{name}.toml").write_text(f'[[drafters]]\nuse = "{name}"\noptions = {{ {given} }}\n')
    settings = {"model": str(model), "max_new_tokens": 8, "repeats": 1, "weighs_arms": False}
    plan = draw_up(arms, Corpus(("chat",), limit=2), **settings)
    summary = summarise(run(plan, tmp_path / "results.jsonl"))
    assert summary.num_done == summary.num_all == 10
    for name in DRAFTERS:
        cell = summary.cell(name)
        assert (cell.num_requests, cell.num_failed) == (2, 0), name
        assert cell.speeds["plain"].matched == "matched 2/2", name
        assert cell.verdict is not None, name


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=lambda path: path.name)
def test_only_the_public_api_is_used(distribution: Path) -> None:
    """What the examples reach into, strangers will."""
    public = {"specframe": set(specframe.__all__), "specframe.testing": set(testing.__all__)}
    files = list(distribution.rglob("*.py"))
    assert files
    for file in files:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "specframe":
                assert {alias.name for alias in node.names} <= public[node.module or ""], (file.name, node.lineno)
            if isinstance(node, ast.Import):
                names = {alias.name for alias in node.names if alias.name.split(".")[0] == "specframe"}
                assert names <= {"specframe"}, (file.name, node.lineno)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "specframe":
                assert node.attr in public["specframe"], (file.name, node.lineno)
