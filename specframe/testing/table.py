"""A target whose logits are a table over the last few token ids, for tests of everything above a model.

Rows depend on nothing but those ids, so that batch shape, cache and device play no part: what differs from plain
decoding is the code under test. The cache is an honest list of ids, and every misuse of the protocol raises before
anything changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from specframe.errors import CacheError, StaleEpoch, TargetError
from specframe.proposal import TargetFacts
from specframe.target import SINGLE, Kernel, Ticket, Verification

Row = Sequence[float]
RowFunction = Callable[[tuple[int, ...]], Row]


class Call(NamedTuple):
    """One call of a session: ``kind`` (prefill, verify, commit, close), the ids fed or kept, and their positions."""

    kind: str
    ids: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()


class TableTarget:
    """A target with a table for a model.

    ``rows``: a function of the last ``order`` ids (fewer at the start) that returns a row of logits, or a mapping from
    such tuples to rows with ``default`` for the others. A row function that raises is a forward that fails. ``calls``
    logs what every session was asked, and ``on_call`` is told each call; ``num_forwards`` counts prefills and
    verifications. One session is open at a time.
    """

    def __init__(
        self,
        rows: RowFunction | Mapping[tuple[int, ...], Row],
        *,
        vocab_size: int,
        order: int = 1,
        default: Row | None = None,
        context_limit: int | None = None,
        stop_ids: Sequence[int] | frozenset[int] = (),
        tokenizer: Any = None,
        dtype: torch.dtype = torch.float64,
        on_call: Callable[[Call], None] | None = None,
    ) -> None:
        self._rows = rows if callable(rows) else _lookup(rows, default)
        self._order, self._dtype, self._on_call = order, dtype, on_call
        self.facts = TargetFacts(
            vocab_size=vocab_size,
            stop_ids=frozenset(stop_ids),
            context_limit=context_limit,
            dtype=str(dtype).removeprefix("torch."),
            tokenizer=tokenizer,
        )
        self.cached_ids: list[int] = []
        self.calls: list[Call] = []
        self.num_forwards = 0
        self._session: TableSession | None = None

    @classmethod
    def from_probs(
        cls,
        rows: RowFunction | Mapping[tuple[int, ...], Row],
        *,
        vocab_size: int,
        default: Row | None = None,
        **options: Any,
    ) -> TableTarget:
        """Make a target from rows of probabilities; its logits are their float64 logarithms, -inf for 0."""
        probs = rows if callable(rows) else _lookup(rows, default)
        return cls(lambda ids: [_log(prob) for prob in probs(ids)], vocab_size=vocab_size, **options)

    def row(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after ``ids``, ``[vocab]``."""
        context = tuple(ids[max(0, len(ids) - self._order) :])
        row = torch.tensor(list(self._rows(context)), dtype=self._dtype)
        assert row.shape == (self.facts.vocab_size,), f"the row after {context} has {row.numel()} entries"
        return row

    def greedy(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        """Return the plain greedy continuation (lowest id of equals), up to and including a stop id."""
        ids = list(prompt_ids)
        for _ in range(num_tokens):
            row = self.row(ids).tolist()
            ids.append(row.index(max(row)))
            if ids[-1] in self.facts.stop_ids:
                break
        return ids[len(prompt_ids) :]

    def kernel(self, wanted: str) -> Kernel:
        """Return ``single``, or blocks of the rows asked for (8 if none are), certified: a row depends on ids alone."""
        if wanted in ("auto", "single"):
            return SINGLE
        return Kernel(int(wanted.partition(":")[2] or 8), is_certified=True)

    def row_costs(self) -> Sequence[float]:
        """Return nothing: what a table costs says nothing of a model."""
        return ()

    def open(self, request_id: int, *, max_tokens: int, kernel: Kernel = SINGLE) -> TableSession:
        """Start a session; one that is still open is replaced, and its tickets are stale."""
        if self._session is not None:
            self._session.close()
        self._session = TableSession(self, request_id, max_tokens, kernel)
        return self._session

    def log(self, call: Call) -> None:
        """Note a call of a session."""
        self.calls.append(call)
        if self._on_call is not None:
            self._on_call(call)

    def reset(self) -> None:
        """Forget the cached prefix; a session that is still open is ended."""
        if self._session is not None:
            self._session.close()
        self.cached_ids.clear()


class TableSession:
    """One generation on a table target; ``num_provisional`` ids at the cache's end may be rolled back."""

    def __init__(self, target: TableTarget, request_id: int, max_tokens: int, kernel: Kernel) -> None:
        self._target, self._request_id, self._max_tokens, self._kernel = target, request_id, max_tokens, kernel
        self.epoch = 0
        self.num_provisional = 0
        self._is_prefilled = self._is_closed = False

    @property
    def num_committed(self) -> int:
        return len(self._target.cached_ids) - self.num_provisional if self._is_prefilled else 0

    def prefill(self, ticket: Ticket, prompt_ids: Sequence[int]) -> Verification:
        """Feed what the cache lacks of the prompt, at least its last id, and return the row after it."""
        self._check(ticket)
        if self._is_prefilled:
            raise CacheError("prefill was called twice in one session")
        if not prompt_ids:
            raise CacheError("a prompt must hold at least one id")
        cached = self._target.cached_ids
        shared = 0
        while shared < min(len(cached), len(prompt_ids) - 1) and cached[shared] == prompt_ids[shared]:
            shared += 1
        self._check_fed(prompt_ids[shared:], shared)
        del cached[shared:]
        logits = self._feed(ticket, "prefill", prompt_ids[shared:], num_rows=1)
        self._is_prefilled, self.num_provisional = True, 0
        return Verification(logits)

    def verify_linear(
        self, ticket: Ticket, pending: int, proposal: Sequence[int], *, num_skipped: int = 0
    ) -> Verification:
        """Feed the pending id and the proposal, and return the row after each, without the first ``num_skipped``."""
        self._check(ticket)
        if not self._is_prefilled:
            raise CacheError("verify_linear was called before prefill")
        if self.num_provisional:
            raise CacheError(f"verify_linear was called with {self.num_provisional} provisional ids not yet committed")
        fed = [pending, *proposal]
        self._check_fed(fed, len(self._target.cached_ids))
        self._kernel.check(self.num_committed, len(fed))
        if not 0 <= num_skipped <= len(proposal):
            raise CacheError(f"cannot skip {num_skipped} rows of {len(fed)}: the last is always read")
        return Verification(self._feed(ticket, "verify", fed, num_rows=len(fed) - num_skipped))

    def commit(self, ticket: Ticket, num_tokens: int) -> None:
        """Keep the first ``num_tokens`` provisional ids and drop the rest."""
        self._check(ticket)
        if not 0 <= num_tokens <= self.num_provisional:
            raise CacheError(f"cannot commit {num_tokens} of {self.num_provisional} provisional ids")
        start = self.num_committed
        del self._target.cached_ids[start + num_tokens :]
        self.num_provisional = 0
        kept = tuple(self._target.cached_ids[start:])
        self._target.log(Call("commit", kept, tuple(range(start, start + len(kept)))))

    def check(self, ids: Sequence[int]) -> None:
        """Raise ``CacheError`` unless the cache stands for exactly these ids."""
        if self._target.cached_ids != list(ids):
            raise CacheError(
                f"the cache stands for {len(self._target.cached_ids)} ids, which are not the {len(ids)} that it should"
            )

    def cancel(self) -> None:
        """Make every ticket of the current epoch stale."""
        self.epoch += 1

    def close(self) -> None:
        """Roll back what is provisional and end the session; a second call does nothing."""
        if self._is_closed:
            return
        self.cancel()
        self._roll_back()
        self._is_closed = True
        self._target.log(Call("close"))

    def _feed(self, ticket: Ticket, kind: str, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        target = self._target
        start = len(target.cached_ids)
        target.log(Call(kind, tuple(ids), tuple(range(start, start + len(ids)))))
        target.num_forwards += 1
        target.cached_ids.extend(ids)
        self.num_provisional = len(ids)
        end = len(target.cached_ids)
        try:
            return torch.stack([target.row(target.cached_ids[: end - i]) for i in reversed(range(num_rows))])
        except Exception as error:
            self._roll_back()
            raise TargetError(f"the table target's forward failed: {error}", round_id=ticket.round_id) from error

    def _roll_back(self) -> None:
        cached = self._target.cached_ids
        del cached[len(cached) - self.num_provisional :]
        self.num_provisional = 0

    def _check(self, ticket: Ticket) -> None:
        if (ticket.request_id, ticket.epoch) != (self._request_id, self.epoch):
            raise StaleEpoch(
                f"call of request {ticket.request_id}, epoch {ticket.epoch}, on a session of request {self._request_id}, "
                f"epoch {self.epoch}; it was cancelled or replaced"
            )
        if self._is_closed:
            raise CacheError("the session is closed")

    def _check_fed(self, ids: Sequence[int], start: int) -> None:
        facts = self._target.facts
        limit = self._max_tokens if facts.context_limit is None else min(self._max_tokens, facts.context_limit)
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < facts.vocab_size:
                raise CacheError(f"a fed id must be an int in [0, {facts.vocab_size}) (got {token!r})")
        if start + len(ids) > limit:
            raise CacheError(f"{len(ids)} ids at position {start} pass the limit of {limit}")


def random_table(
    *, vocab_size: int = 12, order: int = 2, seed: int = 0, spread: float = 1.5, **options: Any
) -> TableTarget:
    """Return a table target with a fixed random row of logits for every context.

    The logits are normal with standard deviation ``spread``; ``options`` are ``TableTarget``'s.
    """

    @functools.cache
    def row(ids: tuple[int, ...]) -> Row:
        return tuple(np.random.default_rng([seed, *ids]).normal(0, spread, vocab_size).tolist())

    return TableTarget(row, vocab_size=vocab_size, order=order, **options)


def _lookup(rows: Mapping[tuple[int, ...], Row], default: Row | None) -> RowFunction:
    def row(ids: tuple[int, ...]) -> Row:
        found = rows.get(ids, default)
        if found is None:
            raise KeyError(f"no row for {ids}, and no default row")
        return found

    return row


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -math.inf
