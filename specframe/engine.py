"""The engine: a target, drafters and a strategy behind ``generate`` and ``stream``.

Checks requests before anything runs, gives one generation at a time the target, and hands out results. The round loop is
``generation.py``'s.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, overload

import attrs
import torch

from specframe import plugins as plugin_loader
from specframe.errors import EngineBusy, GenerationError, IncompatibleManifest, InvalidRequest, TargetError
from specframe.generation import Generation, Piece, Request
from specframe.grammar import Grammar
from specframe.manifest.collector import of_target, weighed_target
from specframe.manifest.diff import require_equal
from specframe.manifest.digest import sampling_digest
from specframe.manifest.identity import Manifest
from specframe.policy import SamplingPolicy
from specframe.prompt import Prompt, encode
from specframe.proposal import Drafter
from specframe.random import fresh_seed
from specframe.records import Event, RoundRecord, Stats, summarise
from specframe.resolve import check_needs, make_drafters, read_pin, resolve_strategy
from specframe.stop import as_stop_strings
from specframe.strategy import Strategy
from specframe.target import Target
from specframe.text import TokenBytes

DEFAULT_MAX_NEW_TOKENS = 256
_POLICY_FIELDS = frozenset(field.name for field in attrs.fields(SamplingPolicy))


@attrs.frozen
class Result:
    """A finished generation.

    ``token_ids``: the generated ids, a stop id included; ``text``: without stop strings and special tokens;
    ``finish_reason``: ``stop`` or ``length``; ``stop_match``: the stop id or string that ended it; ``seed``: what repeats it
    (None when greedy); ``exactness``: ``token-exact`` or ``distribution-exact``; ``log_probs``: natural logarithms of the
    model's probabilities of ``token_ids``, before any processing, if asked for.
    """

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str
    stop_match: int | str | None
    seed: int | None
    exactness: str
    stats: Stats
    records: tuple[RoundRecord, ...] = attrs.field(repr=False)
    events: tuple[Event, ...] = ()
    log_probs: tuple[float, ...] | None = attrs.field(default=None, repr=False)


class Engine:
    """Generates from a target with a strategy.

    ``drafters`` are used as they are, by name; without drafters of the strategy's own all of them run, in order.
    ``strategy`` is a name, a ``.toml`` path or a ``Strategy``; ``debug`` checks after every round what the cache stands for;
    ``identity`` makes the target's manifest when it is asked for, and tells that the target was compared with the strategy's
    pin and needs already. Raises ``UnknownName``, ``InvalidStrategy``, ``PluginError`` or ``IncompatibleManifest`` before
    anything runs.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter] | None = None,
        *,
        strategy: str | Path | Strategy = "none",
        plugins: plugin_loader.Plugins | None = None,
        identity: Callable[[], Manifest] | None = None,
        debug: bool = False,
    ) -> None:
        self.target, self._debug = target, debug
        loaded = plugins or plugin_loader.load()
        self.strategy = resolve_strategy(strategy, loaded)
        if self.strategy.disable and plugins is None:
            loaded = plugin_loader.load(self.strategy.disable)
        self._make_identity, self._identity = identity, None if identity else target.facts.identity
        self.pin = read_pin(self.strategy)
        if self.pin is not None and identity is None:
            self._require_pinned(self.pin)
        self.draft_identities = check_needs(
            self.strategy, loaded, lambda: of_target(target), given=drafters or {}, target_strings=self._strings
        )
        self.drafters = make_drafters(self.strategy, loaded, target.facts, drafters or {})
        self._table = TokenBytes(target.facts.tokenizer) if target.facts.tokenizer is not None else None
        self._request_ids = itertools.count(1)
        self._lock = threading.Lock()
        self._holder: int | None = None

    @property
    def identity(self) -> Manifest | None:
        """The target's manifest, weights included; None for a target that states none. Made when first asked for."""
        if self._identity is None or self._identity.weights.digest is None:
            self._identity = self._make_identity() if self._make_identity is not None else weighed_target(self.target)
        return self._identity

    @overload
    def generate(self, prompt: Prompt, *, n: int, **arguments: Any) -> list[Result]: ...
    @overload
    def generate(self, prompt: Prompt, *, n: None = None, **arguments: Any) -> Result: ...
    def generate(self, prompt: Prompt, *, n: int | None = None, **arguments: Any) -> Result | list[Result]:
        """Generate to the end and return the result, or a list of ``n`` results where ``n`` is given.

        ``prompt``: a raw text, token ids, or chat messages; ``max_new_tokens``; ``stop``: strings that end the output;
        ``stop_ids``: ids that do, instead of the model's own; ``seed``; ``log_probs``; ``grammar``; and every field of
        ``SamplingPolicy`` by name, or ``policy`` as a whole. Of ``n`` generations with one seed, each has draws of its own.
        Raises ``InvalidRequest`` before anything is emitted, and ``GenerationError`` with what was emitted after.
        """
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidRequest("n", "must be an integer >= 1", n)
        first = self._request(prompt, **arguments)
        results = [self._run(attrs.evolve(first, sample=sample)) for sample in range(n or 1)]
        return results[0] if n is None else results

    def stream(self, prompt: Prompt, **arguments: Any) -> Stream:
        """Return the generation as an iterator of pieces, one a round; takes what ``generate`` takes, except ``n``.

        The request is checked now; the engine is taken at the first piece and free again after the last, or after
        ``close``.
        """
        return Stream(self, self._request(prompt, **arguments))

    def reset(self) -> None:
        """Forget everything learned from requests: cached prefixes and the drafters' own state."""
        with self._taken():
            self.target.reset()
            for drafter in self.drafters.values():
                drafter.reset()

    def close(self) -> None:
        """Close the drafters and free the target's cache; the engine is not used after it."""
        with self._taken():
            for drafter in self.drafters.values():
                drafter.close()
            self.target.reset()

    def _run(self, request: Request) -> Result:
        stream = Stream(self, request)
        for _ in stream:
            pass
        return stream.result

    def _request(
        self,
        prompt: Prompt,
        *,
        max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS,
        stop: str | Sequence[str] | None = None,
        stop_ids: Sequence[int] | None = None,
        seed: int | None = None,
        log_probs: bool = False,
        grammar: Grammar | None = None,
        policy: SamplingPolicy | None = None,
        criterion: Callable[[torch.Tensor], bool] | None = None,
        **fields: Any,
    ) -> Request:
        facts = self.target.facts
        unknown = sorted(fields.keys() - _POLICY_FIELDS)
        if unknown:
            allowed = ", ".join(sorted(_POLICY_FIELDS))
            raise InvalidRequest(
                unknown[0], "is not an argument of generate", fields[unknown[0]], f"allowed: {allowed}"
            )
        if policy is not None and fields:
            raise InvalidRequest("policy", "excludes single policy fields", sorted(fields), "use one of the two")
        policy = policy or SamplingPolicy(**fields)
        policy.check_ids(facts.vocab_size)
        pinned = self.pin.decoding.sampling if self.pin is not None else None
        if pinned is not None and sampling_digest(policy) != pinned:
            raise InvalidRequest(
                "policy", f"must be the one that the strategy's manifest pins ({pinned})", sampling_digest(policy)
            )
        if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, int) or max_new_tokens < 0:
            raise InvalidRequest("max_new_tokens", "must be an integer >= 0", max_new_tokens)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64):
            raise InvalidRequest("seed", "must be an integer in [0, 2**64)", seed)
        strings = as_stop_strings(stop)
        if strings.strings and self._table is None:
            raise InvalidRequest("stop", "needs a target with a tokenizer", stop, "use stop_ids")
        ids = facts.stop_ids if stop_ids is None else frozenset(stop_ids)
        if any(not 0 <= token < facts.vocab_size for token in ids):
            raise InvalidRequest("stop_ids", f"must be in [0, {facts.vocab_size})", sorted(ids))
        return Request(
            prompt_ids=encode(prompt, facts),
            budget=max_new_tokens,
            policy=policy,
            stop_ids=ids,
            stop_strings=strings,
            seed=None if policy.is_greedy else fresh_seed() if seed is None else seed,
            grammar=grammar,
            log_probs=log_probs,
            criterion=criterion,
        )

    def _require_pinned(self, pin: Manifest) -> None:
        name = Path(self.strategy.identity.manifest or "").name
        identity = self.identity
        if identity is None:
            raise IncompatibleManifest(
                f"the strategy pins manifest '{name}', but this target states no identity; set one in its facts"
            )
        require_equal(pin, identity, name=name)

    def _strings(self) -> list[str | None] | None:
        from specframe.manifest.tokens import token_strings

        tokenizer = self.target.facts.tokenizer
        return token_strings(tokenizer) if tokenizer is not None else None

    def _begin(self, request: Request) -> Generation:
        return Generation(
            self.target,
            self.drafters,
            self.strategy,
            request,
            request_id=next(self._request_ids),
            table=self._table,
            debug=self._debug,
        )

    def _taken(self) -> _Hold:
        return _Hold(self)


