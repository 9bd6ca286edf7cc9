"""``specframe certify``: exit codes, files, and what goes where."""

from __future__ import annotations

import json
import sys

import attrs
import pytest
from models import shared_model

import specframe
from specframe import DrafterUse, Engine, Strategy, TransformersTarget
from specframe.cli import main
from specframe.testing import QUICK, certifier, plan

SMALL = attrs.evolve(QUICK, num_outputs=100, num_tokens=8, num_target_tokens=8, policies=("temperature",))


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the command line in this process, with a plan that takes a moment."""
    monkeypatch.setattr(plan, "QUICK", SMALL)

    def run_main(*arguments):
        monkeypatch.setattr(sys, "argv", ["specframe", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        return exit_.value.code or 0, *capsys.readouterr()

    return run_main


def test_a_certified_drafter_exits_with_0(run, tmp_path):
    """The table and the verdict go to the output, the plan and where files went to standard error."""
    code, out, err = run(
        "certify", "prompt_lookup", "--quick", "-o", tmp_path / "c.json", "--page", tmp_path / "c.html"
    )
    assert code == 0
    assert "prompt_lookup is certified" in out
    assert "exact law: temperature" in out
    assert err.startswith("plan 'quick': 100 outputs a Monte Carlo test")
    record = json.loads((tmp_path / "c.json").read_text(encoding="utf-8"))
    assert record["verdict"] == "certified"
    assert record["plan"]["num_outputs"] == 100
    assert record["about"]["drafters"]["prompt_lookup"].startswith("plugin 'prompt_lookup' of specframe")
    assert "prompt_lookup: certified" in (tmp_path / "c.html").read_text(encoding="utf-8")


def test_json_is_the_certificate(run, tmp_path):
    """One object and nothing else; what is not certified exits with 1 and names what is missing."""
    strategy = tmp_path / "mine.toml"
    strategy.write_text('[[drafters]]\nuse = "draft_model"\noptions = { model = "nowhere" }\n')
    code, out, _ = run("certify", strategy, "--quick", "--json")
    record = json.loads(out)
    assert (code, record["verdict"]) == (1, "not certified")
    assert "give a target" in record["missing"][0]


def test_a_target_is_loaded_with_the_strategy(run, monkeypatch):
    """Kernel, dtype and device are the target's; the certificate holds what was run on it."""
    asked = {}

    def load(model, **arguments):
        asked.update(model=model, **arguments)
        use = Strategy(name="prompt_lookup", drafters=(DrafterUse("prompt_lookup"),))
        return Engine(TransformersTarget(shared_model()), strategy=use)

    monkeypatch.setitem(vars(specframe), "load", load)
    code, out, _ = run("certify", "prompt_lookup", "--quick", "--target", "some/folder", "--kernel", "single")
    strategy = asked.pop("strategy")
    assert (strategy.name, strategy.kernel) == ("prompt_lookup", "single")
    assert asked == {"model": "some/folder", "dtype": None, "device": None}
    assert "target: greedy parity" in out
    assert code in (0, 1)  # random weights rarely repeat themselves, so there may be nothing to verify


def test_the_target_is_asked_the_prompts_of_a_file(run, monkeypatch, tmp_path):
    """For a drafter that has nothing to say to those that come with specframe."""
    file = tmp_path / "mine.jsonl"
    file.write_text('{"prompt": "HTTP"}\n{"prompt": "DNS"}\n')
    certify_strategy, asked = certifier.certify_strategy, []

    def note(strategy, *, prompts, **arguments):
        asked.extend(prompts)
        return certify_strategy(strategy, **arguments)

    monkeypatch.setattr(certifier, "certify_strategy", note)
    engine = Engine(TransformersTarget(shared_model()), strategy="prompt_lookup")
    monkeypatch.setitem(vars(specframe), "load", lambda model, **arguments: engine)
    run("certify", "prompt_lookup", "--quick", "--target", "some/folder", "--prompts", file)
    assert asked == ["HTTP", "DNS"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lokup",), "unknown strategy 'lokup'"),
        (("prompt_lookup", "--kernel", "block"), "'kernel' is a target's (got 'block'); give --target"),
        (("prompt_lookup", "--prompts", "p.jsonl"), "'prompts' is a target's (got 'p.jsonl'); give --target"),
        (("prompt_lookup", "--target", "demo", "--prompts", "p.jsonl"), "workload file 'p.jsonl' cannot be read"),
        (("prompt_lookup", "-o", "/nowhere/c.json"), "'output' must be a file that can be written"),
    ],
)
def test_errors_are_one_line_before_anything_runs(run, monkeypatch, arguments, message):
    """With exit code 2."""
    monkeypatch.setattr(certifier, "certify_strategy", None)
    code, out, err = run("certify", *arguments)
    assert (code, out) == (2, "")
    assert f"error: {message}" in err
    assert "Traceback" not in err


def test_progress_is_told_step_by_step(monkeypatch):
    """On a terminal a bar says which check runs; elsewhere the plan alone is said."""
    from specframe.testing.certifier import Progress
    from specframe.testing.command import _Teller

    teller = _Teller(SMALL)
    with teller as tell:
        tell(Progress("contract: room", 1, 4))
    (task,) = teller._bar.tasks
    assert (task.description, task.completed, task.total) == ("contract: room", 1, 4)
