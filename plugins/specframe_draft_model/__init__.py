"""Draft model: a smaller causal language model, or the target's own first layers, proposes what the target checks.

Uses the public API of specframe only. Importing this package imports neither torch nor transformers; making the drafter does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import specframe
from specframe_draft_model.options import DraftModelOptions

if TYPE_CHECKING:
    from specframe import TargetFacts
    from specframe_draft_model.drafter import DraftModel


def make_draft_model(options: DraftModelOptions, facts: TargetFacts) -> DraftModel:
    """Load a draft and return its drafter.

    Raises ``LoadError`` for tensors that are missing or do not fit, ``InvalidStrategy`` where the target cannot lend what the
    options ask for.
    """
    from specframe_draft_model.drafter import DraftModel
    from specframe_draft_model.loading import load_network

    return DraftModel(load_network(options, facts), options)


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``draft_model``."""
    needs = specframe.Needs(
        tokenizer="reduced", draws=True, model="model", views=frozenset(("embeddings", "head", "layers"))
    )
    register("draft_model", make_draft_model, options=DraftModelOptions, needs=needs, api=1)


__all__ = ["DraftModelOptions", "make_draft_model"]
