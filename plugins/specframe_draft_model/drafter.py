"""The draft-model drafter and its session.

Knows rounds and commits; the network knows the model and its cache. Every token is drawn by the core from the draft's own
logits, so its law is the draft's, under the target's processors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import ProposalError

if TYPE_CHECKING:
    from specframe import Commit, DraftRequest, Round
    from specframe_draft_model.network import Network
    from specframe_draft_model.options import DraftModelOptions


class DraftContextExceeded(ProposalError):
    """The text is longer than the draft's context, and the options do not let it see only the end."""


class DraftModel:
    """Propose what a smaller model says. Between requests its cache keeps the prefix that they share."""

    def __init__(self, network: Network, options: DraftModelOptions) -> None:
        self.network, self.options = network, options

    def open(self, request: DraftRequest) -> DraftModelSession:
        """Start a session; the prompt comes with the first commit."""
        return DraftModelSession(self.network, self.options)

    def tensors(self) -> dict[str, list[torch.Tensor]]:
        """Return what is held, for accounts of memory: the network's weights, borrowed ones too, and its cache."""
        return self.network.tensors()

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

    def __init__(self, network: Network, options: DraftModelOptions) -> None:
        self._network, self._options = network, options
        limits = [limit for limit in (options.context, network.context_limit) if limit is not None]
        self._context_limit = min(limits, default=None)
        self._num_authoritative = 0
        network.take()

    def propose(self, round: Round) -> None:
        """Draw tokens while there is room, the draft is confident, and its context takes them.

        Raises ``DraftContextExceeded`` where the text is too long for the draft.
        """
        network = self._network
        if not self._fits(len(round.context)):
            return
        lacking = round.context[network.end :]
        for _ in range(round.room if self._options.max_tokens is None else min(round.room, self._options.max_tokens)):
            row = network.feed(lacking)
            # Decided by the row before the draw: to drop a token for what it is would bias the output.
            if self._options.min_confidence and not _is_confident(row, self._options.min_confidence):
                return
            token = round.draw(row, network.target_ids)
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
        """Make the round's context fit into the draft's, and tell whether it does."""
        limit, network = self._context_limit, self._network
        if limit is None or num_tokens - network.start <= limit:
            return True
        if self._options.truncation == "none":
            raise DraftContextExceeded(f"the text has {num_tokens} tokens, the draft's context takes {limit}")
        # Not among this round's proposals, which may yet be refused.
        network.restart(min(num_tokens - max(limit // 2, 1), self._num_authoritative - 1))
        return num_tokens - network.start <= limit


def _is_confident(row: torch.Tensor, least: float) -> bool:
    return bool(row.float().softmax(-1).amax() >= least)
