"""One request into which a fault is put, and what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from models import PROMPT, random_table, shared_model

from specframe import Engine, GenerationError, Result, Strategy, Stream, TransformersTarget
from specframe.plugins import Plugins
from specframe.strategy import Length
from specframe.testing import Fault, Oracle, TableTarget, byte_tokenizer, failing

SAMPLINGS: dict[str, dict[str, Any]] = {"greedy": {}, "coupled": {"temperature": 0.9, "seed": 5}}
NUM_TOKENS = 14
NO_PLUGINS = Plugins([])  # to find the installed ones takes longer than a request


class Seen(NamedTuple):
    """What a request gave its reader: the ids and the text of its pieces, then a result, an error, or nothing more.

    ``is_beside``: the error is that of another call, which the fault made.
    """

    ids: tuple[int, ...]
    text: str = ""
    result: Result | None = None
    error: BaseException | None = None
    is_beside: bool = False


def read(stream: Stream) -> Seen:
    """Read a stream to its end, whatever that is."""
    ids: list[int] = []
    text = ""
    try:
        for piece in stream:
            ids += piece.token_ids
            text += piece.text
        return Seen(tuple(ids), text, stream.result)
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        return Seen(tuple(ids), text, error=error.with_traceback(None))


def text_target() -> TableTarget:
    """Return a table target over the byte tokenizer, whose text is of the letters a to f."""
    tokenizer, letters = byte_tokenizer(), random_table(vocab_size=6, seed=3)

    def row(ids: tuple[int, ...]) -> list[float]:
        scores = [-30.0] * len(tokenizer)
        scores[97:103] = letters.row([token % 6 for token in ids]).tolist()
        return scores

    return TableTarget(row, vocab_size=len(tokenizer), order=2, tokenizer=tokenizer)


def plain(target: Any, prompt: Any, **arguments: Any) -> Result:
    """Return what plain decoding gives."""
    return Engine(target, plugins=NO_PLUGINS).generate(prompt, **arguments)


class Kind(NamedTuple):
    """What a scene plays on: a target, and a prompt of its ids."""

    target: Callable[[], Any]
    prompt: tuple[int, ...]


KINDS = {
    "table": Kind(random_table, (1, 2)),
    "text": Kind(text_target, (97, 98)),
    "transformers": Kind(lambda: TransformersTarget(shared_model()), PROMPT),
}


class Scene:
    """A request on an engine of its own. A fault is put into one of its parts before ``engine`` joins them.

    ``drafter`` offers the target's own text, wrong in the third token of every proposal; ``full``: the fault-free result, of
    plain decoding; ``observe(engine)``: runs the request and reads its stream.
    """

    def __init__(self, kind: str, sampling: dict[str, Any], **arguments: Any) -> None:
        self.kind, self.sampling, self.arguments = kind, sampling, {"max_new_tokens": NUM_TOKENS, **arguments}
        self.make, self.prompt = KINDS[kind]
        self.target = self.make()
        self.full: Result
        self.drafter: Any
        self.want()
        self.beside: dict[str, Any] = {}
        self.strategy: dict[str, Any] = {}
        self.clock: Callable[[], float] = time.perf_counter
        self.stream: Stream | None = None
        self.faults: list[Fault] = []
        self.observe: Callable[[Engine], Seen] = lambda engine: read(self.open(engine))

    def want(self, **arguments: Any) -> None:
        """Ask for something else."""
        self.arguments |= arguments
        self.full = plain(self.make(), self.prompt, **self.sampling, **self.arguments)
        self.drafter = Oracle(self.full.token_ids, wrong_at=2)

    def failing(self, part: Any, *faults: Fault) -> Any:
        """Return a part with faults, which must then happen."""
        self.faults += faults
        return failing(part, *faults)

    def offer_all(self) -> None:
        """Let the drafter be right throughout, so that every proposal is accepted whole."""
        self.drafter = Oracle(self.full.token_ids)

    def engine(self) -> Engine:
        """Return an engine of the scene's parts."""
        strategy = Strategy(**{"length": Length(max_tokens=4), **self.strategy})
        return Engine(
            self.target,
            {"mine": self.drafter, **self.beside},
            strategy=strategy,
            plugins=NO_PLUGINS,
            clock=self.clock,
            debug=True,
        )

    def open(self, engine: Engine) -> Stream:
        """Return the request's stream, which faults may close."""
        self.stream = engine.stream(self.prompt, **self.sampling, **self.arguments)
        return self.stream

    def close_stream(self, *_: Any) -> None:
        """Close the request's stream, from wherever this is called."""
        assert self.stream is not None
        self.stream.close()

    def afresh(self) -> Engine:
        """Return a new engine on a new target; faults that happened do not happen again."""
        self.target = self.make()
        return self.engine()

    def again(self, engine: Engine) -> list[Any]:
        """Return all that may be seen of two more requests: one of the same prompt, and one of another."""
        seen: list[Any] = []
        for prompt in (self.prompt, self.prompt[1:]):
            result = engine.generate(prompt, max_new_tokens=7, **self.sampling)
            counts = [(record.num_proposed, record.num_accepted, record.num_emitted) for record in result.records]
            seen.append((result.token_ids, result.text, result.finish_reason, counts, result.events))
        return seen


class Row(NamedTuple):
    """A row of the table in the documentation."""

    sees: str
    emitted: str
    afterwards: str


def sees(seen: Seen) -> str:
    """Say what a user is told, numbers left out: nothing, events, an error, another end."""
    if seen.error is not None:
        message = re.sub(r" \(\d+ tokens were emitted before; .*\)$", "", str(seen.error), flags=re.DOTALL)
        name = f"`{type(seen.error).__name__}`"
        return f"{name}: {_numberless(message)}" if message else name
    if seen.result is None:
        return "nothing"
    parts = [f"an event: {_numberless(event.message)}" for event in seen.result.events]
    if seen.result.finish_reason == "cancelled":
        parts.append("a result whose `finish_reason` is `cancelled`")
    return "; ".join(dict.fromkeys(parts)) or "nothing"


def emitted(seen: Seen, full: Result) -> str:
    """Say how much of the fault-free output was emitted."""
    if seen.ids == full.token_ids:
        return "all"
    return "what came before" if seen.ids else "nothing"


def names_its_cause(error: BaseException, cause: str) -> bool:
    """Whether an error says what its cause was, and a ``GenerationError`` keeps it."""
    is_kept = not isinstance(error, GenerationError) or isinstance(error.__cause__, Exception)
    return is_kept and (cause in str(error) or cause == type(error).__name__)


def _numberless(text: str) -> str:
    return re.sub(r"(?<![\w.-])\d+(?![\w-])", "N", text)
