"""``specframe compare run`` killed at any moment and started again: no request is lost, and none is counted twice."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import warnings

import torch

from specframe.bench.plan import read_plan
from specframe.bench.results import read_results
from specframe.cli import main

NUM_KILLS = 8


def compare(*arguments):
    """Run ``specframe compare`` in this process; return its exit status."""
    sys.argv = ["specframe", "compare", *map(str, arguments)]
    try:
        main()
    except SystemExit as ended:
        return ended.code or 0
    return 0


def started(plan, results):
    """Start ``specframe compare run`` as a process of its own, without the seconds of another import of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which the child does not use
        child = os.fork()
    if child:
        return child
    try:
        torch.set_num_threads(1)  # the parent's threads are not in the child
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        os._exit(compare("run", plan, "-o", results))
    finally:
        os._exit(70)


def killed(child, results, num_bytes, seconds):
    """Kill a run so many seconds after its file passes a length; tell whether it was still running."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if results.exists() and results.stat().st_size > num_bytes:
            break
        time.sleep(0.0005)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def test_no_moment_is_a_bad_one_to_be_killed(model, tmp_path, monkeypatch, capfd):
    """SIGKILL at random moments while requests run and lines are written; the same command ends the work.

    Whatever the moments, all of this must hold. They are drawn from the first few requests after a run has begun to write.
    """
    monkeypatch.setattr(sys, "argv", sys.argv)
    plan, results, whole = tmp_path / "plan.json", tmp_path / "r.jsonl", tmp_path / "whole.jsonl"
    sizes = ("--workload", "chat", "--limit", 4, "--max-new-tokens", 8, "--repeats", 6, "--no-memory")
    assert compare("plan", "-o", plan, "--target", model, "--arm", "prompt_lookup", *sizes) == 0
    turns = [turn.key for turn in read_plan(plan).turns()]
    assert compare("run", plan, "-o", whole) == 0
    request_s = read_results(whole).requests[0].end_to_end_s

    draw, num_landed = random.Random(), 0
    while num_landed < NUM_KILLS:
        before = results.read_bytes() if results.exists() else b""
        was_running = killed(started(plan, results), results, len(before), draw.uniform(0, 8) * request_s)
        after = results.read_bytes()
        assert after.startswith(before[: before.rfind(b"\n") + 1])  # what is finished is never written again
        found = [record.key for record in read_results(results).requests] if b"\n" in after else []
        assert found == turns[: len(found)]
        if not was_running:  # a busy machine let it come to its end
            assert found == turns
            results.unlink()
        num_landed += was_running and 0 < len(found) < len(turns)

    capfd.readouterr()
    assert compare("run", plan, "-o", results, "--json") == 0
    assert json.loads(capfd.readouterr().out)["num_done"] == len(turns)
    ended, once = read_results(results), read_results(whole)
    assert [record.key for record in ended.requests] == turns
    assert [record.token_ids for record in ended.requests] == [record.token_ids for record in once.requests]
    sessions = [record.session for record in ended.requests]
    assert sessions == sorted(sessions)
    assert set(ended.arms) == set(once.arms)
