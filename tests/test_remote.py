"""Drafters in processes of their own: what they do there, dying and hanging included, costs speed and nothing else."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models import random_table
from workers import install

from specframe import (
    Commit,
    DrafterUse,
    DraftRequest,
    Engine,
    InvalidStrategy,
    Length,
    OverBudget,
    PluginError,
    SamplingPolicy,
    Strategy,
    TargetFacts,
    WorkerError,
    WorkerRestarting,
    load,
    plugins,
    remote,
)
from specframe.drafting import Terms
from specframe.messages import Channel
from specframe.testing import Adversary, Oracle, RandomOffers, certifier

SAMPLINGS = [{}, {"temperature": 0.9, "seed": 5}]
NUM_TOKENS = 14
PATIENCE_S = 20.0  # before a test gives up; nothing here takes a tenth of it


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory):
    """The scripted plugin, found by this process and by its workers."""
    folder = tmp_path_factory.mktemp("site")
    install(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield folder
    sys.modules.pop("scripted_plugin", None)


@pytest.fixture
def at_once(monkeypatch):
    """Processes are started again without a delay."""
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.0)


@pytest.fixture
def engines():
    """Make engines with the scripted drafter in a worker; they are closed, and nothing is left of them."""
    made = []

    def engine(*, budget_ms=PATIENCE_S * 1e3, strategy=None, target=None, others=(), name="scripted", **options):
        uses = [DrafterUse(f"d{index}") for index in range(len(others))]
        worker = DrafterUse(name, options=options, budget_ms=budget_ms, worker=True)
        chosen = Strategy(drafters=(*uses, worker), length=Length(max_tokens=3), **(strategy or {}))
        given = {f"d{index}": other for index, other in enumerate(others)}
        made.append(Engine(target if target is not None else random_table(), given, strategy=chosen, debug=True))
        return made[-1]

    yield engine
    processes = [worker.process for each in made for worker in each.drafters.values() if hasattr(worker, "process")]
    for each in made:
        each.close()
    assert all(has_ended(process.pid) for process in processes if process is not None)


def has_ended(pid):
    """Tell whether a process is gone; one that nobody waits for in this container is."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_for(condition):
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


def plain(num_tokens=NUM_TOKENS, **sampling):
    return Engine(random_table()).generate([1, 2], max_new_tokens=num_tokens, **sampling).token_ids


def worker_of(engine):
    return engine.drafters["scripted"]


def generate_until_back(engine, expected, **sampling):
    """Generate until the worker takes part again; every text is that of plain decoding."""
    until = time.monotonic() + PATIENCE_S
    while True:
        result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS, **sampling)
        assert result.token_ids == expected
        if not result.events:
            return result
        assert [event.message for event in result.events] == ["off for the rest of the request: WorkerRestarting"]
        assert time.monotonic() < until, "it did not come back"
        time.sleep(0.01)


def notes(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_worker_proposes_as_a_drafter_here_does(engines, sampling, verifier):
    """The same tokens are proposed, accepted and emitted; only the process is another one."""
    expected = plain(**sampling)
    here = Engine(
        random_table(),
        {"scripted": Oracle(expected)},
        strategy=Strategy(drafters=(DrafterUse("scripted"),), length=Length(max_tokens=3), verifier=verifier),
    ).generate([1, 2], max_new_tokens=NUM_TOKENS, **sampling)
    engine = engines(continuation=expected, strategy={"verifier": verifier})
    assert worker_of(engine).process.pid != os.getpid()
    for _ in range(2):
        result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS, **sampling)
        assert result.token_ids == here.token_ids
        assert result.events == ()
        counts = [(record.num_proposed, record.num_accepted) for record in result.records]
        assert counts == [(record.num_proposed, record.num_accepted) for record in here.records]


