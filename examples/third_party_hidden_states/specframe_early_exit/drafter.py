"""The drafter and its session: hidden states of the first layers, read by the target's head.

It has no cache of its own, so each token costs a forward of the window: short, and the same whatever the text's length.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import specframe

if TYPE_CHECKING:
    from specframe_early_exit import EarlyExitOptions


class EarlyExit:
    """The drafter: lent layers and head, and its options."""

    def __init__(self, options: EarlyExitOptions, facts: specframe.TargetFacts) -> None:
        if facts.views is None:
            raise specframe.InvalidStrategy("early_exit reads the target's first layers, and this target lends none")
        self._options = options
        self._layers = facts.views.first_layers(options.layers).base_model
        self._head = facts.views.head

    def open(self, request: specframe.DraftRequest) -> EarlyExitSession:
        """Start a session."""
        return EarlyExitSession(self)

    def reset(self) -> None:
        """Do nothing: nothing is learned."""

    def close(self) -> None:
        """Do nothing: the weights are the target's."""

    @property
    def max_tokens(self) -> int:
        """At most so many tokens a round."""
        return self._options.max_tokens

    @torch.inference_mode()
    def logits(self, context: specframe.TokenView) -> torch.Tensor:
        """Return logits for the token after a context, ``[vocab]``."""
        ids = torch.tensor([context[-self._options.window :]], device=self._head.device)
        hidden = self._layers(input_ids=ids, use_cache=False).last_hidden_state[0, -1]
        return torch.nn.functional.linear(hidden, self._head)


class EarlyExitSession:
    """One generation; the context of each round is all it needs."""

    def __init__(self, drafter: EarlyExit) -> None:
        self._drafter = drafter

    def propose(self, round: specframe.Round) -> None:
        """Let the core draw from the logits, which go through the target's temperature, penalties and grammar there."""
        for _ in range(min(round.room, self._drafter.max_tokens)):
            if round.draw(self._drafter.logits(round.context)) is None:
                return

    def commit(self, commit: specframe.Commit) -> None:
        """Do nothing: the round's context holds the text."""

    def close(self) -> None:
        """Do nothing: nothing is held."""