class _Hold:
    """The right to use an engine's target: one generation at a time, the others wait."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        engine, me = self._engine, threading.get_ident()
        if not engine._lock.acquire(blocking=False):
            if engine._holder == me:
                raise EngineBusy("this thread has an open stream on the engine; read it to its end or close it first")
            engine._lock.acquire()
        engine._holder = me

    def __exit__(self, *_: object) -> None:
        self._engine._holder = None
        self._engine._lock.release()


class Stream(Iterator[Piece]):
    """A generation in pieces, one a round. ``result`` is there after the last piece; ``close`` ends it early."""

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine, self._request = engine, request
        self._result: Result | None = None
        self._pieces = self._generate()

    def __next__(self) -> Piece:
        return next(self._pieces)

    @property
    def result(self) -> Result:
        """The finished generation. Raises ``GenerationError`` while it is not finished."""
        if self._result is None:
            raise GenerationError("the stream is not finished; read it to its end", token_ids=(), text="")
        return self._result

    def close(self) -> None:
        """End the generation between rounds and free the engine; nothing more is emitted."""
        self._pieces.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _generate(self) -> Generator[Piece, None, None]:
        with self._engine._taken():
            generation = self._engine._begin(self._request)
            try:
                while not generation.is_done:
                    yield _step(generation)
            finally:
                generation.close()
            self._result = _finish(self._engine, generation)


def _step(generation: Generation) -> Piece:
    try:
        return generation.step()
    except TargetError as error:
        if not generation.token_ids:
            raise
        raise GenerationError(
            f"generation ended early: {error}", token_ids=generation.token_ids, text=generation.text
        ) from error


def _finish(engine: Engine, generation: Generation) -> Result:
    request, stopper = generation.request, generation.stopper
    is_residual = not request.policy.is_greedy and engine.strategy.verifier == "residual"
    return Result(
        token_ids=tuple(generation.token_ids),
        text=generation.text,
        finish_reason=stopper.reason or "length",
        stop_match=stopper.match,
        seed=request.seed,
        exactness="distribution-exact" if is_residual else "token-exact",
        stats=summarise(generation.records, emit_s=generation.emit_s),
        records=tuple(generation.records),
        events=generation.events,
        log_probs=tuple(generation.log_probs) if request.log_probs else None,
    )