def test_a_worker_is_told_what_a_drafter_is_told(engines, tmp_path):
    """Facts, request, commits, and what others proposed before it in the round: its session follows the text."""
    path, target = tmp_path / "notes", random_table(stop_ids=[11])
    engine = engines(
        notes=str(path), target=target, others=[Adversary(lambda context, index: 1 if index < 2 else None)]
    )
    arguments = {"top_k": 5, "logit_bias": {3: 0.5}, "bad_words_ids": [[1, 2]], "temperature": 0.0, "stop_ids": [7]}
    result = engine.generate([1, 2], max_new_tokens=6, **arguments)
    engine.reset()
    engine.close()
    calls = notes(path)
    assert calls[0]["facts"] == {
        "vocab_size": 12, "context_limit": None, "speculation_limit": None, "dtype": "float64", "device": "cpu",
        "tokenizer": None, "identity": None, "views": None,
    }  # fmt: skip
    opened = calls[1]["request"]
    for part in ("prompt_ids=(1, 2)", "stop_ids=frozenset({7})", "top_k=5", "logit_bias=((3, 0.5),)", "((1, 2),)"):
        assert part in opened
    text, lengths = [], []
    for call in calls[2:]:
        if call["call"] == "commit":
            assert call["start_pos"] == len(text)
            text += call["ids"]
        elif call["call"] == "propose":
            assert call["context"][: len(text)] == text
            lengths.append(len(call["context"]) - len(text))
            assert 1 <= call["room"] <= 3 - lengths[-1]
    assert text == [1, 2, *result.token_ids]
    assert max(lengths) > 0
    assert [call["call"] for call in calls[-3:]] == ["close", "reset", "drafter_close"]


SESSION_FAULTS = {
    "raise": "switched off: propose raised WorkerError",
    "base": "switched off: propose raised WorkerError",
    "system_exit": "switched off: propose raised WorkerError",
    "bad_id": "switched off: propose raised WorkerError",
    "draw": "switched off: propose raised WorkerError",
    "exhausted": "off for the rest of the request: DrafterExhausted",
}


@pytest.mark.parametrize("fault", SESSION_FAULTS)
def test_a_failure_ends_the_session_and_not_the_process(engines, fault, caplog):
    """What was offered before it is verified; the next request has the drafter again, in the same process."""
    sampling = SAMPLINGS[len(fault) % 2]
    expected = plain(**sampling)
    engine = engines(continuation=expected, fault=fault, at=1)
    process = worker_of(engine).process
    with caplog.at_level(logging.INFO, logger="specframe"):
        result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS, **sampling)
    assert result.token_ids == expected
    assert [record.num_accepted for record in result.records[:4]] == [0, 3, 3, 0]
    assert [event[:3] for event in result.events] == [(2, "scripted", SESSION_FAULTS[fault])]
    assert "what it says" not in repr(result.events)
    assert engine.generate([1, 2], max_new_tokens=3, **sampling).token_ids == expected[:3]
    assert worker_of(engine).process is process


@pytest.mark.parametrize("method", ["open", "commit", "close"])
def test_a_failure_between_proposals_is_told_with_the_next(engines, method, tmp_path):
    """Nobody waits for these calls, so what they raise comes later; a session that ended has nothing to tell."""
    expected = plain()
    engine = engines(continuation=expected, fault="raise", method=method, once=str(tmp_path / "once"))
    result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS)
    assert result.token_ids == expected
    told = [(1, "scripted", "switched off: propose raised WorkerError")] if method != "close" else []
    assert [event[:3] for event in result.events] == told
    assert result.stats.num_proposed == (0 if told else 9)
    assert engine.generate([1, 2], max_new_tokens=NUM_TOKENS).events == ()


DEATHS = ("exit", "kill", "close_connection", "garbage", "too_long", "future", "bad_answer")
HANGS = ("sleep", "spin", "stop", "lock", "deaf", "half", "flood")


