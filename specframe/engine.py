"""The engine: a target, drafters and a strategy behind ``generate`` and ``stream``.

Resolves names, checks requests against the strategy, and hands out streams and results. The round loop is
``generation.py``'s, whose turn it is ``stream.py``'s.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Unpack, overload

import attrs

from specframe.cancel import CancelToken, Ending
from specframe.constraint import Grammars
from specframe.errors import GenerationError, IncompatibleManifest, InvalidRequest, SpecframeError
from specframe.generation import Generation
from specframe.lengths import LengthPolicy
from specframe.manifest.collector import of_target, weighed_target
from specframe.manifest.diff import require_equal
from specframe.manifest.digest import sampling_digest
from specframe.manifest.identity import Manifest
from specframe.memory import Ledger, holders
from specframe.plugins import Plugins
from specframe.prompt import Prompt
from specframe.proposal import Drafter
from specframe.provenance import Identities, Provenance, failure_code
from specframe.receipt import Receipt
from specframe.replay import Replay, ReplayedLengths, compare, replayed_seed
from specframe.request import Arguments, Request, integer, make_request
from specframe.resolve import check_needs, make_drafters, read_pin, resolve_with_plugins, terms_of
from specframe.settings import kept_settings
from specframe.strategy import Strategy
from specframe.stream import Result, Stream, hold_of
from specframe.target import Kernel, Target
from specframe.text import TokenBytes

_request_ids = itertools.count(1)


class Engine:
    """Generates from a target with a strategy.

    ``drafters`` are used as they are, by name; without drafters of the strategy's own all of them run, in order.
    ``strategy`` is a name, a ``.toml`` path or a ``Strategy``; ``debug`` checks after every round what the cache stands for;
    ``clock`` tells the seconds that records hold; ``keep_entropies`` keeps those of draft laws in them, which takes about as
    long as a draw; ``identity`` makes the target's manifest when it is asked for, and tells
    that the target was compared with the strategy's pin and needs already. Raises ``UnknownName``, ``InvalidStrategy``,
    ``PluginError`` or ``IncompatibleManifest`` before anything runs.
    """

    def __init__(
        self,
        target: Target,
        drafters: Mapping[str, Drafter] | None = None,
        *,
        strategy: str | Path | Strategy = "none",
        plugins: Plugins | None = None,
        identity: Callable[[], Manifest] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        keep_entropies: bool = False,
        debug: bool = False,
    ) -> None:
        self.target, self._clock, self._debug = target, clock, debug
        self._keep_entropies = keep_entropies
        self.strategy, loaded = resolve_with_plugins(strategy, plugins)
        stated = None if identity else target.facts.identity
        self._identities = Identities(identity or partial(weighed_target, target), stated)
        self.pin = read_pin(self.strategy)
        if self.pin is not None and identity is None:
            self._require_pinned(self.pin)
        self._identities.sources = check_needs(
            self.strategy, loaded, lambda: of_target(target), given=drafters or {}, target_strings=self._strings
        )
        with kept_settings():
            self.drafters = make_drafters(self.strategy, loaded, target, drafters or {})
        self._terms = terms_of(self.strategy, loaded, drafters or {})
        self._grammars = Grammars(loaded, target.facts)
        # What cannot be kept is refused now, and what must be measured is measured before the first request.
        is_flat = target.kernel(self.strategy.kernel).width is not None
        if self.drafters and self.strategy.length.policy == "adaptive" and not is_flat:
            target.row_costs()
        self._provenance = Provenance(self.strategy, loaded, self.drafters, drafters or {}, self._identities)
        numbered = {str(number): drafter for number, drafter in enumerate(self.drafters.values())}
        self._ledger = Ledger(holders(target, numbered))
        self._table = TokenBytes(target.facts.tokenizer) if target.facts.tokenizer is not None else None
        self._is_closed = False

    @property
    def identity(self) -> Manifest | None:
        """The target's manifest, weights included; None for a target that states none. Made when first asked for."""
        return self._identities.target

    @property
    def kernel(self) -> Kernel:
        """The kernel contract that the next request runs under; measured when it is new for the model and the machine."""
        return self.target.kernel(self.strategy.kernel)

    @property
    def draft_identities(self) -> dict[str, Manifest]:
        """The manifests of the drafters' own models by drafter, with what weights they have. Made when first asked for."""
        return self._identities.drafts

    @overload
    def generate(self, prompt: Prompt, *, n: int, **arguments: Unpack[Arguments]) -> list[Result]: ...
    @overload
    def generate(self, prompt: Prompt, *, n: None = None, **arguments: Unpack[Arguments]) -> Result: ...
    def generate(
        self, prompt: Prompt, *, n: int | None = None, **arguments: Unpack[Arguments]
    ) -> Result | list[Result]:
        """Generate to the end and return the result, or a list of ``n`` results where ``n`` is given.

        ``prompt``: a raw text, token ids, or chat messages; ``arguments``: see ``Arguments``. Of ``n`` generations with one
        seed, each has draws of its own. A call that is cancelled, or past its deadline, returns what was emitted; those of
        the ``n`` that had not begun are empty. Raises ``InvalidRequest`` before anything is emitted, ``EngineBusy`` where the
        target was in use until the call was cancelled, and ``GenerationError`` with what was emitted, and the results that
        are finished, after.
        """
        if n is not None:
            n = integer("n", n, 1)
        request = self._request(prompt, arguments)
        ending = self._ending(request)
        results: list[Result] = []
        for sample in range(n or 1):
            try:
                results.append(_read(self._stream(attrs.evolve(request, sample=sample), ending)))
            except SpecframeError as error:
                if not results:
                    raise
                message = f"generation {sample + 1} of {n} failed ({error}); the finished ones are in .results"
                ids, text = getattr(error, "token_ids", ()), getattr(error, "text", "")
                raise GenerationError(message, token_ids=ids, text=text, results=results) from error
        return results[0] if n is None else results

    def stream(self, prompt: Prompt, **arguments: Unpack[Arguments]) -> Stream:
        """Return the generation as an iterator of pieces, one a round; takes what ``generate`` takes, except ``n``.

        The request is checked now; the target is taken at the first piece and free again after the last, or after
        ``close``.
        """
        request = self._request(prompt, arguments)
        return self._stream(request, self._ending(request))

    def replay(self, receipt: Receipt, prompt: Prompt, **arguments: Unpack[Arguments]) -> Replay:
        """Repeat the generation that a receipt tells of, and return where the two runs part, if they do.

        ``prompt`` and ``arguments`` are those of the first run; its seed is the receipt's. Runs on what is cached now: call
        ``reset`` before it to repeat a run that was the first one of its engine. A run that ended early is repeated as far as
        it came; budgets of drafters in this process do not hold. Raises like ``generate``, unless the first run failed in
        the same way, and ``InvalidReceipt`` for a coarse receipt.
        """
        seed, end = replayed_seed(receipt, arguments.get("seed")), CancelToken()
        request = self._request(prompt, {**arguments, "seed": seed})
        request = attrs.evolve(request, sample=receipt.seed.sample, cancel=end, deadline_s=None)
        lengths = ReplayedLengths(receipt, self._provenance.labels)
        stream = self._stream(request, self._ending(request), lengths=lengths, nonce=receipt.request_nonce)
        try:
            for num_rounds in itertools.count():
                if receipt.ended_early and num_rounds == len(receipt.rounds):
                    end.cancel()
                if next(stream, None) is None:
                    break
        except Exception as error:
            if failure_code(error) != receipt.failure:
                raise
            return compare(receipt, stream.receipt)
        return compare(receipt, stream.receipt, stream.result)

    def reset(self) -> None:
        """Forget everything learned from requests: cached prefixes and the drafters' own state.

        To be called after the model's weights were changed: what is cached is another model's.
        """
        with hold_of(self.target).taken(), kept_settings():
            self.target.reset()
            _call_all(drafter.reset for drafter in self.drafters.values())

    def close(self) -> None:
        """Close the drafters and free the target's cache; the engine takes no more requests."""
        with hold_of(self.target).taken(), kept_settings():
            self._is_closed = True
            self.target.reset()
            _call_all(drafter.close for drafter in self.drafters.values())

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise InvalidRequest("engine", "must be open", "closed", "make another one")

    def _request(self, prompt: Prompt, arguments: Arguments) -> Request:
        self._check_open()
        request = make_request(prompt, arguments, self.target.facts, self._grammars.compile)
        if self.pin is not None:
            self._require_pinned_decoding(self.pin, request)
        return request

    def _ending(self, request: Request) -> Ending:
        return Ending(request.cancel, request.deadline_s, self._clock)

    def _stream(
        self, request: Request, ending: Ending, *, lengths: LengthPolicy | None = None, nonce: str | None = None
    ) -> Stream:
        terms = self._terms
        if lengths is not None:  # a replay: what was late then says nothing of now
            terms = {name: term._replace(budget_s=None) for name, term in terms.items()}

        def begin() -> Generation:
            self._check_open()
            return Generation(
                self.target,
                self.drafters,
                self.strategy,
                request,
                kernel=self.kernel,
                request_id=next(_request_ids),
                table=self._table,
                terms=terms,
                lengths=lengths,
                clock=self._clock,
                account=self._ledger.account,
                keep_entropies=self._keep_entropies,
                debug=self._debug,
            )

        return Stream(begin, hold_of(self.target), ending, partial(self._provenance.receipt, nonce=nonce))

    def _require_pinned(self, pin: Manifest) -> None:
        name = Path(self.strategy.identity.manifest or "").name
        identity = self.identity
        if identity is None:
            raise IncompatibleManifest(
                f"the strategy pins manifest '{name}', but this target states no identity; set one in its facts"
            )
        require_equal(pin, identity, name=name)

    def _require_pinned_decoding(self, pin: Manifest, request: Request) -> None:
        constraint = request.constraint
        stated = {
            "policy": (pin.decoding.sampling, sampling_digest(request.policy)),
            "grammar": (pin.decoding.grammar, constraint.digest if constraint is not None else None),
        }
        for field, (pinned, digest) in stated.items():
            if pinned is not None and digest != pinned:
                raise InvalidRequest(field, f"must be the one that the strategy's manifest pins ({pinned})", digest)

    def _strings(self) -> list[str | None] | None:
        from specframe.manifest.tokens import token_strings

        tokenizer = self.target.facts.tokenizer
        return token_strings(tokenizer) if tokenizer is not None else None


def _read(stream: Stream) -> Result:
    for _ in stream:
        pass
    return stream.result


def _call_all(calls: Iterable[Callable[[], None]]) -> None:
    """Make every call; the first exception is raised after the last call."""
    first: Exception | None = None
    for call in calls:
        try:
            call()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
