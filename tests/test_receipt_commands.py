"""Receipts on the command line: written, shown, replayed; a file that cannot be written loses no text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import random_table
from typer.testing import CliRunner, Result

import specframe
from specframe import Engine, Receipt
from specframe.cli import app
from specframe.testing import Oracle, TableTarget, byte_tokenizer

TOKENIZER = byte_tokenizer()
GENERATE = ("abc", "--max-new-tokens", "12", "--temperature", "0.7")


def table(then: Callable[[], None] = lambda: None) -> TableTarget:
    """Return a target that goes through the alphabet, a little unsure; ``then`` runs behind a 'w'."""

    def row(ids: tuple[int, ...]) -> list[float]:
        if ids[-1] == ord("w"):
            then()
        return [8.0 if token == (ids[-1] + 1) % 128 else 0.0 for token in range(128)] + [-30.0] * (len(TOKENIZER) - 128)

    return TableTarget(row, vocab_size=len(TOKENIZER), tokenizer=TOKENIZER)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Stand in for the loading of models; returns what was asked for."""
    asked: list[dict[str, Any]] = []

    def load(model: str, **arguments: Any) -> Engine:
        asked.append({"model": model, **arguments})
        if model == "broken":
            return Engine(table(_fail))
        drafter = Oracle(range(ord("d"), 128), wrong_at=2)
        return Engine(table(), {"mine": drafter} if model == "mine" else {})

    monkeypatch.setitem(vars(specframe), "load", load)
    return asked


def _fail() -> None:
    raise MemoryError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})


def generate(file: Path, *more: str) -> Result:
    return run("generate", *GENERATE, "--seed", "5", "--target", "mine", "--receipt", str(file), *more)


def test_a_receipt_is_written_beside_the_text(made, tmp_path):
    """The text is what it is without a receipt."""
    file = tmp_path / "run.json"
    done = generate(file)
    assert done.exit_code == 0
    assert done.stdout == run("generate", *GENERATE, "--seed", "5", "--target", "mine").stdout
    receipt = Receipt.read(file)
    assert (receipt.seed.value, receipt.stats.num_tokens, receipt.is_coarse) == (5, 12, False)
    assert generate(file, "--coarse", "--json").exit_code == 0
    assert Receipt.read(file).is_coarse


def test_a_receipt_is_shown(made, tmp_path):
    """Readable, with rounds if asked for; as JSON it is the file itself."""
    file = tmp_path / "run.json"
    generate(file)
    shown = run("receipt", "show", str(file)).stdout
    for told in ("receipt, version 2", "seed", "given-1", "12 tokens, length", "proposals", "warm", "process"):
        assert told in shown
    assert "\nrounds\n" not in shown
    with_rounds = run("receipt", "show", str(file), "--rounds").stdout
    assert with_rounds.startswith(shown)
    assert len(with_rounds.splitlines()) == len(shown.splitlines()) + 1 + len(Receipt.read(file).rounds)
    assert run("receipt", "show", str(file), "--json").stdout == file.read_text()
    coarse = run("receipt", "show", str(file), "--coarse", "--json").stdout
    assert Receipt.from_json(coarse) == Receipt.read(file).coarse()
    assert "coarse receipt" in run("receipt", "show", str(file), "--coarse").stdout


def test_a_run_is_replayed(made, tmp_path):
    """With the same command, without its seed; models and options reach the engine as 'generate' passes them on."""
    file = tmp_path / "run.json"
    generate(file, "--dtype", "float32")
    done = run("receipt", "replay", str(file), *GENERATE, "--target", "mine", "--dtype", "float32")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("the run repeats itself: ")
    assert made[0] == made[1]
    as_json = json.loads(run("receipt", "replay", str(file), *GENERATE, "--target", "mine", "--json").stdout)
    assert (as_json["is_same"], as_json["first"]) == (True, None)


