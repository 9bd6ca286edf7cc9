"""The target protocol: what the engine needs of a model whose distribution is authoritative.

Knows tensors of logits and token ids, and nothing about transformers; ``transformers_target.py`` is one implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from specframe.errors import CacheError

if TYPE_CHECKING:
    import torch

    from specframe.proposal import TargetFacts


class Ticket(NamedTuple):
    """Who calls: travels with every call of a session; a stale epoch changes nothing and raises ``StaleEpoch``."""

    request_id: int
    round_id: int
    epoch: int


GRANULE = 64  # keys are shown to attention in multiples of so many, under a block kernel


class Kernel(NamedTuple):
    """A kernel contract: how the forwards are run whose rows are read.

    ``width``: the rows that each of them has, over keys padded to a multiple of 64, or None for rows as they come
    (``single``); ``is_certified``: on this machine rows were found not to depend, to the bit, on what stands in the others;
    ``note``: why less is promised than could be.
    """

    width: int | None = None
    is_certified: bool = False
    note: str = ""

    def __str__(self) -> str:
        return "single" if self.width is None else f"block:{self.width}"

    def most_ids(self, num_committed: int) -> int | None:
        """Return how many ids the next block may hold, None for any number.

        Attention sums over its padded keys, and in which order depends on how many there are. So a row counts only where a
        block that began at it would be padded to the same length, which is what plain decoding computes.
        """
        if self.width is None:
            return None
        return min(self.width, 1 + -(num_committed + self.width) % GRANULE)

    def check(self, num_committed: int, num_ids: int) -> None:
        """Raise ``CacheError`` where a call after ``num_committed`` ids may not hold ``num_ids``."""
        most_ids = self.most_ids(num_committed)
        if most_ids is not None and num_ids > most_ids:
            raise CacheError(
                f"a call under kernel '{self}' after {num_committed} ids takes at most {most_ids}, the pending one "
                f"included; it got {num_ids}"
            )


SINGLE = Kernel()


class Verification(NamedTuple):
    """Rows of one target call, provisional until the engine commits a prefix of what was fed.

    ``logits``: ``[1 + num_proposed - num_skipped, vocab]``, the target's dtype and device; with none skipped row i predicts
    proposal i, the last row the extra token. The rows belong to the caller. ``num_forwards``: how many forwards it took (a
    prefill takes one a chunk, or none for a prompt that is cached). ``note``: why rows of this call need not be those that the
    session's kernel would have given to the bit; empty where they are.
    """

    logits: torch.Tensor
    num_forwards: int = 1
    note: str = ""


class TargetSession(Protocol):
    """One generation on a target, from prefill to close. All lengths count tokens."""

    @property
    def num_committed(self) -> int:
        """How many ids the cache stands for, all authoritative."""

    @property
    def epoch(self) -> int:
        """The current cancellation epoch; a ticket with another one is stale."""

    def prefill(self, ticket: Ticket, prompt_ids: Sequence[int]) -> Verification:
        """Feed the part of the prompt that is not cached, commit it, and return the row that predicts the first token."""

    def verify_linear(
        self, ticket: Ticket, pending: int, proposal: Sequence[int], *, num_skipped: int = 0
    ) -> Verification:
        """Feed the pending id and the proposal after the committed ids; zero proposals is the plain decode step.

        Nobody reads the first ``num_skipped`` rows, at most one for each proposal: they need no logits and are left out.
        Ordinary causal masking; positions continue the committed length. What was fed is provisional. Raises
        ``TargetError`` when the forward fails; the provisional tail is then gone.
        """

    def commit(self, ticket: Ticket, num_tokens: int) -> None:
        """Make the first ``num_tokens`` of what was fed authoritative and roll back the rest."""

    def cancel(self) -> None:
        """Begin another epoch: every ticket that is out becomes stale."""

    def check(self, ids: Sequence[int]) -> None:
        """Raise ``CacheError`` unless the cache stands for exactly these ids; asked after each round when debugging."""

    def close(self) -> None:
        """Roll back what is provisional and end the session; the committed prefix may serve a later request.

        Where that fails, the engine calls the target's ``reset``.
        """


class Target(Protocol):
    """A model whose distribution is authoritative."""

    @property
    def facts(self) -> TargetFacts:
        """What drafters and grammars may know."""

    def kernel(self, wanted: str) -> Kernel:
        """Return the kernel contract that a strategy's ``kernel`` stands for here, measured if it must be.

        Raises ``UnsupportedModel`` for a contract that is asked for by name and that the model cannot keep.
        """

    def row_costs(self) -> Sequence[float]:
        """Return what a forward of 1, 2, ... rows as they come costs over one of a single row, measured if it must be.

        As far as is worth knowing, two or more of them; empty where it is not known. Asked for by drafters' adaptive lengths.
        """

    def open(self, request_id: int, *, max_tokens: int, kernel: Kernel = SINGLE) -> TargetSession:
        """Start a session; ``max_tokens`` is the longest sequence that it may hold, prompt included, for reservation.

        ``kernel``: one that ``kernel`` returned; a proposal has at most ``width - 1`` tokens then. A session that is still
        open was interrupted before it could be closed: it is ended.
        """

    def reset(self) -> None:
        """Forget every cached prefix and free its memory; a session that is still open is ended."""
