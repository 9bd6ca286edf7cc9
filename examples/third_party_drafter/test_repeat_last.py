"""The drafter is found, proposes, changes no text, and is certified. ``pip install -e .`` comes first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import specframe
from specframe_repeat_last import RepeatLast, RepeatLastOptions


def test_it_changes_no_text(table_target: Callable[..., specframe.Target]) -> None:
    """Found by its name, with an option: the tokens are those of plain decoding, and it was never switched off."""
    target = table_target(vocab_size=8)
    strategy = specframe.Strategy(drafters=(specframe.DrafterUse("repeat_last", {"max_tokens": 3}),))
    result = specframe.Engine(target, strategy=strategy).generate([1, 2, 1, 2], max_new_tokens=32)
    assert result.token_ids == specframe.Engine(target).generate([1, 2, 1, 2], max_new_tokens=32).token_ids
    assert result.stats.drafters["repeat_last"].num_proposed > 0
    assert result.events == ()


def test_a_wrong_option_is_refused(table_target: Callable[..., specframe.Target]) -> None:
    """The mistake is told before anything runs."""
    strategy = specframe.Strategy(drafters=(specframe.DrafterUse("repeat_last", {"max_tokens": 0}),))
    with pytest.raises(specframe.InvalidStrategy, match="max_tokens"):
        specframe.Engine(table_target(), strategy=strategy)


def test_it_is_certified(certify_drafter: Callable[..., Any]) -> None:
    """Contract, equalities and output laws, as by ``specframe certify repeat_last --quick``."""
    certify_drafter(lambda facts: RepeatLast(RepeatLastOptions(), facts), name="repeat_last")
