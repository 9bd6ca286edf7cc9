"""The proposal contract: what a drafter sees, what it may add, and what the core keeps of it.

Imports neither torch nor numpy, so that a plugin module stays cheap to import. A drafter never reports a probability and
never decides a token of the output: it offers ids (point masses) or hands logits to the core, which draws.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload, runtime_checkable

import attrs

from specframe.errors import ProposalError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from specframe.distribution import Distribution
    from specframe.grammar import Grammar
    from specframe.manifest.identity import Manifest
    from specframe.sampling import SamplingPolicy

    Law = Distribution | None
    """How a proposed token was chosen: ``None`` is a point mass, else the very distribution that it was drawn from."""


VIEWS = ("embeddings", "head", "layers")


def _optional_size(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise ValueError(f"'{attribute.name}' must be an integer >= 1 or None (got {value!r})")


def _layers(instance: Any, attribute: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
    if any(isinstance(layer, bool) or not isinstance(layer, int) or layer < 0 for layer in value):
        raise ValueError(f"'{attribute.name}' must be integers >= 0, 0 being the embeddings (got {value!r})")


def _optional_digest(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None and not (isinstance(value, str) and ":sha256:" in value):
        raise ValueError(f"'{attribute.name}' must be a weights digest of a manifest or None (got {value!r})")


@attrs.frozen
class Features:
    """The hidden states that a drafter's heads were made for; None or empty leaves a part open.

    ``hidden_size``: their width; ``layers``: which, 0 being the embeddings and n the output of layer n; ``weights``: the
    weights digest, from its manifest, of the target that the heads were trained on.
    """

    hidden_size: int | None = attrs.field(default=None, validator=_optional_size)
    layers: tuple[int, ...] = attrs.field(default=(), converter=tuple, validator=_layers)
    weights: str | None = attrs.field(default=None, validator=_optional_digest)


@attrs.frozen
class Needs:
    """What a drafter needs of a target, checked before its factory runs and before a target that is named loads; and what it
    says of itself (``draws``, ``cheap``).

    ``tokenizer``: ``none`` (works on any ids), ``same`` (reads and writes the target's ids as text, by its tokenizer or by a
    model of its own), ``reduced`` (a declared subset of the ids, or all of them) or ``bytes``. ``draws``: it calls ``draw`` or
    ``draw_rows``, which raise for one that does not say so; only one that does not can run in a worker. ``model``: the name of
    the option that names the drafter's own model, whose manifest is then compared with the target's; None there stands for no
    model of its own. ``features``: the hidden states that it reads. ``views``: what it may read of the target's weights,
    ``embeddings``, ``head`` or ``layers``; see ``Views``. ``grammar``: it proposes from the request's grammar, so that without
    it there is nothing to propose. ``cheap``: it needs next to no time, as what runs no model, so that adaptive lengths let a
    request's first proposal be longer where it is known what rows cost; from then on what it took is what counts.
    """

    tokenizer: Literal["none", "same", "reduced", "bytes"] = attrs.field(
        default="none", validator=attrs.validators.in_(("none", "same", "reduced", "bytes"))
    )
    draws: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    model: str | None = None
    features: Features | None = None
    views: frozenset[str] = attrs.field(
        default=frozenset(), validator=attrs.validators.deep_iterable(attrs.validators.in_(VIEWS))
    )
    grammar: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    cheap: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))


class Views(Protocol):
    """What a drafter may read of a target's weights. Nothing is copied, and nothing may be written.

    Each raises ``PluginError`` unless the drafter's ``needs`` declare it, and ``UnsupportedModel`` where the target has none.
    """

    @property
    def embeddings(self) -> torch.Tensor:
        """The input embeddings, ``[vocab, hidden]``."""

    @property
    def head(self) -> torch.Tensor:
        """The output embeddings, ``[vocab, hidden]``."""

    def first_layers(self, num_layers: int) -> PreTrainedModel:
        """Return a model of the target's first layers and its head, with the target's own tensors."""


@attrs.frozen
class TargetFacts:
    """What anyone may know of a target.

    ``vocab_size``: width of its logits; ``stop_ids``: its end-of-sequence ids; ``context_limit``: tokens, or None;
    ``speculation_limit``: the length past which rows of one call depend on each other (length-dependent RoPE), or None;
    ``dtype`` and ``device`` as torch spells them; ``tokenizer``: the transformers tokenizer, or None; ``identity``: the
    compatibility manifest, or None where it was not made; ``views``: for a drafter whose ``needs`` declare some, what it
    may read of the target's weights, or None where the target lends nothing.
    """

    vocab_size: int
    stop_ids: frozenset[int] = frozenset()
    context_limit: int | None = None
    speculation_limit: int | None = None
    dtype: str = "float32"
    device: str = "cpu"
    tokenizer: Any = attrs.field(default=None, repr=False)
    identity: Manifest | None = attrs.field(default=None, repr=False, eq=False)
    views: Views | None = attrs.field(default=None, repr=False, eq=False)


@attrs.frozen
class DraftRequest:
    """What a drafter may know of a request: never the seed, the RNG or the target's cache.

    ``stop_ids`` are the request's own; ``grammar`` is None without one.
    """

    prompt_ids: tuple[int, ...]
    facts: TargetFacts
    policy: SamplingPolicy
    stop_ids: frozenset[int]
    grammar: Grammar | None = None


@attrs.frozen
class Commit:
    """New authoritative ids after a round; the prompt is the first.

    ``ids`` stand at positions ``start_pos``, ``start_pos + 1``, ...; of the round's ``num_proposed`` tokens the first
    ``num_accepted`` are among them. The record may gain fields.
    """

    ids: tuple[int, ...]
    start_pos: int
    num_proposed: int = 0
    num_accepted: int = 0


class Drafter(Protocol):
    """A proposal source, one per engine."""

    def open(self, request: DraftRequest) -> DraftSession:
        """Start a session for one generation; may reuse its own prefix state from earlier requests."""

    def reset(self) -> None:
        """Forget everything learned from requests (before benchmarks and certificates)."""

    def close(self) -> None:
        """Release what the drafter holds; the engine is going away."""


class DraftSession(Protocol):
    """A drafter's part in one generation."""

    def propose(self, round: Round) -> None:
        """Add tokens to the round; may add none."""

    def commit(self, commit: Commit) -> None:
        """Take note of new authoritative ids; called after every round, whoever proposed."""

    def close(self) -> None:
        """End the session; called once, also after a failure."""