@pytest.mark.parametrize("fault", [*DEATHS, *HANGS])
def test_a_process_that_dies_or_hangs_costs_speed_only(engines, fault, tmp_path, at_once):
    """The text is that of plain decoding, the process is ended, and another one takes its place in a later request."""
    expected, is_hang = plain(), fault in HANGS
    engine = engines(continuation=expected, fault=fault, at=int(not is_hang), once=str(tmp_path / "once"))
    process = worker_of(engine).process
    worker_of(engine).budget_s = 0.2 if is_hang else PATIENCE_S
    result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS)
    assert result.token_ids == expected
    told = "took longer than its budget" if is_hang else "raised WorkerError"
    assert [event[:3] for event in result.events] == [(2 - is_hang, "scripted", f"switched off: propose {told}")]
    assert result.stats.num_accepted == (0 if is_hang else 3)
    assert has_ended(process.pid)
    worker_of(engine).budget_s = PATIENCE_S
    back = generate_until_back(engine, expected)
    assert back.stats.num_accepted == 9
    assert worker_of(engine).process.pid != process.pid


@pytest.mark.parametrize(("at_round", "sampling"), [(1, SAMPLINGS[0]), (2, SAMPLINGS[1]), (3, SAMPLINGS[0])])
def test_a_worker_that_is_killed_from_outside_leaves_the_text_alone(engines, at_round, sampling):
    """In the middle of any round, between what another drafter proposed and its own turn."""
    expected = plain(**sampling)

    class Killer(RandomOffers):
        def _proposer(self, request):
            inner = super()._proposer(request)

            def propose(round):
                if round.index == at_round:
                    os.kill(worker_of(engine).process.pid, signal.SIGKILL)
                inner(round)

            return propose

    engine = engines(continuation=expected, others=[Killer(seed=1)])
    result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS, **sampling)
    assert result.token_ids == expected
    assert [event.drafter for event in result.events] == ["scripted"]


def test_a_stale_answer_is_dropped(engines, tmp_path):
    """An answer to an earlier message would be proposed in the wrong place."""
    expected = plain()
    engine = engines(continuation=expected, fault="stale")
    result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS)
    assert (result.token_ids, result.events) == (expected, ())
    assert result.stats.num_accepted == result.stats.num_proposed


def test_an_answer_that_an_interrupt_left_behind_is_dropped(engines, tmp_path):
    """Ctrl-C while the worker is asked: its answer comes in the next request, which asked for something else."""
    expected = plain()
    engine = engines(continuation=expected, fault="nap", once=str(tmp_path / "once"))
    process = worker_of(engine).process

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    stream = engine.stream([1, 2], max_new_tokens=NUM_TOKENS)
    next(stream)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            next(stream)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    result = engine.generate([1, 2], max_new_tokens=NUM_TOKENS)
    assert (result.token_ids, result.events) == (expected, ())
    assert result.stats.num_accepted == result.stats.num_proposed
    assert worker_of(engine).process is process


def test_a_worker_that_does_not_read_is_given_up(engines, at_once):
    """What is sent to it must not be waited for: a prompt may be longer than what the system keeps for it."""
    table = random_table()
    engine = engines(fault="sleep", method="open", budget_ms=200, target=table)
    prompt = [1, 2] * 100_000
    result = engine.generate(prompt, max_new_tokens=4)
    assert result.token_ids == tuple(table.greedy(prompt, 4))
    (event,) = result.events
    assert event.message in (
        "switched off: open raised WorkerError",
        "switched off: commit raised WorkerError",
        "switched off: propose took longer than its budget",
    )


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def start_of(**options):
    facts = {"vocab_size": 12, "stop_ids": [], "dtype": "float64", "device": "cpu"}
    where = {"plugin": "scripted", "distribution": "scripted-dist", "drafter": "scripted"}
    return {**where, "options": options, "facts": {**facts, "context_limit": None, "speculation_limit": None}}


class Asked:
    """A round and a request, as far as a worker's session reads them."""

    def __init__(self):
        self.request = DraftRequest((1, 2), TargetFacts(12), SamplingPolicy(), frozenset())
        self.index, self.room, self.context, self.offered = 1, 3, (1, 2), []

    def offer(self, token):
        self.offered.append(token)
        return True


def ask(drafter):
    """Open a session, ask it once, close it; return what it offered."""
    asked = Asked()
    session = drafter.open(asked.request)
    try:
        session.commit(Commit((1, 2), 0))
        session.propose(asked)
    finally:
        session.close()
    return asked.offered


