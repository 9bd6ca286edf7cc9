"""``specframe compare``: a plan is fixed once, a run ends or goes on, and every mistake is one readable line."""

from __future__ import annotations

import json
import resource
import signal
import sys
from pathlib import Path

import pytest
from page_reader import PageReader

from specframe.bench import planning
from specframe.bench.lines import FORMAT
from specframe.bench.plan import read_plan
from specframe.bench.report.write import folder_of
from specframe.bench.results import read_results
from specframe.bench.workload import Corpus
from specframe.cli import main


@pytest.fixture
def compare(monkeypatch, capsys):
    """Run ``specframe compare`` in this process and return its exit status, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["specframe", "compare", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        return caught.value.code or 0, *capsys.readouterr()

    return run


SMALL = ("--workload", "chat", "--limit", 2, "--max-new-tokens", 6, "--repeats", 1, "--no-memory")


def test_a_plan_is_made_and_run_and_shown(compare, model, tmp_path):
    """The way that the documentation describes."""
    plan, results = tmp_path / "plan.json", tmp_path / "plan.jsonl"
    arms = ("--arm", "prompt_lookup@adaptive", "--arm", "library=transformers", "--arm", "transformers-lookup:3")
    code, out, err = compare("plan", "-o", plan, "--target", model, *arms, *SMALL)
    assert (code, err) == (0, "")
    assert "2 prompts x 5 arms x 1 repeats = 10 requests" in out
    code, out, err = compare("run", plan)
    assert code == 0
    assert "10 of 10 requests are done" in out
    assert "matched 2/2" in out
    assert "[0 s] 0/10 loading" in err
    assert "10/10 done" in err
    assert len(read_results(results).requests) == 10
    code, out, _ = compare("run", plan, "--json")
    summary = json.loads(out)
    assert summary["num_done"] == 10
    speeds = {(cell["arm"], cell["kind"]): cell["speeds"] for cell in summary["cells"]}
    assert speeds["library", "chat"]["plain"]["num_matched"] == 2
    assert {name for name, _ in speeds} == {
        "plain", "plain again", "prompt_lookup@adaptive", "library", "transformers-lookup:3"
    }  # fmt: skip
    record = next(r for r in read_results(results).requests if r.arm == "library")
    assert record.num_first == 1
    assert record.first_token_s < record.end_to_end_s
    assert record.text == "".join(record.pieces)
    assert record.peak_resident_bytes is None or record.peak_resident_bytes > 2**26


def test_a_temperature_of_nothing_is_greedy(compare, model, tmp_path):
    """As the help says."""
    assert compare("plan", "-o", tmp_path / "p.json", "--target", model, "--temperature", 0, *SMALL)[0] == 0
    assert read_plan(tmp_path / "p.json").sampling is None


def test_a_plan_is_never_overwritten(compare, model, tmp_path):
    """Prevents gates from being moved after results were seen."""
    plan = tmp_path / "plan.json"
    assert compare("plan", "-o", plan, "--target", model, *SMALL)[0] == 0
    before = plan.read_bytes()
    code, _, err = compare("plan", "-o", plan, "--target", model, *SMALL, "--order-seed", 1)
    assert code == 2
    assert err.startswith("error: 'output' must be a new file, for a plan is never changed")
    assert plan.read_bytes() == before


def test_a_run_against_a_changed_plan_is_refused(compare, model, tmp_path):
    """By whatever was changed: the file of the plan, or what it is about."""
    prompts, plan = tmp_path / "p.jsonl", tmp_path / "plan.json"
    prompts.write_text('{"prompt": "a"}\n')
    sizes = ("--workload", prompts, *SMALL[2:])
    assert compare("plan", "-o", plan, "--target", model, *sizes)[0] == 0
    prompts.write_text('{"prompt": "b"}\n')
    code, out, err = compare("run", plan)
    assert (code, out) == (2, "")
    assert err.startswith("error: a run would not be the one that was planned")
    assert "items[0].sha256: planned" in err
    assert not (tmp_path / "plan.jsonl").exists()
    content = json.loads(plan.read_text())
    content["plan"]["repeats"] = 2
    plan.write_text(json.dumps(content))
    code, _, err = compare("run", plan)
    assert code == 2
    assert "was changed after it was fixed" in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run",), "error: 'plan' must be given, or --demo"),
        (("run", "x.json", "--demo"), "error: 'plan' must be given, or --demo (got 'x.json')"),
        (("run", "nowhere.json"), "error: plan 'nowhere.json' cannot be read: No such file"),
        (("run", "nowhere.json", "-o", "nowhere/r.jsonl"), "error: 'output' must be a file that can be written"),
        (("run", "x.json", "-o", "/dev/full"), "error: 'output' must be a regular file"),
        (("run", "x.json", "-o", "x.json"), "error: 'output' must be another file than the plan"),
        (("run", "x.jsonl"), "error: 'output' must be another file than the plan"),
        (("plan", "-o", "nowhere/x.json"), "error: 'output' must be a file that can be written"),
        (
            ("plan", "-o", "x.json", "--arm", "a=none", "--arm", "a=transformers"),
            "error: 'arm' must not be given twice",
        ),
        (("plan", "-o", "x.json", "--arm", "=none"), "error: 'arm' must be a value or NAME=VALUE (got '=none')"),
        (("plan", "-o", "x.json", "--certificate", "c.json"), "error: 'certificate' must be NAME=VALUE (got 'c.json')"),
        (("plan", "-o", "x.json", "--arm", "promt_lookup"), "error: unknown strategy 'promt_lookup'; did you mean"),
        (("plan", "-o", "x.json", "--workload", "chats"), "error: workload 'chats' is neither a stratum nor a file"),
        (("plan", "-o", "x.json", "--gates", "none.json"), "error: gates 'none.json' cannot be read"),
        (
            ("plan", "-o", "x.json", "--arm", "plain=prompt_lookup"),
            "error: 'arm' must leave this name to plain decoding",
        ),
        (
            ("plan", "-o", "x.json", "--arm", "a\udcff=prompt_lookup"),
            "error: 'arm' must be Unicode text (got 'a\\udcff=",
        ),
        (
            ("plan", "-o", "x.json", "--temperature", "1", "--seed", "-1"),
            "error: 'seeds' must be different integers from 0",
        ),
        (
            ("plan", "-o", "x.json", "--temperature", "1", "--seed", "5", "--seed", "5"),
            "error: 'seeds' must be different",
        ),
        (("plan", "-o", "x.json", "--top-k", "5"), "error: 'sampling' needs a temperature above 0"),
    ],
)
def test_a_mistake_is_one_readable_line(compare, model, tmp_path, monkeypatch, arguments, told):
    monkeypatch.chdir(tmp_path)
    target = ("--target", model) if arguments[0] == "plan" else ()
    code, out, err = compare(*arguments, *target)
    assert (code, out) == (2, "")
    assert err.startswith(told)
    assert list(tmp_path.iterdir()) == []


def test_a_corpus_that_is_no_json_is_told_by_its_line(compare, model, tmp_path):
    """Before anything is planned."""
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"prompt": "a"}\nprompt: b\n')
    code, out, err = compare("plan", "-o", tmp_path / "plan.json", "--target", model, "--workload", prompts)
    assert (code, out) == (2, "")
    assert err.startswith("error: mine.jsonl, line 2: is not JSON")
    assert [file.name for file in tmp_path.iterdir()] == ["mine.jsonl"]


def test_results_of_another_version_are_neither_read_nor_written(compare, model, tmp_path):
    """Prevents lines of two formats in one file, and figures that are read by guess."""
    plan, results = tmp_path / "plan.json", tmp_path / "plan.jsonl"
    compare("plan", "-o", plan, "--target", model, *SMALL)
    assert compare("run", plan)[0] == 0
    results.write_text(results.read_text().replace(f'"format": {FORMAT}}}\n', '"format": 99}\n', 1))
    before = results.read_bytes()
    for arguments in (("run", plan), ("report", results)):
        code, out, err = compare(*arguments)
        assert (code, out) == (2, "")
        assert f"results 'plan.jsonl', line 1: has format 99; this specframe reads and writes {FORMAT}; read it" in err
    assert results.read_bytes() == before


def test_a_full_disk_is_one_readable_line_and_no_lost_request(compare, model, tmp_path):
    """What was finished stays, and the same command goes on when there is room."""
    plan, results = tmp_path / "plan.json", tmp_path / "plan.jsonl"
    compare("plan", "-o", plan, "--target", model, *SMALL)
    compare("run", plan, "-o", tmp_path / "whole.jsonl")
    size = (tmp_path / "whole.jsonl").stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 400, limit[1]))
    try:
        code, out, err = compare("run", plan)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert (code, out) == (2, "")
    assert "error: results 'plan.jsonl' cannot be written: File too large; what is finished is in the file" in err
    assert "Traceback" not in err
    done = [record.key for record in read_results(results).requests]
    assert 0 < len(done) < 4
    assert compare("run", plan)[0] == 0
    assert [record.key for record in read_results(results).requests][: len(done)] == done
    assert len(read_results(results).requests) == 4


def test_an_interrupt_says_how_to_go_on(compare, model, tmp_path, monkeypatch):
    """Exit status 130, what is finished kept, and the same command ends the work."""
    from specframe.bench import run as running

    plan, results = tmp_path / "plan.json", tmp_path / "out.jsonl"
    compare("plan", "-o", plan, "--target", model, *SMALL)

    class Interrupted(running.Measurer):
        num_left = 4  # two of them warm up

        def measure(self, *arguments, **settings):
            if not Interrupted.num_left:
                raise KeyboardInterrupt
            Interrupted.num_left -= 1
            return super().measure(*arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(running, "Measurer", Interrupted)
        code, _, err = compare("run", plan, "-o", results)
    assert code == 130
    assert "interrupted; what is finished is in" in err
    assert len(read_results(results).requests) == 2
    assert compare("run", plan, "-o", results)[0] == 0
    assert len(read_results(results).requests) == 4


def test_the_demo_keeps_its_plan_beside_its_results(compare, model, tmp_path, monkeypatch):
    """A run of the demo that was interrupted goes on with the plan that it began with."""
    arms = {"plain": "none", "lookup": "prompt_lookup"}
    small = planning.draw_up(
        arms, Corpus(("chat",), limit=1), model=str(model), max_new_tokens=4, repeats=1, weighs_arms=False
    )
    monkeypatch.setattr(planning, "demo_plan", lambda: small)
    monkeypatch.chdir(tmp_path)
    assert compare("run", "--demo")[0] == 0
    assert {file.name for file in tmp_path.iterdir()} == {
        "compare-demo.plan.json",
        "compare-demo.jsonl",
        "compare-demo",
    }
    lines = [json.loads(line) for line in (tmp_path / "compare-demo.jsonl").read_text(encoding="utf-8").splitlines()]
    plain, lookup = (
        next(line for line in lines if line["line"] == "request" and line["arm"] == arm) for arm in ("plain", "lookup")
    )
    page = PageReader((tmp_path / "compare-demo" / "index.html").read_text(encoding="utf-8"))
    ((name, equal, *_, total, p10, decoding, first, per_call, _),) = page.numbers("arms")
    assert (name, equal, total, p10) == ("lookup", "1/1", *[plain["end_to_end_s"] / lookup["end_to_end_s"]] * 2)
    assert decoding == pytest.approx(plain["decode_s"] / lookup["decode_s"])
    assert first == plain["first_token_s"] / lookup["first_token_s"]
    if lookup["positions"]:
        assert per_call == len(lookup["token_ids"]) / lookup["num_target_calls"]
    monkeypatch.setattr(planning, "demo_plan", None)
    assert compare("run", "--demo")[0] == 0


def test_a_demo_that_cannot_go_on_says_how_to_begin_anew(compare, tmp_path, monkeypatch):
    """Files of an earlier version, or of another machine."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "compare-demo.plan.json").write_text('{"digest": "x", "plan": {"format": 0}}')
    code, _, err = compare("run", "--demo")
    assert code == 2
    assert "to begin the demo anew, delete compare-demo.plan.json and compare-demo.jsonl" in err


