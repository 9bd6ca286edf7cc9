"""The fault matrix: what may break in a generation, and how it is made to.

A case puts one fault into a scene. What must come of it is not written here but asked of all cases alike by
``test_matrix.py``; what a user sees is stored, and the table in ``docs/failures.md`` is made from that.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
import torch
from models import random_table, tiny_model
from scenes import KINDS, NO_PLUGINS, NUM_TOKENS, Scene, Seen, plain, read
from workers import install

import specframe
from specframe import (
    CancelToken,
    DrafterExhausted,
    Engine,
    EngineBusy,
    Identity,
    Needs,
    ProposalError,
    TargetError,
    Ticket,
    TransformersTarget,
    pure,
    remote,
)
from specframe.manifest import collect, open_source, write
from specframe.plugins import DrafterEntry, Plugin, Plugins
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.testing import (
    CycleGrammar,
    Fault,
    LogitsDrafter,
    Oracle,
    RecordedSession,
)

CRASH = "device lost"
PASSING = ("table", "transformers")
A_ROUND = range(
    3, 25
)  # the clock is read 7 times in the prefill's round, and 17 times in the next, which opens drafters


class Case(NamedTuple):
    """A fault: what breaks, where, how it is put into a scene, and the word that what a user sees must hold, if any.

    ``places``: where in a request it comes, passed to ``put``; ``kinds``: of what targets it is asked.
    """

    part: str
    fault: str
    put: Callable[[Scene, Any], None]
    cause: str | None
    places: Sequence[Any]
    kinds: Sequence[str]

    def __str__(self) -> str:
        return f"{self.part}: {self.fault}"


CASES: list[Case] = []


def case(
    part: str, fault: str, cause: str | None = None, *, places: Sequence[Any] = (None,), kinds: Sequence[str] = PASSING
) -> Any:
    """Register a function as a case."""

    def register(put: Callable[..., None]) -> Callable[..., None]:
        CASES.append(Case(part, fault, put, cause, places, kinds))
        return put

    return register


def crash() -> RuntimeError:
    return RuntimeError(CRASH)


class Proposing:
    """A drafter that does what a function of its round does."""

    def __init__(self, propose: Callable[[Any], Any]) -> None:
        self.propose = propose
        self.request: Any = None

    def open(self, request: Any) -> RecordedSession:
        self.request = request
        return RecordedSession(request, self.propose)

    def reset(self) -> None: ...
    def close(self) -> None: ...


# --- The drafter -------------------------------------------------------------------------------------------------------

DRAFTER = "the drafter"


def in_drafter(scene: Scene, *faults: Fault) -> None:
    scene.drafter = scene.failing(scene.drafter, *faults)


@case(DRAFTER, "raises in `open`", "open raised RuntimeError")
def _(scene, place):
    in_drafter(scene, Fault("open", crash()))


@case(DRAFTER, "raises in `propose`, with nothing added", "propose raised RuntimeError", places=(0, 2))
def _(scene, place):
    in_drafter(scene, Fault("propose", crash(), at_call=place))


@case(DRAFTER, "raises in `propose`, having offered tokens", "propose raised RuntimeError", places=(0, 2))
def _(scene, place):
    in_drafter(scene, Fault("propose", crash(), at_call=place, is_after=True))


@case(
    DRAFTER, "raises in `propose`, having drawn tokens", "propose raised RuntimeError", places=(0, 2), kinds=["table"]
)
def _(scene, place):
    scene.drafter = LogitsDrafter(scene.make().row, num_tokens=3)
    in_drafter(scene, Fault("propose", crash(), at_call=place, is_after=True))


@case(DRAFTER, "raises in `commit`", "commit raised RuntimeError", places=(0, 1, 3))
def _(scene, place):
    in_drafter(scene, Fault("commit", crash(), at_call=place))


@case(DRAFTER, "raises in `close`", "close raised RuntimeError")
def _(scene, place):
    in_drafter(scene, Fault("close", crash()))


@case(DRAFTER, "raises what is no `Exception`, as a panic in an extension module", "raised BaseException")
def _(scene, place):
    in_drafter(scene, Fault("propose", BaseException("panicked"), at_call=1, is_after=True))


@case(DRAFTER, "raises `StopIteration`", "raised StopIteration")
def _(scene, place):
    in_drafter(scene, Fault("propose", StopIteration(), at_call=1))


@case(DRAFTER, "is at its end (`DrafterExhausted`)", "DrafterExhausted")
def _(scene, place):
    in_drafter(scene, Fault("propose", DrafterExhausted("full"), at_call=1))


@case(DRAFTER, "returns no session from `open`", "commit raised AttributeError")
def _(scene, place):
    in_drafter(scene, Fault("open", lambda session: NotImplemented, is_after=True))


@case(DRAFTER, "is slow: an hour in `propose`")
def _(scene, place):
    clock = scene.clock = HandClock()
    in_drafter(scene, Fault("propose", lambda: clock.wait(3600), at_call=1))


def draws(row: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Scene, Any], None]:
    """Return what lets the drafter draw a good row first, and then a spoilt one."""

    def put(scene, place):
        vocab_size = scene.target.facts.vocab_size

        def propose(round):
            good = torch.zeros(vocab_size)
            if round.index == 2 and round.draw(good) is not None:
                round.draw(row(good))

        scene.drafter = Once(propose)

    return put


def mended_after(scene: Scene, fault: Fault) -> None:
    """Let a fault that persists end with the request."""
    observe = scene.observe

    def until_then(engine):
        seen = observe(engine)
        fault.persists = False
        return seen

    scene.observe = until_then


class Once(Proposing):
    """A drafter that does what a function does in its first request, and proposes nothing after."""

    def open(self, request: Any) -> RecordedSession:
        propose, self.propose = self.propose, lambda round: None
        return RecordedSession(request, propose)


ODD_ROWS = {
    "hands over a row with a NaN": lambda row: row.index_fill(0, torch.tensor([3]), torch.nan),
    "hands over a row with a +inf": lambda row: row.index_fill(0, torch.tensor([3]), torch.inf),
    "hands over a row with every id masked": lambda row: torch.full_like(row, -torch.inf),
    "hands over two rows as one": lambda row: torch.stack([row, row]),
    "hands over something that is no tensor": lambda row: row.tolist(),
}
for name, spoil_row in ODD_ROWS.items():
    case(DRAFTER, name, "propose raised ProposalError")(draws(spoil_row))


def offers(*tokens: Any) -> Callable[[Scene, Any], None]:
    def put(scene, place):
        def propose(round):
            if round.index == 2:
                for token in tokens:
                    round.offer(token)

        scene.drafter = Once(propose)

    return put


case(DRAFTER, "offers an id outside the vocabulary", "propose raised ProposalError")(offers(1, 10**6))
case(DRAFTER, "offers a negative id", "propose raised ProposalError")(offers(1, -1))
case(DRAFTER, "offers what is no id", "propose raised ProposalError")(offers(1, 2.0))
case(DRAFTER, "offers more tokens than there is room for")(offers(*[1] * 100))


@case(DRAFTER, "reads weights that its `needs` do not declare", "propose raised PluginError", kinds=["transformers"])
def _(scene, place):
    with_plugin(scene, Needs(views=frozenset({"embeddings"})), lambda round, facts: facts.views.head)


@case(
    DRAFTER, "draws, though its `needs` say that it only offers", "propose raised ProposalError", kinds=["transformers"]
)
def _(scene, place):
    with_plugin(scene, Needs(draws=False), lambda round, facts: round.draw(torch.zeros(facts.vocab_size)))


def with_plugin(scene: Scene, needs: Needs, propose: Callable[[Any, Any], Any]) -> None:
    """Let the drafter come from a plugin, which says what it needs; what it proposes is wrong in its first request only."""
    options = attrs.make_class("Options", [])
    facts: list[Any] = []
    drafter = Once(lambda round: propose(round, facts[-1]))

    def factory(options, given):
        facts.append(given)
        return drafter

    def make_engine() -> Engine:
        plugin = Plugin("mine", "mine", "1.0", {"mine": DrafterEntry("mine", factory, options, needs)})
        strategy = Strategy(drafters=(DrafterUse("mine"),), length=Length(max_tokens=4))
        return Engine(scene.target, strategy=strategy, plugins=Plugins([plugin]), debug=True)

    scene.engine = make_engine


@case(DRAFTER, "writes into what it was given: context, request, commits, a grammar's masks", kinds=["table"])
def _(scene, place):
    masks = [range(12), range(12)]
    scene.arguments["grammar"] = CycleGrammar(masks, vocab_size=12)
    refused = []

    def write(round):
        request = scene.drafter.request
        for attempt in (
            lambda: round.context.__setitem__(0, 3),
            lambda: setattr(round, "context", (3,)),
            lambda: setattr(request, "prompt_ids", (3,)),
            lambda: request.prompt_ids.__setitem__(0, 3),
            lambda: setattr(request.policy, "temperature", 2.0),
            lambda: setattr(request.facts, "vocab_size", 3),
            lambda: request.grammar.mask(0).fill(False),
        ):
            try:
                attempt()
            except (TypeError, AttributeError, ValueError) as error:
                refused.append(error)
        assert len(refused) % 7 == 0

    scene.drafter = Proposing(write)


@case(DRAFTER, "overwrites the logits that it handed over", kinds=["table"])
def _(scene, place):
    table, buffer = scene.make(), torch.zeros(12, dtype=torch.float64)

    def propose(round):
        for _ in range(3):
            buffer.copy_(table.row(round.context[:]))
            round.draw(buffer)
            buffer.fill_(torch.nan)

    scene.drafter = Proposing(propose)


@case(DRAFTER, "keeps a round and adds to it later")
def _(scene, place):
    kept = []

    def propose(round):
        for old in kept:
            try:
                old.offer(1)
            except ProposalError:
                continue
            raise AssertionError("an old round took a token")
        kept.append(round)

    scene.drafter = Proposing(propose)


@case(DRAFTER, "adds to its round from another thread")
def _(scene, place):
    def propose(round):
        elsewhere(lambda: asked(lambda: round.offer(1)))

    scene.drafter = Proposing(propose)


def elsewhere(call: Callable[[], Any]) -> Any:
    """Return what a call gives in another thread."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(60)