def test_a_process_that_fails_again_and_again_is_started_less_and_less_often(tmp_path):
    """A plugin that crashes at once must not cost a start for every request; one that is well again is trusted again."""
    clock, once = Clock(), tmp_path / "once"
    drafter = remote.WorkerDrafter(
        "scripted", start_of(fault="exit", once=str(once), continuation=[5, 6]), clock=clock, budget_s=PATIENCE_S
    )
    drafter.start()
    delays = []
    for _ in range(7):
        once.unlink(missing_ok=True)
        with pytest.raises(
            WorkerError, match=r"worker process of drafter 'scripted' failed: it ended \(exit status 3\)"
        ):
            ask(drafter)
        delay = 0
        while True:
            clock.now += 1
            delay += 1
            try:
                drafter.open(Asked().request)
            except WorkerRestarting as error:
                if "starts again in" in str(error):
                    continue
            break
        delays.append(delay)
        wait_for_ready(drafter)
    assert delays == [1, 2, 4, 8, 16, 32, 60]
    assert ask(drafter) == [5, 6]  # it has made the file, and is well
    once.unlink()
    with pytest.raises(WorkerError):
        ask(drafter)
    with pytest.raises(WorkerRestarting, match="starts again in 1 s"):
        drafter.open(Asked().request)
    drafter.close()


def wait_for_ready(drafter):
    def is_ready():
        try:
            drafter.open(Asked().request)
        except WorkerRestarting as error:
            return "its worker is starting" not in str(error)
        return True

    wait_for(is_ready)


def test_a_process_that_does_not_become_ready_is_ended(monkeypatch):
    """A drafter that loads for ever must end sometime, at the engine's start and at a later one."""
    monkeypatch.setattr(remote, "START_S", 1.0)
    drafter = remote.WorkerDrafter("scripted", start_of(fault="sleep", method="make"))
    with pytest.raises(WorkerError, match="it was not ready within 1 s"):
        drafter.start()
    assert drafter.process is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"fault": "raise", "method": "make"},
            "did not start in its worker: .*: ValueError: what it says about the prompt",
        ),
        ({"fault": "exit", "method": "make"}, r"did not start .*: it ended \(exit status 3\) before it was ready"),
        ({"fault": "kill", "method": "make"}, r"did not start .*: it ended \(exit status -9\) before it was ready"),
        ({"fault": "garbage", "method": "make"}, "did not start .*: a message must be JSON"),
        ({"fault": "bad_answer", "method": "make"}, "did not start .*: a worker must say first that it is ready"),
    ],
)
def test_a_worker_that_does_not_start_is_told_when_the_engine_is_made(engines, options, message):
    """With the plugin, its distribution and the cause, as for a drafter that is made here."""
    with pytest.raises(PluginError, match=f"drafter 'scripted' of plugin 'scripted' of scripted-dist 1.0 {message}"):
        engines(**options)


def test_a_plugin_that_only_this_process_has_is_told():
    """A plugin that was made by hand is not to be found by another process."""
    loaded = plugins.load()
    loaded.owner(loaded.drafter("scripted")).name = "another"
    with pytest.raises(PluginError, match=r"did not start .*UnknownName: unknown drafter 'scripted'; installed: none"):
        Engine(random_table(), strategy=Strategy(drafters=(DrafterUse("scripted", worker=True),)), plugins=loaded)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("draws", "it draws, and what it would draw from does not pass between processes"),
        ("reads_weights", "it reads the target's weights"),
        ("reads_features", "it reads the target's hidden states"),
        ("reads_grammar", "it reads the request's grammar"),
        ("needs_tokenizer", "it needs the target's tokenizer"),
    ],
)
def test_what_a_worker_cannot_do_is_refused_with_the_reason(name, reason):
    """A drafter without what it needs would propose nothing, or fail in every request."""
    use = DrafterUse(name, worker=True)
    with pytest.raises(InvalidStrategy) as caught:
        remote.check_worker(use, plugins.load().drafter(name).needs)
    assert str(caught.value) == f"drafter '{name}' cannot run in a worker: {reason}; leave 'worker' out"


