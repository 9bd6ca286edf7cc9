"""A soak: many requests of mixed strategies from four threads; one in ten fails somewhere, one in ten is cancelled.

Every output is held against plain decoding, and nothing may grow: live tensors, their bytes, file handles, threads,
processes. CI runs a short form; with ``--full`` it is 2,000 requests, whose counts are stored with ``--results``.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import threading
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import product
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from models import tiny_model

from specframe import Engine, Strategy, Stream, TransformersTarget, remote
from specframe.plugins import load
from specframe.remote import WorkerDrafter
from specframe.strategy import DrafterUse, Length
from specframe.testing import Fault, LogitsDrafter, RandomOffers, byte_tokenizer, failing
from specframe.testing.runs import quiet

NUM_THREADS, NUM_BATCHES = 4, 4
PROMPTS = ("the", "abc abc abc", "x", "to be or not to be or not")
SAMPLINGS = ({}, {"temperature": 0.8, "seed": 11}, {"temperature": 1.2, "seed": 5, "top_k": 20})
BUDGETS = (1, 6, 13)
CANCELS = ("close", "close elsewhere", "drop")


class Request(NamedTuple):
    """What is asked; a fault, a method and after how many calls of it, or None; how and after which piece it is cancelled."""

    prompt: str
    sampling: int
    budget: int
    strategy: str
    fault: tuple[str, int] | None
    cancel: tuple[str, int] | None


class Failures:
    """The faults of the requests that run in each thread: whoever is called asks whether this call is the one.

    A fault that finds no call in its own request, which may have no drafter or end too early, waits for a later one of the
    thread, so that as many happen as are planned.
    """

    ENDING = ("verify_linear", "prefill", "__call__")  # the criterion's
    METHODS = ("propose", "commit", "kill", *ENDING)

    def __init__(self) -> None:
        self._local = threading.local()
        self.happened: Counter[str] = Counter()

    def plan(self, fault: tuple[str, int] | None) -> None:
        """Say what fails in the calling thread."""
        if fault is not None:
            self._planned.append(fault)

    def into(self, part: Any, *methods: str) -> Any:
        """Return a part whose methods fail where it is planned."""
        return failing(
            part, *(Fault(method, lambda method=method: self._fail(method), persists=True) for method in methods)
        )

    def killing(self, worker: WorkerDrafter) -> Any:
        """Return a drafter whose process is killed where it is planned, as it is asked for a proposal."""

        def kill() -> None:
            if self._is_due("kill"):
                os.kill(worker.process.pid, signal.SIGKILL)

        return failing(worker, Fault("propose", kill, persists=True))

    def _fail(self, method: str) -> None:
        if self._is_due(method):
            raise RuntimeError(f"scripted failure of {method}")

    def _is_due(self, method: str) -> bool:
        if not self._planned or self._planned[0][0] != method:
            return False
        _, num_left = self._planned.popleft()
        if num_left:
            self._planned.appendleft((method, num_left - 1))
            return False
        self.happened[method] += 1
        return True

    @property
    def _planned(self) -> deque[tuple[str, int]]:
        if not hasattr(self._local, "planned"):
            self._local.planned = deque()
        return self._local.planned


class Level(NamedTuple):
    """What must not grow."""

    num_tensors: int
    tensor_bytes: int
    num_handles: int
    num_threads: int
    num_processes: int


def level() -> Level:
    """Return what there is now; tensors that were frozen before are not counted."""
    gc.collect()
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    process = psutil.Process()
    return Level(
        len(tensors), sum(storages.values()), process.num_fds(), process.num_threads(), len(process.children())
    )


def engines_on(target: TransformersTarget, failures: Failures) -> dict[str, Engine]:
    """Return an engine for each strategy, all on one target."""
    size = target.facts.vocab_size
    drawing = LogitsDrafter(lambda ids: [float((7 * token + ids[-1]) % 5) for token in range(size)], num_tokens=3)
    given: dict[str, dict[str, Any]] = {
        "none": {},
        "offers": {"offers": RandomOffers(seed=1)},
        "draws": {"draws": drawing},
        "both": {"offers": RandomOffers(seed=2), "draws": drawing},
    }
    open_session = target.open
    target.open = lambda *given, **options: failures.into(open_session(*given, **options), "prefill", "verify_linear")
    engines = {
        name: Engine(
            target,
            {who: failures.into(drafter, "propose", "commit") for who, drafter in drafters.items()},
            strategy=Strategy(length=Length("adaptive" if name == "both" else "fixed", 4)),
        )
        for name, drafters in given.items()
    }
    installed = {name for plugin in load().all for name in plugin.drafters}
    for name, use in {
        "prompt_lookup": DrafterUse("prompt_lookup"),
        "draft_model": DrafterUse("draft_model", {"layers": 1}),
        "worker": DrafterUse("prompt_lookup", budget_ms=60_000, worker=True),
    }.items():
        if use.use in installed:
            engine = engines[name] = Engine(target, strategy=Strategy(drafters=(use,), length=Length(max_tokens=4)))
            if use.worker:
                engine.drafters[use.use] = failures.killing(engine.drafters[use.use])
    return engines


class Soak:
    """Engines on one tiny target, and what plain decoding says."""

    def __init__(self) -> None:
        tokenizer = byte_tokenizer()
        model = tiny_model(vocab_size=len(tokenizer))
        self.failures, self.ends = Failures(), Counter[str]()
        self.engines = engines_on(TransformersTarget(model, tokenizer), self.failures)
        plain = Engine(TransformersTarget(model, tokenizer))
        self.plain = {
            (prompt, index, budget): plain.generate(prompt, max_new_tokens=budget, **SAMPLINGS[index])
            for prompt, index, budget in product(PROMPTS, range(len(SAMPLINGS)), BUDGETS)
        }

    def serve(self, request: Request) -> None:
        """Run a request and hold what comes of it against plain decoding."""
        full = self.plain[request.prompt, request.sampling, request.budget]
        self.failures.plan(request.fault)
        stream = self.engines[request.strategy].stream(
            request.prompt,
            max_new_tokens=request.budget,
            criterion=self.failures.into(lambda ids: False, "__call__"),
            **SAMPLINGS[request.sampling],
        )
        ids: list[int] = []
        try:
            for index, piece in enumerate(stream):
                ids += piece.token_ids
                if request.cancel is not None and request.cancel[1] == index:
                    if request.cancel[0] == "drop":
                        self.ends["dropped"] += 1
                        break
                    cancel(stream, elsewhere=request.cancel[0] == "close elsewhere")
            else:
                self.ends[stream.result.finish_reason] += 1
                assert stream.result.token_ids == tuple(ids)
                if stream.result.finish_reason != "cancelled":
                    assert (tuple(ids), stream.result.text) == (full.token_ids, full.text)
        except RuntimeError as error:  # a target's failure, or a GenerationError made of it
            if "scripted failure" not in str(error):
                raise
            self.ends["failed"] += 1
        assert tuple(ids) == full.token_ids[: len(ids)]

    def settle(self) -> None:
        """Bring every engine into one state: the caches hold a text of the same length, and the worker is back."""
        until = time.monotonic() + 60
        for engine in self.engines.values():
            while engine.generate(PROMPTS[-1], max_new_tokens=BUDGETS[-1]).events:
                assert time.monotonic() < until, "it did not come back"
                time.sleep(0.01)

    def close(self) -> None:
        """End every engine."""
        for engine in self.engines.values():
            engine.close()


def cancel(stream: Stream, *, elsewhere: bool) -> None:
    """Close a stream, from this thread or from another one."""
    if not elsewhere:
        return stream.close()
    thread = threading.Thread(target=stream.close)
    thread.start()
    return thread.join()


def make_requests(number: int, strategies: list[str]) -> list[Request]:
    """Return random requests: one in ten fails somewhere, another one in ten is cancelled."""
    source = random.Random(number)
    requests = []
    for _ in range(number):
        what = source.random()
        fault = (source.choice(Failures.METHODS), source.randrange(4)) if what < 0.1 else None
        cancel = (source.choice(CANCELS), source.randrange(3)) if 0.1 <= what < 0.2 else None
        budget = source.choice(BUDGETS) if cancel is None else BUDGETS[-1]  # which takes four rounds at least
        chosen = source.choice(PROMPTS), source.randrange(len(SAMPLINGS)), budget
        requests.append(Request(*chosen, source.choice(strategies), fault, cancel))
    return requests


@pytest.mark.timeout(0)
def test_soak(request, monkeypatch):
    """Prevents leaks, stuck locks and texts that another request's failure made different."""
    monkeypatch.setattr(remote, "FIRST_DELAY_S", 0.0)  # a killed worker is started again at once
    soak = Soak()
    number = 2000 if request.config.getoption("--full") else 120
    requests = make_requests(number, list(soak.engines))
    levels = []
    with quiet(), closing(soak), ThreadPoolExecutor(NUM_THREADS) as pool:
        for batch in range(NUM_BATCHES):
            list(pool.map(soak.serve, requests[batch::NUM_BATCHES]))
            soak.settle()
            levels.append(level())
    assert levels == [levels[0]] * NUM_BATCHES
    happened, ends = soak.failures.happened, soak.ends
    assert happened.total() > number / 20
    assert ends["cancelled"] + ends["dropped"] > number / 20
    assert ends["failed"] == sum(happened[method] for method in Failures.ENDING)
    path = request.config.getoption("--results")
    if path is not None:
        stored = {
            "requests": number,
            "threads": NUM_THREADS,
            "strategies": list(soak.engines),
            "faults": dict(sorted(happened.items())),
            "ends": dict(sorted(ends.items())),
            "level": levels[-1]._asdict(),
        }
        path.with_name("soak.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