@case(DRAFTER, "asks its own engine for text", "propose raised EngineBusy")
def _(scene, place):
    made = []
    make_engine = scene.engine

    def engine():
        made.append(make_engine())
        return made[-1]

    scene.engine = engine
    scene.drafter = Once(lambda round: made[-1].generate((1, 2)))


@case(DRAFTER, "fails beside another one that works", "propose raised RuntimeError")
def _(scene, place):
    scene.beside = {"other": Oracle(scene.full.token_ids, wrong_at=1)}
    in_drafter(scene, Fault("propose", crash(), at_call=1, is_after=True))


@case(DRAFTER, "is slow, and has a budget", "propose took longer than its budget", places=(0, 2))
def _(scene, place):
    clock = scene.clock = HandClock()
    scene.strategy["drafters"] = (DrafterUse("mine", budget_ms=20),)
    in_drafter(scene, Fault("propose", lambda: clock.wait(1), at_call=place))


@case(DRAFTER, "writes into the weights that it was lent", "wrote into the target's head", kinds=["transformers"])
def _(scene, place):
    scene.target = TransformersTarget(tiny_model())
    scene.is_spoilt = True
    with_plugin(scene, Needs(views=frozenset({"head"})), lambda round, facts: facts.views.head.mul_(1.5))


def in_worker(fault: str, budget_ms: float) -> Callable[[Scene, Any], None]:
    """Return what lets the drafter run in a process of its own, where something happens once."""

    def put(scene, place):
        folder = folder_of(scene)
        install(folder)
        patch = scene.closing.enter_context(pytest.MonkeyPatch.context())
        patch.syspath_prepend(folder)
        patch.setattr(remote, "FIRST_DELAY_S", 0.0)
        scene.closing.callback(sys.modules.pop, "scripted_plugin", None)
        text = list(scene.full.token_ids)
        options = {"continuation": text, "fault": fault, "at": 1, "once": str(folder / "happened")}
        use = DrafterUse("scripted", options=options, budget_ms=budget_ms, worker=True)

        def engine() -> Engine:
            strategy = Strategy(drafters=(use,), length=Length(max_tokens=4))
            made = Engine(scene.target, strategy=strategy, clock=scene.clock, debug=True)
            scene.closing.callback(made.close)
            return made

        def until_back(engine: Engine) -> None:
            until = time.monotonic() + 60
            while engine.generate(scene.prompt, max_new_tokens=3).events:
                assert time.monotonic() < until, "it did not come back"
                time.sleep(0.01)

        scene.engine, scene.settle = engine, until_back

    return put


