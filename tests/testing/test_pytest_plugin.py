"""The pytest plugin: fixtures for third parties, and no cost for anyone else."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = "specframe.testing.pytest_plugin"

TESTS = """
from specframe.testing import Adversary, Plan

PLAN = Plan("tiny", num_tables=1, num_seeds=1, lengths=(2,), num_tokens=6, num_outputs=40, num_prompts=1,
            num_target_tokens=4, num_target_seeds=1, policies=("temperature",))

def test_a_drafter_is_certified(certify_drafter):
    certificate = certify_drafter(lambda facts: Adversary(lambda context, index: context[-2]), plan=PLAN)
    assert certificate.is_certified

def test_a_drafter_that_is_not(certify_drafter):
    certify_drafter(lambda facts: Adversary(lambda context, index: None), name="mine", plan=PLAN)

def test_a_table(table_target):
    assert table_target(vocab_size=5).facts.vocab_size == 5
"""


def pytest_in(folder, *arguments):
    """Run another pytest, with this plugin and no others, warnings being errors."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "pytest", "-W", "error", "-p", PLUGIN, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_third_parties_get_the_fixtures(tmp_path):
    """Certified drafters pass, others fail with the findings and without a traceback into specframe."""
    (tmp_path / "test_mine.py").write_text(TESTS)
    done = pytest_in(tmp_path, "-p", "no:cacheprovider")
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "mine is not certified" in done.stdout
    assert "contract: it stays on and proposes: it proposed nothing" in done.stdout
    assert "certifier.py" not in done.stdout


def test_other_runs_load_no_model_library(tmp_path):
    """Pytest imports the plugin in every run where specframe is installed, so it must not take torch with it."""
    (tmp_path / "test_theirs.py").write_text("import sys\n\ndef test_it():\n    assert 'torch' not in sys.modules\n")
    done = pytest_in(tmp_path, "-p", "no:cacheprovider", "-q")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_entry_point_names_the_plugin():
    """What pytest finds where specframe is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["pytest11"]
    assert points == {"specframe": PLUGIN}
    module = import_module(points["specframe"])
    assert {"certify_drafter", "table_target"} <= vars(module).keys()
