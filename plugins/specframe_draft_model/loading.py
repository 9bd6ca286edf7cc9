"""From options to a network: a model of its own, one that borrows from the target, or the target's first layers.

Knows models by name; nothing about rounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

import specframe
from specframe import InvalidStrategy, TransformersTarget
from specframe_draft_model.network import Network

if TYPE_CHECKING:
    from specframe import TargetFacts
    from specframe_draft_model.options import DraftModelOptions


def load_network(options: DraftModelOptions, facts: TargetFacts) -> Network:
    """Return the network that the options name.

    Raises ``LoadError`` for tensors that are missing or do not fit, and ``InvalidStrategy`` where the target lends nothing.
    """
    if options.layers is not None:
        if facts.views is None:
            raise InvalidStrategy(
                "the draft is the target's layers, and this target lends none; use a model of its own"
            )
        return Network(TransformersTarget(facts.views.first_layers(options.layers), prepack=None))
    assert options.model is not None
    device = options.device or facts.device
    runner, target_ids = specframe.load_draft(options.model, views=facts.views, dtype=options.dtype, device=device)
    return Network(runner, torch.tensor(target_ids) if target_ids is not None else None)