case(DRAFTER, "is killed in its worker", "propose raised WorkerError", kinds=["table"])(in_worker("kill", 20_000))
case(DRAFTER, "hangs in its worker", "longer than its budget", kinds=["table"])(in_worker("sleep", 2000))
case(DRAFTER, "floods its worker's connection", "longer than its budget", kinds=["table"])(in_worker("flood", 2000))


# --- The target --------------------------------------------------------------------------------------------------------

TARGET = "the target"


def in_target(scene: Scene, *faults: Fault) -> None:
    scene.target = scene.failing(scene.target, *faults)


def out_of_memory() -> Exception:
    return torch.OutOfMemoryError("out of memory")


@case(TARGET, "cannot be opened", CRASH)
def _(scene, place):
    in_target(scene, Fault("open", crash()))


@case(TARGET, "raises `ValueError` as it is opened", "no such kernel")
def _(scene, place):
    in_target(scene, Fault("open", ValueError("no such kernel")))


@case(TARGET, "raises in the prefill", CRASH)
def _(scene, place):
    in_target(scene, Fault("prefill", crash()))


@case(TARGET, "raises in a verification", CRASH, places=(0, 2))
def _(scene, place):
    in_target(scene, Fault("verify_linear", crash(), at_call=place))


@case(TARGET, "raises in the model's forward, when keys of some layers are written", CRASH, kinds=["transformers"])
def _(scene, place):
    failing_layer(scene, Fault("__call__", crash(), at_call=2))