@pytest.mark.parametrize(("name", "options"), [("draft_model", {"layers": 1}), ("grammar", {})])
def test_the_first_party_drafters_that_cannot_are_refused(name, options):
    """Before a model is loaded, or a process started."""
    with pytest.raises(InvalidStrategy, match=f"drafter '{name}' cannot run in a worker"):
        load("demo", strategy=Strategy(drafters=(DrafterUse(name, options, worker=True),)))


def test_prompt_lookup_runs_in_a_worker():
    """The one first-party drafter that needs nothing but ids."""
    table = random_table(order=1, seed=3)
    prompt = [1, 2, 3, 4] * 4
    use = DrafterUse("prompt_lookup", budget_ms=PATIENCE_S * 1e3, worker=True)
    with Engine(table, strategy=Strategy(drafters=(use,))) as engine:
        here = Engine(random_table(order=1, seed=3), strategy="prompt_lookup").generate(prompt, max_new_tokens=40)
        result = engine.generate(prompt, max_new_tokens=40)
    assert result.token_ids == here.token_ids
    assert result.stats.num_accepted > 10
    assert result.events == ()


def test_a_given_drafter_cannot_run_in_a_worker():
    """It is an object of this process."""
    strategy = Strategy(drafters=(DrafterUse("mine", worker=True),))
    with pytest.raises(InvalidStrategy, match="drafter 'mine' was given as an object of this process"):
        Engine(random_table(), {"mine": RandomOffers(seed=1)}, strategy=strategy)


@pytest.mark.parametrize("options", [{"notes": Path("x")}, {"continuation": {1, 2}}])
def test_options_of_a_worker_are_plain_data(engines, options):
    """What JSON cannot hold would arrive as something else."""
    with pytest.raises(InvalidStrategy):
        engines(**options)


def test_unknown_options_are_told_as_ever(engines):
    """By the process that reads the strategy, with the key."""
    with pytest.raises(InvalidStrategy, match="unknown key 'fualt'"):
        engines(fualt="none")


def test_what_a_plugin_prints_is_not_output(engines, capfd):
    """A line of a plugin's in the middle of ``--json`` would break whoever reads it."""
    engine = engines(fault="print")
    engine.generate([1, 2], max_new_tokens=4)
    engine.close()
    out, err = capfd.readouterr()
    assert out == ""
    assert "to standard output" in err


def test_an_engine_that_is_forgotten_leaves_no_process(engines):
    """Nobody calls ``close`` in a notebook."""
    engine = Engine(random_table(), strategy=Strategy(drafters=(DrafterUse("scripted", worker=True),)))
    pid = worker_of(engine).process.pid
    assert not has_ended(pid)
    del engine
    gc.collect()
    assert has_ended(pid)


def test_a_worker_that_does_not_close_is_ended(engines, monkeypatch):
    """Closing an engine must end."""
    monkeypatch.setattr(remote, "CLOSE_S", 0.1)
    engine = engines(fault="spin", method="drafter_close")
    pid = worker_of(engine).process.pid
    engine.close()
    assert has_ended(pid)


def test_what_a_worker_started_ends_with_it(engines, tmp_path, monkeypatch):
    """A drafter may run a server of its own; killed alone, it would leave that behind."""
    monkeypatch.setattr(remote, "CLOSE_S", 0.1)
    path = tmp_path / "child"
    monkeypatch.setenv("CHILD_FILE", str(path))
    engine = engines(fault="child", method="reset")
    engine.reset()
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
    engine.close()
    wait_for(lambda: has_ended(int(path.read_text())))


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_worker_goes_first_where_memory_ends(engines):
    """A leak in a drafter must not take the process with it that decodes."""
    pid = worker_of(engines()).process.pid
    assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"


