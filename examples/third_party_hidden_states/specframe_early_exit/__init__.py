"""A drafter that reads hidden states: those of the target's first layers, as if the head came right behind them.

``needs.views`` declares what it reads of the target's weights; nothing is copied. This module is imported whenever plugins
are listed, so what needs torch is in another one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

import specframe

if TYPE_CHECKING:
    from specframe_early_exit.drafter import EarlyExit


@attrs.frozen
class EarlyExitOptions:
    """``layers``: how many of the target's; ``window``: how many of the last tokens they see; ``max_tokens``: a round."""

    layers: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    window: int = attrs.field(default=32, validator=attrs.validators.ge(1))
    max_tokens: int = attrs.field(default=2, validator=attrs.validators.ge(1))


def make_early_exit(options: EarlyExitOptions, facts: specframe.TargetFacts) -> EarlyExit:
    """Return the drafter. Raises ``InvalidStrategy`` for a target that lends nothing."""
    from specframe_early_exit.drafter import EarlyExit

    return EarlyExit(options, facts)


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``early_exit``, which draws from logits and reads the target's first layers and its head."""
    needs = specframe.Needs(draws=True, views=frozenset({"layers", "head"}))
    register("early_exit", make_early_exit, options=EarlyExitOptions, needs=needs, api=1)
