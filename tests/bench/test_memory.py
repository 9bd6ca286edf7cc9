"""Memory of arms and of a while: measured in processes of their own, and as the system counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from specframe import LoadError
from specframe.bench import memory
from specframe.bench.memory import measure_apart
from specframe.strategy import shipped


def test_an_arm_is_measured_in_a_process_of_its_own(model):
    """What loading takes, in seconds and bytes; a process that fails says why."""
    found = measure_apart(str(model), "prompt_lookup", dtype="float32", max_new_tokens=4)
    assert found["target_load_s"] > found["drafters_load_s"] > 0
    assert 0 < found["artifact"] < found["deduplicated"] <= sum(found["logical"].values()) < found["max_resident"]
    assert set(found["logical"]) == {"target weights", "target prepacked", "target cache"}
    assert found["unknown"] == ["prompt_lookup", "prompt_lookup#2"]
    marks = [mark["what"] for mark in found["timeline"]]
    assert marks == ["libraries imported", "target loaded", "drafters made", "prompt read", "text generated", "closed"]
    assert all(2**25 < mark["resident"] <= mark["peak"] <= found["peak_resident"] for mark in found["timeline"])
    assert found["peak_resident"] <= 1.05 * found["max_resident"]  # systems count a little behind
    with pytest.raises(
        LoadError, match=r"arm 'none' could not be measured in a process of its own: .*invalid int value"
    ):
        measure_apart(str(model), "none", max_new_tokens="few")


TIMELINE = """
import time
from specframe.bench.memory import INTERVAL_S, Timeline
timeline = Timeline()
timeline.mark("begun")
block = bytearray(b"x") * (64 * 2**20)
time.sleep(10 * INTERVAL_S)
del block
timeline.mark("done")
timeline.mark("closed at once")
begun, done, closed = timeline.close()["timeline"]
assert done["peak"] > begun["resident"] + 48 * 2**20
assert closed["peak"] < begun["resident"] + 48 * 2**20
assert closed["resident"] > begun["resident"] // 2
"""


def test_a_timeline_tells_what_came_and_went_between_its_marks():
    """A draft's loading may make a peak that no mark stands at; and a mark that follows at once is no empty process."""
    subprocess.run([sys.executable, "-c", TIMELINE], check=True)


def test_without_a_name_every_strategy_is_measured(monkeypatch, capsys):
    """What the documentation shows of memory leaves none out, one that is added too."""
    asked = []
    monkeypatch.setattr(memory, "measure_apart", lambda model, spec, **settings: asked.append(spec))
    memory.main([])
    assert asked == ["none", *shipped()]
    assert "draft_model" in asked


def test_a_process_that_the_system_ended_is_told_by_its_signal(monkeypatch):
    """A machine whose memory is too small ends a process without a word."""
    ended = subprocess.CompletedProcess([], -9, "", "[0 s] loading")
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **settings: ended)
    with pytest.raises(LoadError, match="in a process of its own: it was ended by SIGKILL; SIGKILL may be"):
        measure_apart("demo", "none")


ORPHAN = """
import subprocess, sys, os, time
watching = "import sys; from specframe.bench.memory import _end_with; print(1, flush=True); _end_with(int(sys.argv[1]))"
subprocess.Popen([sys.executable, "-c", watching, str(os.getpid())])
time.sleep(600)
"""


def test_a_process_does_not_outlive_the_run_that_was_killed():
    """It would take a core from the same run, started again."""
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"1\n"
        parent.kill()
        assert parent.stdout.read() == b""  # whose end comes when the last writer is gone


PEAKS = """
from specframe.bench.memory import reset_peak_resident, tracked_peak_resident
if reset_peak_resident():
    before = tracked_peak_resident()
    block = bytearray(b"x") * (64 * 2**20)
    del block
    assert tracked_peak_resident() > before + 48 * 2**20
    assert reset_peak_resident()
    assert tracked_peak_resident() < before + 48 * 2**20
"""


def test_the_peak_of_a_while_is_the_systems():
    """What was resident before does not count, what came and went does. In a process without memory to use again."""
    subprocess.run([sys.executable, "-c", PEAKS], check=True)