def test_a_run_that_differs_is_told_with_its_first_difference(made, tmp_path):
    """In what was asked, and in which round and field."""
    file = tmp_path / "run.json"
    generate(file)
    done = run("receipt", "replay", str(file), "abd", *GENERATE[1:], "--target", "none")
    assert done.exit_code == 1
    assert "inputs: hashes.prompt was prompt-v1:" in done.stdout
    assert "inputs: drafters.given-1 was unknown, now it is None" in done.stdout
    assert "first difference, in round 0: check was" in done.stdout
    record = json.loads(run("receipt", "replay", str(file), "abd", *GENERATE[1:], "--target", "mine", "--json").stdout)
    assert record["is_same"] is False
    assert record["first"]["field"] == "hashes.prompt"
    assert (record["rounds"]["round_id"], record["rounds"]["field"]) == (0, "check")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--n", "2"), "'n' must be 1 with a receipt"),
        (("--receipt", "no/such/folder.json"), "'receipt' must be a file that can be written"),
        (("--receipt", "."), "it is a folder"),
    ],
)
def test_what_cannot_be_kept_is_refused_before_loading(made, tmp_path, arguments, told):
    """A long generation must not end with such an error."""
    done = generate(tmp_path / "run.json", *arguments)
    assert done.exit_code == 2
    assert told in done.stderr
    assert made == []


def test_a_coarse_receipt_needs_a_file(made):
    """The option alone would do nothing."""
    done = run("generate", "abc", "--coarse")
    assert (done.exit_code, made) == (2, [])
    assert "'coarse' is about a receipt (got True); give --receipt FILE" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("as_json", [False, True])
def test_a_full_disk_loses_no_text(made, as_json):
    """One clear error, behind the text; with --json one object that holds both."""
    done = run("generate", *GENERATE, "--seed", "5", "--receipt", "/dev/full", *(["--json"] if as_json else []))
    plain = run("generate", *GENERATE, "--seed", "5").stdout
    assert done.exit_code == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error")]
    assert errors == ["error: 'receipt' must be a file that can be written (got '/dev/full'); No space left on device"]
    if as_json:
        record = json.loads(done.stdout)
        assert record["text"] + "\n" == plain
        assert "No space left" in record["error"]
        assert record["stats"]["num_tokens"] == 12
    else:
        assert done.stdout == plain


@pytest.mark.parametrize("as_json", [False, True])
def test_a_run_that_fails_leaves_a_receipt(made, tmp_path, as_json):
    """The text so far, the error, and what happened."""
    file = tmp_path / "run.json"
    arguments = ("tuv", "--max-new-tokens", "9", "--target", "broken", *(["--json"] if as_json else []))
    done = run("generate", *arguments, "--receipt", str(file))
    assert done.exit_code == 2
    assert "error: generation ended early: the table target's forward failed" in done.stderr
    assert '"text": "w"' in done.stdout if as_json else done.stdout == "w\n"
    receipt = Receipt.read(file)
    assert (receipt.failure, receipt.finish_reason, receipt.stats.num_tokens) == ("TargetError", "failed", 1)
    again = run("receipt", "replay", str(file), *arguments)
    assert again.exit_code == 0
    if Path("/dev/full").exists():
        told = run("generate", *arguments, "--receipt", "/dev/full").stderr
        assert "there is no receipt of it: 'receipt' must be a file that can be written" in told


def test_files_that_are_no_receipts_are_one_readable_line(made, tmp_path):
    """Before any model loads."""
    file = tmp_path / "run.json"
    file.write_text("{}")
    for command in (("show", str(file)), ("replay", str(file), "abc")):
        done = run("receipt", *command)
        assert done.exit_code == 2
        assert done.stderr.startswith("error: receipt 'run.json' is not a receipt")
        assert len(done.stderr.splitlines()) == 1
    generate(file, "--coarse")
    done = run("receipt", "replay", str(file), *GENERATE)
    assert "a coarse receipt has no rounds and no seed" in done.stderr
    assert len(made) == 1


@pytest.mark.parametrize("command", [("receipt",), ("receipt", "show"), ("receipt", "replay")])
def test_help_fits_80_columns(command):
    """Nothing is cut off and nothing runs over."""
    text = run(*command, "--help").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text


def test_a_replay_without_a_text_is_wrong_usage(made, tmp_path):
    """The message names what is missing."""
    generate(tmp_path / "run.json")
    done = run("receipt", "replay", str(tmp_path / "run.json"))
    assert done.exit_code == 2
    assert "TEXT" in done.stderr


def test_random_tables_have_no_words():
    """A target without a tokenizer has receipts as well; its prompts are ids, in Python."""
    assert Engine(random_table()).generate([1, 2], max_new_tokens=2).receipt.hashes.tokenizer == "unknown"