def test_a_worker_loads_no_model_library(engines):
    """It would take seconds, and more memory than everything else in it."""
    pid = worker_of(engines()).process.pid
    loaded = {mapped.path for mapped in psutil.Process(pid).memory_maps()}
    assert not [path for path in loaded if "libtorch" in path or "numpy" in path]


SCRIPT = """
import os, sys, time
from specframe import remote
sys.path[:0] = {path!r}
drafter = remote.WorkerDrafter("scripted", {start!r}, budget_s=600)
drafter.start()
"""


def script(tmp_path, code, installed, **options):
    """Run a program that starts a worker, without torch; return its process."""
    head = SCRIPT.format(path=[str(installed), str(Path(__file__).parent)], start=start_of(**options))
    return subprocess.Popen([sys.executable, "-c", head + code], stdout=subprocess.PIPE, text=True)


ASK = """
from specframe.proposal import Commit, DraftRequest, TargetFacts
from specframe.sampling import SamplingPolicy
def ask():
    session = drafter.open(DraftRequest((1, 2), TargetFacts(12), SamplingPolicy(), frozenset()))
    session.commit(Commit((1, 2), 0))
    class Round:
        index, room, context = 1, 3, (1, 2)
        def offer(self, token):
            return True
    session.propose(Round())
"""


@pytest.mark.parametrize("fault", ["none", "spin", "lock", "deaf", "child"])
def test_no_worker_outlives_a_killed_parent(tmp_path, installed, fault, monkeypatch):
    """Idle, computing, in an extension module that holds the interpreter's lock, deaf to signals: the kernel ends it."""
    child = tmp_path / "child"
    monkeypatch.setenv("CHILD_FILE", str(child))
    path = tmp_path / "notes"
    code = ASK + "print(drafter.process.pid, flush=True)\nask()\ntime.sleep(600)\n"
    with script(tmp_path, code, installed, fault=fault, notes=str(path)) as parent:
        pid = int(parent.stdout.readline())
        wait_for(lambda: path.exists() and "propose" in path.read_text())
        if fault == "child":
            wait_for(lambda: child.exists() and child.read_text().endswith("\n"))
        assert not has_ended(pid)
        parent.kill()
        wait_for(lambda: has_ended(pid))
        if fault == "child":
            wait_for(lambda: has_ended(int(child.read_text())))


def test_a_worker_ends_with_its_parent(tmp_path, installed):
    """A program that ends without closing anything, by itself or by an exception."""
    for end in ("raise SystemExit(0)", "os._exit(0)"):
        with script(tmp_path, f"print(drafter.process.pid, flush=True)\n{end}\n", installed) as parent:
            pid = int(parent.stdout.readline())
            parent.wait(PATIENCE_S)
            wait_for(lambda pid=pid: has_ended(pid))


def test_a_forked_process_gets_a_worker_of_its_own(tmp_path, installed):
    """Two processes that speak through one connection would read each other's answers."""
    code = ASK + (
        "mine = drafter.process.pid\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    while True:\n"
        "        try:\n"
        "            ask()\n"
        "            break\n"
        "        except remote.WorkerRestarting:\n"
        "            time.sleep(0.01)\n"
        "    print(drafter.process.pid != mine, flush=True)\n"
        "    drafter.close()\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "ask()\n"
        "print(drafter.process.pid == mine, flush=True)\n"
        "drafter.close()\n"
    )
    with script(tmp_path, code, installed, continuation=[5]) as parent:
        assert parent.stdout.read().split() == ["True", "True"]
        assert parent.wait(PATIENCE_S) == 0


def test_a_process_that_died_has_forgotten_everything(engines, at_once):
    """An engine is reset between benchmarks; that must not fail because of a drafter that is not there."""
    expected = plain()
    engine = engines(continuation=expected)
    os.kill(worker_of(engine).process.pid, signal.SIGKILL)
    worker_of(engine).process._popen.wait()
    engine.reset()
    assert generate_until_back(engine, expected).stats.num_accepted == 9


def test_ctrl_c_is_the_cores_alone(engines):
    """A terminal sends it to every process of the program; a worker that died of it would be missed afterwards."""
    pid = worker_of(engines()).process.pid
    assert os.getpgid(pid) == pid != os.getpgid(0)