@case(TARGET, "runs out of memory as its buffers grow", "OutOfMemoryError", places=(0, 1), kinds=["transformers"])
def _(scene, place):
    """A layer's keys find no memory, or its keys do and its values do not."""
    model = tiny_model(max_position_embeddings=256)
    scene.make = lambda: TransformersTarget(model)
    scene.target = scene.make()
    scene.target.cache.reserve = lambda num_tokens: None  # more comes than was reserved for
    scene.want(max_new_tokens=80)
    layer = scene.target.cache.layers[1]
    layer._grown = scene.failing(layer._grown, Fault("__call__", out_of_memory(), at_call=place))


def spoilt(row: int, value: float) -> Callable[[Any], Any]:
    """Return what spoils a row of a verification."""

    def spoil(verification):
        logits = verification.logits.clone()
        logits[row, 3:5] = value
        return verification._replace(logits=logits)

    return spoil


BAD = {"NaN": torch.nan, "+inf": torch.inf}
for bad_name, bad in BAD.items():

    @case(TARGET, f"gives a {bad_name} in the row of the first token", "cannot be used")
    def _(scene, place, bad=bad):
        in_target(scene, Fault("prefill", spoilt(0, bad), is_after=True))

    @case(TARGET, f"gives a {bad_name} in the first row of a round", "row 0")
    def _(scene, place, bad=bad):
        in_target(scene, Fault("verify_linear", spoilt(0, bad), at_call=1, is_after=True))

    @case(TARGET, f"gives a {bad_name} in a middle row", "row 1")
    def _(scene, place, bad=bad):
        in_target(scene, Fault("verify_linear", spoilt(1, bad), at_call=1, is_after=True))

    @case(TARGET, f"gives a {bad_name} in the row of the extra token", "row 4")
    def _(scene, place, bad=bad):
        scene.offer_all()
        in_target(scene, Fault("verify_linear", spoilt(4, bad), at_call=1, is_after=True))

    @case(TARGET, f"gives a {bad_name} in a row behind a rejected token")
    def _(scene, place, bad=bad):
        in_target(scene, Fault("verify_linear", spoilt(3, bad), at_call=1, is_after=True))


@case(TARGET, "masks every id of a row", "no valid token")
def _(scene, place):
    def mask(verification):
        return verification._replace(logits=torch.full_like(verification.logits, -torch.inf))

    in_target(scene, Fault("verify_linear", mask, at_call=1, is_after=True))


@case(
    TARGET,
    "computes NaN once, so that keys in its cache are NaN",
    "cannot be used",
    places=(0, 2),
    kinds=["transformers"],
)
def _(scene, place):
    failing_layer(scene, Fault("__call__", lambda key: torch.full_like(key, torch.nan), at_call=place, is_after=True))


def failing_layer(scene: Scene, fault: Fault) -> None:
    """Put a fault into the last layer's key projection; the model is the scene's own."""
    model = tiny_model()
    projection = model.model.layers[-1].self_attn.k_proj
    projection.forward = scene.failing(projection.forward, fault)
    scene.target = TransformersTarget(model)


@case(TARGET, "refuses to roll back, or to commit", CRASH, places=(0, 2))
def _(scene, place):
    in_target(scene, Fault("commit", crash(), at_call=place))