def test_a_demo_without_a_place_for_its_page_is_not_begun(compare, tmp_path, monkeypatch):
    """Prevents minutes of work whose page cannot be written at the end."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("text")
    code, _, err = compare("run", "--demo", "-o", "mine.jsonl")
    assert code == 2
    assert err.startswith("error: 'output' must leave its name without the ending to the report's folder (got 'mine')")
    assert [file.name for file in tmp_path.iterdir()] == ["mine"]
    assert folder_of(Path("a/mine.jsonl")) == Path("a/mine")
    assert folder_of(Path("a/mine")) == Path("a/mine-report")


def test_block_and_sampling_hold_for_all_arms(compare, model, tmp_path):
    """In blocks, in bfloat16, and with a seed: what is drafted is what plain decoding says; entropies are kept if asked for."""
    plan = tmp_path / "plan.json"
    arms = ("--arm", "draft=draft.toml", "--arm", "transformers", "--dtype", "bfloat16", "--kernel", "block:4")
    (tmp_path / "draft.toml").write_text(
        f'[length]\nmax_tokens = 2\n[[drafters]]\nuse = "draft_model"\noptions = {{ model = "{model}" }}\n'
    )
    arms = (*arms[:1], f"draft={tmp_path / 'draft.toml'}", *arms[2:])
    sampling = ("--temperature", 0.8, "--seed", 5, "--seed", 6, "--entropies")
    assert compare("plan", "-o", plan, "--target", model, *arms, *sampling, *SMALL, "--repeats", 2)[0] == 0
    code, _, err = compare("run", plan)
    assert code == 0, err
    found = read_results(tmp_path / "plan.jsonl").requests
    own = [record for record in found if record.arm != "transformers"]
    assert {record.kernel for record in own} == {"block:4"}
    texts = {}
    for record in own:
        texts.setdefault((record.index, record.seed), set()).add(record.token_ids)
    assert len(texts) == 4
    assert all(len(outputs) == 1 for outputs in texts.values())
    drafted = [record.drafters["draft_model"] for record in own if record.arm == "draft"]
    assert all(len(stats.entropies) == stats.num_evaluated > 0 for stats in drafted)
    assert {record.seed for record in found} == {5, 6}


@pytest.mark.real_model
def test_the_real_target_says_the_same_in_every_arm(compare, tmp_path):
    """Prompt lookup, transformers, and transformers' lookup, on the demo model."""
    plan = tmp_path / "plan.json"
    arms = ("--arm", "prompt_lookup@adaptive", "--arm", "transformers", "--arm", "transformers-lookup:4")
    sizes = ("--workload", "core", "--limit", 1, "--max-new-tokens", 8, "--repeats", 1, "--no-memory")
    assert compare("plan", "-o", plan, "--dtype", "float32", *arms, *sizes)[0] == 0
    code, out, err = compare("run", plan)
    assert code == 0, err
    assert "20 of 20 requests are done" in out
    assert out.count("matched 4/4") == 8