def test_an_answer_that_is_late_ends_the_process():
    """A hang is told from a long computation by nothing but time."""
    drafter = remote.WorkerDrafter("scripted", start_of(fault="sleep"), budget_s=0.2)
    drafter.start()
    with pytest.raises(OverBudget, match=r"no answer within the 200 ms that 'budget_ms' allows, and was ended"):
        ask(drafter)
    assert drafter.process is None


def test_a_certificate_is_made_without_processes(monkeypatch):
    """It takes hundreds of drafters; where one runs changes nothing of what it proposes."""
    subjects = []
    monkeypatch.setattr(certifier, "_certify", lambda subject, *_: subjects.append(subject))
    certifier.certify_strategy(Strategy(drafters=(DrafterUse("scripted", worker=True, budget_ms=1e-6),)))
    (drafter,) = subjects[0].make(random_table()).values()
    assert type(drafter).__name__ == "Scripted"
    assert subjects[0].terms == {"scripted": Terms(budget_s=None, may_draw=False)}


class Speaking:
    """A worker's process whose answers are written before it is asked."""

    def __init__(self, said):
        ours, theirs = socket.socketpair()
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        self.channel, self.is_ours, self.is_killed = Channel(ours), True, False
        self._ends = ours, theirs

    def status(self, within_s):
        return None

    def kill(self):
        self.is_killed = True
        for end in self._ends:
            end.close()


def said(**fields):
    data = json.dumps({"request": 0, "sequence": 1, "epoch": 0, "ids": [1], **fields}).encode()
    return len(data).to_bytes(4, "big") + data


fields = st.fixed_dictionaries(
    {},
    optional={
        "request": st.integers(-1, 2),
        "sequence": st.integers(-1, 3),
        "epoch": st.integers(-1, 1),
        "ids": st.lists(st.integers(-3, 20), max_size=5) | st.none() | st.text(max_size=3),
        "error": st.text(max_size=5) | st.none() | st.integers(),
        "is_exhausted": st.booleans() | st.none(),
        "law": st.floats(),
    },
)


@given(st.lists(fields.map(lambda given: said(**given)) | st.binary(max_size=12), max_size=5))
@settings(max_examples=100)
def test_whatever_a_worker_says_there_is_an_answer_or_an_error_of_ours(messages):
    """Any sequence of answers, right ones of other messages, wrong ones, and bytes; what is no answer ends the process."""
    drafter = remote.WorkerDrafter("said", {}, budget_s=5)
    drafter.process = process = Speaking(b"".join(messages))
    try:
        answer = drafter.ask("propose")
    except WorkerError:
        assert process.is_killed
        assert drafter.process is None
    else:
        assert answer.tag == (0, 1, 0)
        assert not process.is_killed
        process.kill()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), True, "20"])
def test_a_budget_is_a_number_of_milliseconds(value):
    """A budget that never ends, or has ended already, is a mistake."""
    with pytest.raises(InvalidStrategy, match="'budget_ms' must be a number > 0, in milliseconds"):
        DrafterUse("x", budget_ms=value)


def test_the_strategy_file_says_it(tmp_path):
    """Both keys stand where the drafter is named."""
    path = tmp_path / "mine.toml"
    path.write_text('[[drafters]]\nuse = "prompt_lookup"\nworker = true\nbudget_ms = 20\n')
    assert Strategy.from_toml(path).drafters == (DrafterUse("prompt_lookup", budget_ms=20, worker=True),)
    path.write_text('[[drafters]]\nuse = "prompt_lookup"\nworker = "yes"\n')
    with pytest.raises(InvalidStrategy, match=r"worker.* must be of type bool"):
        Strategy.from_toml(path)
    path.write_text('[[drafters]]\nuse = "prompt_lookup"\nbudget_ms = -3\n')
    with pytest.raises(InvalidStrategy, match=r"'budget_ms' must be a number > 0"):
        Strategy.from_toml(path)