@case(TARGET, "has a layer whose rollback fails", CRASH, places=(0, 1), kinds=["transformers"])
def _(scene, place):
    layer = scene.target.cache.layers[1]
    layer.cut = scene.failing(layer.cut, fault := Fault("__call__", crash(), at_call=2 + place, persists=True))
    mended_after(scene, fault)


@case(TARGET, "cannot be closed after the last token", "close raised RuntimeError")
def _(scene, place):
    in_target(scene, Fault("close", crash()))


@case(TARGET, "can neither be closed nor reset after the last token", CRASH)
def _(scene, place):
    in_target(scene, Fault("close", crash()), Fault("reset", crash()))


@case(TARGET, "fails, and can then neither be closed nor reset", "row 0")
def _(scene, place):
    in_target(
        scene,
        Fault("verify_linear", spoilt(0, torch.nan), at_call=1, is_after=True),
        Fault("close", RuntimeError("nor closed")),
        Fault("reset", RuntimeError("nor reset")),
    )


@case(TARGET, "is called with the ticket of a request that is over", "cancelled or replaced")
def _(scene, place):
    def observe(engine):
        seen = read(scene.open(engine))
        session = sessions[-1]
        errors = []
        for call in (
            lambda: session.prefill(Ticket(1, 0, 0), scene.prompt),
            lambda: session.verify_linear(Ticket(1, 0, 0), 1, (2,)),
            lambda: session.commit(Ticket(1, 0, 0), 0),
        ):
            try:
                call()
            except Exception as error:
                errors.append(error)
        assert len(errors) == 3
        return seen._replace(result=None, error=errors[0], is_beside=True)

    sessions: list[Any] = []
    in_target(scene, Fault("open", sessions.append, is_after=True))
    scene.observe = observe


@case(
    TARGET,
    "cancels its session in the middle of a round",
    "cancelled or replaced",
    places=[("verify_linear", False), ("verify_linear", True), ("commit", False)],
)
def _(scene, place):
    method, is_after = place
    sessions: list[Any] = []
    in_target(
        scene,
        Fault("open", sessions.append, is_after=True),
        Fault(method, lambda *_: sessions[0].cancel(), at_call=1, is_after=is_after),
    )


# --- The caller's own parts --------------------------------------------------------------------------------------------

CALLER = "the caller's parts"


@case(CALLER, "a logits processor raises", CRASH, places=(0, 4), kinds=["table"])
def _(scene, place):
    scene.arguments["processors"] = [
        pure(scene.failing(lambda ids, scores: scores, Fault("__call__", crash(), at_call=place)))
    ]


@case(CALLER, "a grammar raises", CRASH, places=("mask", "advance", "is_final"), kinds=["table"])
def _(scene, place):
    fault = Fault(place, crash(), at_call=7, persists=True)  # behind a draft alone, it would end the draft
    scene.arguments["grammar"] = scene.failing(CycleGrammar([range(12)], vocab_size=12), fault)
    mended_after(scene, fault)


@case(CALLER, "a stopping criterion raises", CRASH, places=(0, 4), kinds=["table"])
def _(scene, place):
    scene.arguments["criterion"] = scene.failing(lambda ids: False, Fault("__call__", crash(), at_call=place))


@case(CALLER, "the tokenizer fails on the prompt", CRASH, kinds=["text"])
def _(scene, place):
    in_tokenizer(scene, Fault("__call__", crash()))
    scene.prompt = "ab"
    scene.observe = lambda engine: asked(lambda: scene.open(engine))


@case(CALLER, "the tokenizer fails on a token", CRASH, places=(0, 2), kinds=["text"])
def _(scene, place):
    in_tokenizer(scene, Fault("convert_ids_to_tokens", crash(), at_call=place))


@case(CALLER, "the tokenizer fails from some token on", CRASH, kinds=["text"])
def _(scene, place):
    in_tokenizer(scene, fault := Fault("convert_ids_to_tokens", crash(), at_call=2, persists=True))
    mended_after(scene, fault)


def in_tokenizer(scene: Scene, *faults: Fault) -> None:
    scene.target.facts = attrs.evolve(
        scene.target.facts, tokenizer=scene.failing(scene.target.facts.tokenizer, *faults)
    )


def asked(call: Callable[[], Any]) -> Seen:
    """Return what a call that must fail says."""
    try:
        call()
    except Exception as error:
        return Seen((), error=error)
    raise AssertionError("it did not fail")


class HandClock:
    """A clock that stands until it is told to go on, or back."""

    def __init__(self) -> None:
        self.now = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self) -> float:
        return self.now