@runtime_checkable
class HoldsTensors(Protocol):
    """What a drafter or a target may offer besides, so that accounts of memory know what it holds."""

    def tensors(self) -> Mapping[str, Iterable[torch.Tensor]]:
        """Return every tensor that is held, those of others too, by part: ``weights``, which stay, ``cache`` and the like.

        Each part is read once, if at all: it may be an iterator.
        """


class TokenView(Sequence[int]):
    """A read-only view of token ids, fixed in length when it was made; slices are tuples.

    Valid while the round is open: it does not copy, so what it shows later is not the context of its round.
    """

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: Sequence[int], length: int) -> None:
        self._ids, self._length = ids, length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...
    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return tuple(self._ids[start:stop])
            return tuple(self._ids[i] for i in range(start, stop, step))
        if not -self._length <= index < self._length:
            raise IndexError(f"token index {index} is outside a context of {self._length}")
        return self._ids[index % self._length]

    def __iter__(self) -> Iterator[int]:
        return (self._ids[i] for i in range(self._length))


class Proposal:
    """What a round puts to the verifier, one entry per token in each list.

    ``parents[i]`` is the node before i (-1: the pending token; i - 1 today); ``laws[i]`` how it was chosen;
    ``drafters[i]`` who proposed it.
    """

    __slots__ = ("drafters", "ids", "laws", "parents")

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.parents: list[int] = []
        self.laws: list[Law] = []
        self.drafters: list[str] = []

    def __len__(self) -> int:
        return len(self.ids)

    def append(self, token: int, law: Law, drafter: str) -> None:
        """Add a token below the last one. There is no way to take one back."""
        self.parents.append(len(self.ids) - 1)
        self.ids.append(token)
        self.laws.append(law)
        self.drafters.append(drafter)


class Drawn(NamedTuple):
    """A token that the core drew for a drafter, and the law that it was drawn from."""

    token: int
    law: Law


class RoundContext(Protocol):
    """The core's side of a round: its prefix, its grammar and its random draws."""

    @property
    def ids(self) -> Sequence[int]:
        """Authoritative ids and what is proposed so far."""

    def is_allowed(self, token: int) -> bool:
        """Tell whether the grammar, if any, allows the id after the prefix."""

    def is_exhausted(self) -> bool:
        """Tell whether the grammar, if any, allows nothing after the prefix."""

    def draw(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None, node: int) -> Drawn:
        """Process a row in the prefix's context and draw from it."""

    def push(self, token: int) -> None:
        """Extend the prefix by a proposed token."""


