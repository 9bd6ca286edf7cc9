"""Every example runs as it is, on the demo model, in one process; only the number of tokens is lowered."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import attrs
import pytest

import specframe

EXAMPLES = Path(__file__).parents[2] / "examples"
TESTED = {
    "batch_jsonl",
    "compare_strategies",
    "constrained_json",
    "custom_generate",
    "quickstart",
    "streaming_chat",
    "swap_strategies",
    "train_draft",
}


def example(name: str) -> ModuleType:
    """Return an example as a module; ``main`` has not run."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def demo() -> specframe.TransformersTarget:
    return specframe.load_target("demo")


@pytest.fixture
def loaded_once(demo: specframe.TransformersTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand out one demo target wherever an example loads it: loading is what takes the time here."""

    def load(model: str, **options: str) -> specframe.Engine:
        assert model == "demo"
        return specframe.Engine(demo, **options)

    monkeypatch.setitem(vars(specframe), "load", load)
    monkeypatch.setitem(vars(specframe), "load_target", lambda model: demo)
    demo.reset()


def test_every_example_is_tested_and_listed() -> None:
    """One that nobody runs rots."""
    assert {path.stem for path in EXAMPLES.glob("*.py")} == TESTED
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name.startswith("third_party")}
    assert all(f"`{name}.py`" in listed for name in TESTED)
    assert all(f"`{name}/`" in listed for name in folders)


@pytest.mark.real_model
def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    """As it is, with what it loads: the first program that anyone runs."""
    module = example("quickstart")
    module.MAX_NEW_TOKENS, module.NUM_REPEATS = 8, 1
    with pytest.raises(SystemExit) as exit_:
        module.main()
    assert not exit_.value.code
    assert capsys.readouterr().out.count("tokens identical in all 4 runs: yes") == len(module.RUNS)


@pytest.mark.real_model
@pytest.mark.usefixtures("loaded_once")
def test_swap_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    """Every strategy file is used, and all give one text."""
    module = example("swap_strategies")
    module.MAX_NEW_TOKENS = 24
    with pytest.raises(SystemExit) as exit_:
        module.main(module.FILES)
    out = capsys.readouterr().out
    assert not exit_.value.code, out
    assert [line.split()[0] for line in out.splitlines()[:3]] == ["adaptive.toml", "lookup.toml", "plain.toml"]
    assert "texts identical: yes" in out


@pytest.mark.real_model
@pytest.mark.usefixtures("loaded_once")
def test_custom_generate(capsys: pytest.CaptureFixture[str]) -> None:
    """The same tokens through transformers' own ``generate``."""
    module = example("custom_generate")
    module.MAX_NEW_TOKENS = 12
    with pytest.raises(SystemExit) as exit_:
        module.main()
    assert not exit_.value.code
    assert "tokens identical: yes" in capsys.readouterr().out


@pytest.mark.real_model
@pytest.mark.usefixtures("loaded_once")
def test_streaming_chat(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Two turns from a pipe, then its end."""
    module = example("streaming_chat")
    module.MAX_NEW_TOKENS = 6
    monkeypatch.setattr(sys, "stdin", io.StringIO("Hello!\nWhat is 2 + 2?\n"))
    module.main()
    out = capsys.readouterr().out
    assert out.count("> ") == 3
    assert out.count(" tokens, the first after") == 2


@pytest.mark.real_model
@pytest.mark.usefixtures("loaded_once")
def test_constrained_json(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints JSON of the schema, and that fewer calls were made than tokens."""
    module = example("constrained_json")
    module.main()
    shown, _, statistics = capsys.readouterr().out.partition("}\n")
    assert set(json.loads(shown + "}")) == set(module.SCHEMA["required"])
    num_tokens, num_calls, *_ = (int(word) for word in statistics.split() if word.isdigit())
    assert num_calls < num_tokens


@pytest.mark.real_model
@pytest.mark.usefixtures("loaded_once")
def test_train_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The draft is there and proposes; what it learned in a run this small is nobody's business."""
    module = example("train_draft")
    module.MAX_NEW_TOKENS = 8
    module.SETTINGS = attrs.evolve(
        module.SETTINGS,
        shards=1,
        corpus=attrs.evolve(module.SETTINGS.corpus, rows=2, length=48),
        distil=attrs.evolve(module.SETTINGS.distil, steps=2, rows=2),
    )
    module.main(tmp_path / "draft")
    assert (tmp_path / "draft" / "provenance.json").is_file()
    out = capsys.readouterr().out
    assert "held-out acceptance: " in out
    assert "drafted tokens accepted]" in out
    assert " of 0 drafted" not in out


@pytest.mark.real_model
def test_compare_strategies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is written and opened; the second run measures nothing again."""
    module = example("compare_strategies")
    module.CORPUS = attrs.evolve(module.CORPUS, limit=1)
    module.SETTINGS = {"max_new_tokens": 6, "repeats": 1, "weighs_arms": False}
    opened: list[str] = []
    monkeypatch.setattr(module.webbrowser, "open", opened.append)
    module.main(tmp_path / "comparison")
    page = tmp_path / "comparison" / "report" / "index.html"
    assert opened == [page.as_uri()]
    assert "<svg" in page.read_text(encoding="utf-8")
    out = capsys.readouterr().out
    assert "8 of 8 requests are done" in out
    assert all(arm in out for arm in module.ARMS)
    results = (tmp_path / "comparison" / "results.jsonl").read_bytes()
    monkeypatch.setattr(module, "write_report", lambda results, folder: [page])  # drawing it again would take seconds
    module.main(tmp_path / "comparison")
    assert (tmp_path / "comparison" / "results.jsonl").read_bytes() == results


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder that answers at once."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "manifest")
    from folders import save_model

    return save_model(tmp_path / "tiny", max_position_embeddings=128)


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Forty lines; one of them is no JSON, another no text that the model can take."""
    lines = [json.dumps({"prompt": f"number {number}"}) for number in range(40)]
    lines[3], lines[7] = "{", json.dumps({"prompt": "long " * 100})
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_a_batch_goes_on_after_any_end(questions: Path, tiny: Path, tmp_path: Path) -> None:
    """However many whole lines and whatever half of one a kill leaves, the file becomes that of a run in one piece."""
    module = example("batch_jsonl")
    module.MAX_NEW_TOKENS = 2
    module.main(questions, tmp_path / "whole.jsonl", str(tiny))
    whole = (tmp_path / "whole.jsonl").read_bytes()
    records = [json.loads(line) for line in whole.splitlines()]
    assert [record["line"] for record in records] == list(range(1, 41))
    assert [record["line"] for record in records if "error" in record] == [4, 8]
    first_line = whole.index(b"\n") + 1
    for length in (0, 1, first_line - 1, first_line, first_line + 1, len(whole) // 2, len(whole) - 1, len(whole)):
        (tmp_path / "parts.jsonl").write_bytes(whole[:length])
        module.main(questions, tmp_path / "parts.jsonl", str(tiny))
        assert (tmp_path / "parts.jsonl").read_bytes() == whole, length


def test_a_killed_batch_loses_and_doubles_nothing(questions: Path, tiny: Path, tmp_path: Path) -> None:
    """A real kill, in the middle; the second run ends the file."""
    answers = tmp_path / "answers.jsonl"
    command = [sys.executable, str(EXAMPLES / "batch_jsonl.py"), str(questions), str(answers), str(tiny)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_until(lambda: answers.is_file() and answers.read_bytes().count(b"\n") >= 3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    num_done = answers.read_bytes().count(b"\n")
    assert 3 <= num_done < 40, "killed too late to show anything"
    module = example("batch_jsonl")
    module.MAX_NEW_TOKENS = 2
    module.main(questions, answers, str(tiny))
    lines = answers.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["line"] for line in lines] == list(range(1, 41))


def wait_until(is_so: Callable[[], bool], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