@case(CALLER, "the clock raises", CRASH, places=A_ROUND, kinds=["table"])
def _(scene, place):
    scene.clock = scene.failing(time.perf_counter, Fault("__call__", crash(), at_call=place))


@case(CALLER, "the clock stands still, under adaptive lengths")
def _(scene, place):
    scene.clock = HandClock()
    scene.strategy["length"] = Length("adaptive", 4)


@case(CALLER, "the clock goes backwards, under adaptive lengths")
def _(scene, place):
    ticks = count()
    scene.clock = lambda: -float(next(ticks))
    scene.strategy["length"] = Length("adaptive", 4)


# --- Cancellation and readers ------------------------------------------------------------------------------------------

CANCEL = "cancellation"


@case(CANCEL, "`close` before the first piece", "StreamNotFinished")
def _(scene, place):
    def observe(engine):
        stream = scene.open(engine)
        stream.close()
        return read(stream)

    scene.observe = observe


@case(CANCEL, "`close` between pieces", places=(1, 3))
def _(scene, place):
    def observe(engine):
        stream = scene.open(engine)
        ids = [token for _ in range(place) for token in next(stream).token_ids]
        stream.close()
        assert next(stream, None) is None
        return Seen(tuple(ids), stream.result.text, stream.result)

    scene.observe = observe


@case(CANCEL, "`close` while a drafter proposes", places=(0, 1))
def _(scene, place):
    in_drafter(scene, Fault("propose", scene.close_stream, at_call=place))


@case(CANCEL, "`close` before a verification", places=(0, 1))
def _(scene, place):
    in_target(scene, Fault("verify_linear", scene.close_stream, at_call=place))


@case(CANCEL, "`close` between verification and commit", places=(0, 1))
def _(scene, place):
    in_target(scene, Fault("commit", scene.close_stream, at_call=place))


@case(CANCEL, "`close` at any time of a round, the emission too", places=A_ROUND, kinds=["table"])
def _(scene, place):
    scene.clock = scene.failing(time.perf_counter, Fault("__call__", scene.close_stream, at_call=place))


@case(CANCEL, "`close` from another thread, at any time of a round", places=A_ROUND, kinds=["table"])
def _(scene, place):
    scene.clock = scene.failing(
        time.perf_counter, Fault("__call__", lambda: elsewhere(scene.close_stream), at_call=place)
    )


@case(CANCEL, "a token is cancelled at any time of a round", places=A_ROUND, kinds=["table"])
def _(scene, place):
    token = scene.arguments["cancel"] = CancelToken()
    scene.clock = scene.failing(time.perf_counter, Fault("__call__", token.cancel, at_call=place))


@case(CANCEL, "a deadline passes at any time of a round", places=A_ROUND, kinds=["table"])
def _(scene, place):
    clock = HandClock()
    scene.arguments["deadline_s"] = 60
    scene.clock = scene.failing(clock, Fault("__call__", lambda: clock.wait(3600), at_call=place))


@case(CANCEL, "a deadline passes while a call waits for its turn", "in use until this call ended")
def _(scene, place):
    def observe(engine):
        stream = scene.open(engine)
        ids = next(stream).token_ids
        seen = elsewhere(lambda: asked(lambda: engine.generate(scene.prompt, deadline_s=0.01)))
        return seen._replace(ids=(*ids, *read(stream).ids), is_beside=True)

    scene.observe = observe


READER = "the reader of a stream"


@case(READER, "stops reading and lets go of the stream", places=(1, 3))
def _(scene, place):
    def observe(engine):
        ids: list[int] = []
        for index, piece in enumerate(engine.stream(scene.prompt, **scene.sampling, **scene.arguments), start=1):
            ids += piece.token_ids
            if index == place:
                break
        return Seen(tuple(ids))

    scene.observe = observe


@case(READER, "stops reading, keeps the stream, and asks for more", "open stream", places=(1, 3))
def _(scene, place):
    def observe(engine):
        stream = scene.open(engine)
        ids = [token for _ in range(place) for token in next(stream).token_ids]
        seen = asked(lambda: engine.generate(scene.prompt))
        stream.close()
        return seen._replace(ids=tuple(ids), is_beside=True)

    scene.observe = observe


