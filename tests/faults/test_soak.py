"""A soak: many requests of mixed strategies from four threads, some of which fail or are cancelled.

Every output is held against plain decoding, and nothing may grow: live tensors, their bytes, file handles, threads,
processes. CI runs a short form; with ``--full`` it is 2,000 requests, whose counts are stored with ``--results``.
"""

from __future__ import annotations

import gc
import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, NamedTuple

import psutil
import pytest
import torch
from models import tiny_model

from specframe import Engine, Strategy, Stream, TransformersTarget
from specframe.plugins import load
from specframe.strategy import DrafterUse, Length
from specframe.testing import Fault, LogitsDrafter, RandomOffers, byte_tokenizer, failing
from specframe.testing.runs import quiet

NUM_THREADS, NUM_BATCHES = 4, 4
PROMPTS = ("the", "abc abc abc", "x", "to be or not to be or not")
SAMPLINGS = ({}, {"temperature": 0.8, "seed": 11}, {"temperature": 1.2, "seed": 5, "top_k": 20})
BUDGETS = (1, 6, 13)
CANCELS = ("close", "close elsewhere", "drop")


class Request(NamedTuple):
    """What is asked; what of it fails, a method and its call, or None; how and after which piece it is cancelled, or None."""

    prompt: str
    sampling: int
    budget: int
    strategy: str
    fault: tuple[str, int] | None
    cancel: tuple[str, int] | None


class Failures:
    """The faults of the requests that run, one thread each: whoever is called asks whether this call is the one."""

    METHODS = ("propose", "commit", "verify_linear", "prefill", "__call__")

    def __init__(self) -> None:
        self._local = threading.local()
        self.happened: Counter[str] = Counter()

    def plan(self, fault: tuple[str, int] | None) -> None:
        """Say what fails in the calling thread's next request."""
        self._local.fault = fault

    def into(self, part: Any, *methods: str) -> Any:
        """Return a part whose methods fail where it is planned."""
        return failing(
            part, *(Fault(method, lambda method=method: self._ask(method), persists=True) for method in methods)
        )

    def _ask(self, method: str) -> None:
        planned, left = getattr(self._local, "fault", None) or (None, 0)
        if planned == method:
            self._local.fault = (planned, left - 1) if left else None
            if not left:
                self.happened[method] += 1
                raise RuntimeError(f"scripted failure of {method}")


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
    for name, options in (("prompt_lookup", {}), ("draft_model", {"layers": 1})):
        if name in installed:
            strategy = Strategy(drafters=(DrafterUse(name, options),), length=Length(max_tokens=4))
            engines[name] = Engine(target, strategy=strategy)
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
                        break
                    cancel(stream, elsewhere=request.cancel[0] == "close elsewhere")
            else:
                self.ends[stream.result.finish_reason] += 1
                assert stream.result.token_ids == tuple(ids)
                if stream.result.finish_reason != "cancelled":
                    assert (tuple(ids), stream.result.text) == (full.token_ids, full.text)
        except RuntimeError as error:  # a target's failure, or a GenerationError made of it
            if "scripted failure" not in str(error) or request.fault is None:
                raise
            self.ends["failed"] += 1
        assert tuple(ids) == full.token_ids[: len(ids)]

    def settle(self) -> None:
        """Bring every engine into one state: the caches hold a text of the same length."""
        self.failures.plan(None)
        for engine in self.engines.values():
            engine.generate(PROMPTS[-1], max_new_tokens=BUDGETS[-1])


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
        cancel = (source.choice(CANCELS), source.randrange(4)) if 0.1 <= what < 0.2 else None
        chosen = source.choice(PROMPTS), source.randrange(len(SAMPLINGS)), source.choice(BUDGETS)
        requests.append(Request(*chosen, source.choice(strategies), fault, cancel))
    return requests


@pytest.mark.timeout(0)
def test_soak(request):
    """Prevents leaks, stuck locks and texts that another request's failure made different."""
    soak = Soak()
    number = 2000 if request.config.getoption("--full") else 120
    requests = make_requests(number, list(soak.engines))
    levels = []
    with quiet(), ThreadPoolExecutor(NUM_THREADS) as pool:
        for batch in range(NUM_BATCHES):
            list(pool.map(soak.serve, requests[batch::NUM_BATCHES]))
            soak.settle()
            levels.append(level())
    assert levels == [levels[0]] * NUM_BATCHES
    assert soak.failures.happened.total() > number / 25
    assert soak.ends["cancelled"] > number / 50
    path = request.config.getoption("--results")
    if path is not None:
        stored = {
            "requests": number,
            "threads": NUM_THREADS,
            "strategies": list(soak.engines),
            "faults": dict(sorted(soak.failures.happened.items())),
            "ends": dict(sorted(soak.ends.items())),
            "level": levels[-1]._asdict(),
        }
        path.with_name("soak.json").write_text(json.dumps(stored, indent=2) + "\n", encoding="utf-8")
