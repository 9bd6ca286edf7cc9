"""The draft-model drafter and its session.

Knows rounds and commits; the network knows the model and its cache. Every token is drawn by the core from the draft's own
logits, so its law is the draft's, under the target's processors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import DrafterExhausted, ProposalError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from specframe import Commit, DraftRequest, Round
    from specframe_draft_model.network import Network
    from specframe_draft_model.options import DraftModelOptions


class DraftContextExceeded(DrafterExhausted):
    """The text is longer than the draft's context, and the options do not let it see only the end."""


class DraftVocabularyExceeded(DrafterExhausted):
    """The text has an id that the draft's embeddings lack, such as one of the target's padding."""


class DraftModel:
    """Propose what a smaller model says. Between requests its cache keeps the prefix that they share."""

    def __init__(self, network: Network, options: DraftModelOptions) -> None:
        self.network, self.options = network, options

    def open(self, request: DraftRequest) -> DraftModelSession:
        """Start a session; the prompt comes with the first commit."""
        return DraftModelSession(self.network, self.options, request.facts.vocab_size)

    def tensors(self) -> Mapping[str, Iterable[torch.Tensor]]:
        """Return the network's weights, borrowed ones too, and its cache; see ``specframe.HoldsTensors``."""
        return self.network.runner.tensors()

    def reset(self) -> None:
        """Forget the cached prefix."""
        self.network.release()

    def close(self) -> None:
        """Free the cache."""
        self.network.release()


class DraftModelSession:
    """Draft for one generation.

    What was proposed and refused is rolled back at the commit; what the network lacks, whoever proposed it, is fed with the
    pending id in the next round's first forward. That forward ends exactly at the end of the round's context.
    """

    def __init__(self, network: Network, options: DraftModelOptions, vocab_size: int) -> None:
        self._network, self._options = network, options
        limits = [limit for limit in (options.context, network.context_limit) if limit is not None]
        self._context_limit = min(limits, default=None)
        self._columns = _proposable(network.target_ids, vocab_size)
        self._num_authoritative = 0
        network.take()

    def propose(self, round: Round) -> None:
        """Draw tokens while there is room, the draft is confident, and its context takes them.

        Raises ``DraftContextExceeded`` where the text is too long for the draft, and ``DraftVocabularyExceeded`` where the
        draft cannot read it.
        """
        network = self._network
        if not self._fits(len(round.context)):
            return
        lacking = round.context[network.end :]
        for _ in range(round.room if self._options.max_tokens is None else min(round.room, self._options.max_tokens)):
            if not self._reads(lacking):
                return
            row = network.feed(lacking)
            # Decided by the row before the draw: to drop a token for what it is would bias the output.
            if self._options.min_confidence and _likeliest(row[self._columns]) < self._options.min_confidence:
                return
            try:
                token = round.draw(row, network.target_ids)
            except ProposalError:  # a NaN, which may stand in the cache too
                network.restart(0)
                raise
            if token is None or round.room <= 0 or network.end - network.start == self._context_limit:
                return
            lacking = (token,)

    def commit(self, commit: Commit) -> None:
        """Keep of what was fed what became authoritative."""
        self._num_authoritative = commit.start_pos + len(commit.ids)
        if commit.start_pos == 0:
            self._network.begin(commit.ids)
        else:
            self._network.extend(commit.ids, commit.start_pos)

    def close(self) -> None:
        """Leave the cached prefix to the next request."""
        self._network.give_back()

    def _fits(self, num_tokens: int) -> bool:
        """Make the round's context fit into the draft's, and tell whether it does.

        What other drafters proposed in this round may yet be refused: it ends nothing, and nothing begins in it.
        """
        limit, network = self._context_limit, self._network
        if limit is None or num_tokens - network.start <= limit:
            return True
        if self._options.truncation == "none":
            if self._num_authoritative > limit:
                raise DraftContextExceeded(
                    f"the text has {self._num_authoritative} tokens, the draft's context takes {limit}"
                )
            return False
        start = min(num_tokens - max(limit // 2, 1), self._num_authoritative - 1)
        if num_tokens - start > limit:
            return False
        network.restart(start)
        return True

    def _reads(self, ids: Sequence[int]) -> bool:
        """Tell whether the draft has embeddings for what comes behind its cache; a lookup beyond them ends a device's process.

        An id that is only proposed may yet be refused, and ends nothing.
        """
        num_ids = self._network.num_embeddings
        position = next((self._network.end + index for index, token in enumerate(ids) if token >= num_ids), None)
        if position is not None and position < self._num_authoritative:
            raise DraftVocabularyExceeded(
                f"the draft reads {num_ids} ids, and at position {position} stands another one"
            )
        return position is None


def _proposable(target_ids: torch.Tensor | None, vocab_size: int) -> torch.Tensor | slice:
    """Return which columns of a row have a target id; the others cannot be drawn, whatever their logits."""
    if target_ids is None:
        return slice(vocab_size)
    return ((target_ids >= 0) & (target_ids < vocab_size)).nonzero()[:, 0]


def _likeliest(row: torch.Tensor) -> float:
    """Return the largest probability; NaN for a row that is none, which is less than nothing: the draw then says so."""
    return float(row.float().softmax(-1).amax())