@case(READER, "raises", CRASH, places=(1, 3))
def _(scene, place):
    sink = scene.failing([], Fault("extend", crash(), at_call=place, is_after=True))

    def observe(engine):
        try:
            for piece in engine.stream(scene.prompt, **scene.sampling, **scene.arguments):
                sink.extend(piece.token_ids)
        except RuntimeError as error:
            return Seen(tuple(sink.copy()), error=error)
        raise AssertionError("it did not fail")

    scene.observe = observe


@case(READER, "is asked for a piece while another thread reads the stream", "EngineBusy")
def _(scene, place):
    errors: list[BaseException] = []

    def read_elsewhere():
        errors.append(elsewhere(lambda: asked(lambda: next(scene.stream))).error)

    in_target(scene, Fault("commit", read_elsewhere, at_call=1))
    scene.observe = lambda engine: read(scene.open(engine))._replace(result=None, error=errors[0], is_beside=True)


# --- Ends --------------------------------------------------------------------------------------------------------------

ENDS = "ends"


def ending(scene: Scene, **arguments: Any) -> None:
    """Let the request end otherwise, and the drafter be right up to its end and beyond."""
    make = KINDS[scene.kind].target
    long = plain(make(), scene.prompt, **scene.sampling, max_new_tokens=2 * NUM_TOKENS).token_ids
    scene.want(**arguments)
    scene.drafter = Oracle(long)
    assert len(scene.full.token_ids) < len(long)


@case(ENDS, "the budget ends inside a proposal", places=range(1, 12, 2))
def _(scene, place):
    ending(scene, max_new_tokens=place)


@case(ENDS, "a stop id is accepted inside a proposal, or is the extra token", places=range(1, 8))
def _(scene, place):
    ending(scene, stop_ids=[scene.full.token_ids[place]])


@case(ENDS, "a stop string is completed inside a proposal, or by the extra token", places=range(1, 8), kinds=["text"])
def _(scene, place):
    ending(scene, stop=[scene.full.text[place - 1 : place + 1]])


@case(ENDS, "the context ends inside a proposal", "context limit", places=range(3, 9), kinds=["table"])
def _(scene, place):
    scene.make = lambda: random_table(context_limit=len(scene.prompt) + place)
    scene.target = scene.make()
    ending(scene)


# --- The surroundings --------------------------------------------------------------------------------------------------

AROUND = "the surroundings"


@case(AROUND, "an interrupt (SIGINT) at any time of a round", "KeyboardInterrupt", places=A_ROUND, kinds=["table"])
def _(scene, place):
    scene.clock = scene.failing(
        time.perf_counter, Fault("__call__", lambda: signal.raise_signal(signal.SIGINT), at_call=place)
    )


@case(AROUND, "an interrupt while a drafter proposes", "KeyboardInterrupt", places=(0, 1))
def _(scene, place):
    in_drafter(scene, Fault("propose", lambda *_: signal.raise_signal(signal.SIGINT), at_call=place, is_after=True))


@case(AROUND, "SIGTERM, whose handler exits, while a drafter proposes", "SystemExit", places=(0, 1))
def _(scene, place):
    def terminate():
        raise SystemExit(0)

    in_drafter(scene, Fault("propose", lambda: with_handler(terminate), at_call=place))