class Round:
    """One round's proposal in the making; owned by the core, lent to each drafter in turn.

    Bound to the thread of the generation and closed when ``propose`` returns: a later call raises ``ProposalError``.
    """

    __slots__ = (
        "_context", "_drafter", "_end", "_index", "_is_ended", "_may_draw", "_proposal", "_room", "_stop_ids",
        "_thread_id", "_vocab_size",
    )  # fmt: skip

    def __init__(
        self,
        context: RoundContext,
        proposal: Proposal,
        *,
        index: int,
        room: int,
        vocab_size: int,
        stop_ids: frozenset[int],
    ) -> None:
        self._context, self._proposal = context, proposal
        self._room, self._vocab_size, self._stop_ids = room, vocab_size, stop_ids
        self._thread_id, self._drafter, self._is_ended = threading.get_ident(), "", False
        self._may_draw = True
        self._index, self._end = index, room  # the room of whoever has the round ends at `_end`

    @property
    def index(self) -> int:
        """The round's number in the generation; round 0 is the prefill, which takes no proposal."""
        return self._index

    @property
    def context(self) -> TokenView:
        """Authoritative ids and what is already proposed in this round."""
        return TokenView(self._context.ids, len(self._context.ids))

    @property
    def room(self) -> int:
        """How many more tokens this round takes; 0 also once a stop token was added."""
        return 0 if self._is_ended else self._end - len(self._proposal)

    def offer(self, token: int) -> bool:
        """Propose an id of the drafter's own choice; its law is a point mass.

        Returns False, and adds nothing, when the round is full, after a stop token, or when the grammar forbids the id.
        Raises ``ProposalError`` for an id outside the target's vocabulary.
        """
        self._check_open()
        token = self._check_id(token)
        if self.room <= 0 or not self._context.is_allowed(token):
            return False
        self._append(token, None)
        return True

    def draw(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None = None) -> int | None:
        """Let the core process a row of draft logits, draw from it and propose what it drew; return the target id.

        ``logits``: ``[columns]``, any float dtype; it is cloned. ``ids`` maps columns to target ids, injectively
        (``[columns]``; an id outside the vocabulary marks a column without one, which is masked); without it column i is
        id i. Returns None, and draws nothing, when the round is full or after a stop token. Raises ``ProposalError`` for a
        row with a NaN or without a valid token, and for a drafter whose ``needs`` do not say that it draws, before anything
        is drawn.
        """
        self._check_open()
        if not self._may_draw:
            raise ProposalError(
                f"drafter '{self._drafter}' draws without declaring it; register it with Needs(draws=True)"
            )
        if self.room <= 0:
            return None
        drawn = self._context.draw(logits, ids, len(self._proposal))
        self._append(drawn.token, drawn.law)
        return drawn.token

    def draw_rows(self, logits: torch.Tensor, ids: Sequence[int] | torch.Tensor | None = None) -> list[int]:
        """Draw from the rows of parallel heads, ``[rows, columns]``, in order; return the target ids that were added.

        Every row is processed with the tokens drawn before it as prefix. The rows reach the host in one transfer; ``ids``
        maps the columns of all of them, as for ``draw``.
        """
        self._check_open()
        if logits.ndim != 2:
            raise ProposalError(
                f"draw_rows takes [rows, vocab] logits (got {list(logits.shape)}); use draw for one row"
            )
        tokens: list[int] = []
        for row in logits[: self.room].detach().cpu():
            token = self.draw(row, ids)
            if token is None:
                break
            tokens.append(token)
        return tokens

    def _append(self, token: int, law: Law) -> None:
        self._proposal.append(token, law, self._drafter)
        self._context.push(token)
        self._is_ended = token in self._stop_ids or self._context.is_exhausted()

    def _check_id(self, token: int) -> int:
        try:
            if isinstance(token, bool):
                raise TypeError
            token = int.__add__(operator.index(token), 0)  # an exact int, whatever class came
        except TypeError:
            raise ProposalError(f"a proposed token must be an integer id (got {token!r})") from None
        if not 0 <= token < self._vocab_size:
            raise ProposalError(
                f"a proposed id must be in [0, {self._vocab_size}), the width of the target's logits (got {token})"
            )
        return token

    def _check_open(self) -> None:
        if not self._drafter:
            raise ProposalError("the round is closed: tokens can be added only inside propose()")
        if threading.get_ident() != self._thread_id:
            raise ProposalError("a round belongs to the thread that called propose(); add tokens from that thread")


def lend(
    round: Round, drafter: str, propose: Callable[[Round], None], limit: int | None = None, *, may_draw: bool = True
) -> None:
    """Let one drafter add to a round, at most ``limit`` tokens; the engine's side. It is closed again whatever happens.

    ``may_draw``: whether it may hand over logits, or only offer.
    """
    round._drafter, round._may_draw = drafter, may_draw
    if limit is not None:
        round._end = min(round._room, len(round._proposal) + limit)
    try:
        propose(round)
    finally:
        round._drafter, round._end = "", round._room