def with_handler(handle: Callable[[], Any]) -> None:
    """Get a SIGTERM that ``handle`` handles."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: handle())
    try:
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


@case(AROUND, "a signal whose handler cancels", places=(0, 1))
def _(scene, place):
    token = scene.arguments["cancel"] = CancelToken()
    in_target(scene, Fault("commit", lambda: with_handler(token.cancel), at_call=place))


@case(AROUND, "a signal whose handler closes the stream", places=(0, 1))
def _(scene, place):
    in_target(scene, Fault("commit", lambda: with_handler(scene.close_stream), at_call=place))


@case(AROUND, "several threads ask one engine at once")
def _(scene, place):
    def observe(engine):
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda _: read(scene.open(engine)), range(8)))
        assert [seen.ids for seen in found] == [scene.full.token_ids] * 8
        return found[0]

    scene.observe = observe


@case(AROUND, "the process forks between requests: both go on")
def _(scene, place):
    def observe(engine):
        assert forked(lambda: read(scene.open(engine)).ids) == list(scene.full.token_ids)
        return read(scene.open(engine))

    scene.observe = observe


@case(AROUND, "the process forks while another thread generates: the new one asks", "forked", places=(0, 1))
def _(scene, place):
    inside, over = threading.Event(), threading.Event()

    def wait():
        inside.set()
        assert over.wait(60)

    in_target(scene, Fault("commit", wait, at_call=place))

    def observe(engine):
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(lambda: read(scene.open(engine)))
            assert inside.wait(60)
            try:
                message = forked(lambda: str(asked(lambda: engine.generate(scene.prompt)).error))
            finally:
                over.set()
            assert found.result(60).ids == scene.full.token_ids
        return Seen((), error=EngineBusy(message), is_beside=True)

    scene.observe = observe


@case(AROUND, "the disk is full when the receipt is written", "No space left on device")
def _(scene, place):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def observe(engine):
        seen, file = read(scene.open(engine)), Path("run.json")
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder_of(scene))
            file.write_text("an older one")
            patch.setattr(os, "fsync", full)
            error = asked(lambda: seen.result.receipt.write(file)).error
            assert file.read_text() == "an older one"
            assert list(Path().iterdir()) == [file]
        return seen._replace(result=None, error=error, is_beside=True)

    scene.observe = observe


def folder_of(scene: Scene) -> Path:
    """Return a folder that is there as long as the scene."""
    return Path(scene.closing.enter_context(tempfile.TemporaryDirectory()))


def on_disk(change: Callable[[Path], None]) -> Callable[[Scene, Any], None]:
    """Return what lets the engine be loaded from a folder, in which something changes after the first piece."""

    def put(scene, place):
        folder = folder_of(scene)
        tiny_model().save_pretrained(folder)
        write(collect(open_source(folder), weights=True), folder / "pin.toml")
        strategy = Strategy(identity=Identity(str(folder / "pin.toml")))

        def observe(engine):
            ids: list[int] = []
            for piece in scene.open(engine):
                if not ids:
                    change(folder)
                ids += piece.token_ids
            engine.reset()
            assert engine.generate(scene.prompt, **scene.sampling, **scene.arguments).token_ids == tuple(ids)
            scene.engine = lambda: Engine(scene.make(), plugins=NO_PLUGINS)
            return Seen(tuple(ids), "", scene.stream.result)

        scene.engine = lambda: specframe.load(folder, strategy=strategy)
        scene.observe = observe

    return put


def overwrite(file: Path, start: int) -> None:
    """Change every byte of a file from one on, in place, and let it keep its length."""
    content = file.read_bytes()
    with file.open("r+b") as open_file:
        open_file.seek(start)
        open_file.write(bytes(255 - byte for byte in content[start:]))


def header_bytes(folder: Path) -> int:
    return 8 + int.from_bytes((folder / WEIGHTS).read_bytes()[:8], "little")


WEIGHTS = "model.safetensors"
DISK = {
    "the model's weights are overwritten on disk": lambda folder: overwrite(folder / WEIGHTS, header_bytes(folder)),
    "the model's weights are cut off on disk": lambda folder: os.truncate(folder / WEIGHTS, 100),
    "the model's configuration changes on disk": lambda folder: overwrite(folder / "config.json", 0),
    "the pinned manifest changes on disk": lambda folder: overwrite(folder / "pin.toml", 0),
}
for disk_name, change in DISK.items():
    case(AROUND, f"{disk_name} after the load", kinds=["transformers"])(on_disk(change))


@case(
    AROUND,
    "weights change on disk, and the engine is then asked who it is",
    "changed after it was loaded",
    kinds=["transformers"],
)
def _(scene, place):
    def change_and_ask(folder):
        overwrite(folder / WEIGHTS, header_bytes(folder))
        errors.append(asked(lambda: engines[-1].identity).error)

    errors: list[Any] = []
    engines: list[Engine] = []
    on_disk(change_and_ask)(scene, place)
    make_engine, observe = scene.engine, scene.observe

    def engine():
        engines.append(make_engine())
        return engines[-1]

    scene.engine = engine
    scene.observe = lambda engine: observe(engine)._replace(result=None, error=errors[0], is_beside=True)


@case(AROUND, "the process forks after torch has used several threads", "do not survive a fork", kinds=["transformers"])
def _(scene, place):
    def ask(engine):
        torch.set_num_threads(2)
        return str(asked(lambda: engine.generate(scene.prompt)).error)

    scene.observe = lambda engine: Seen((), error=TargetError(forked(lambda: ask(engine))), is_beside=True)


def forked(call: Callable[[], Any]) -> Any:
    """Return what a call gives in a forked process, as JSON brings it back."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            os.write(sending, json.dumps(call()).encode())
        finally:
            os._exit(0)
    os.close(sending)
    with open(receiving, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)
