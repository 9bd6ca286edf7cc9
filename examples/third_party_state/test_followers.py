"""State that follows the text: what it proposes, what it must not keep, and its certificate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import specframe
from specframe_followers import Followers, FollowersOptions

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]


def test_it_proposes_what_it_counted(table_target: Callable[..., specframe.Target]) -> None:
    """Found by its name; a text that goes round in circles is soon foreseen, and is plain decoding's."""
    target = table_target(vocab_size=6, order=1)
    result = specframe.Engine(target, strategy="followers").generate(PROMPT, max_new_tokens=40)
    assert result.token_ids == specframe.Engine(target).generate(PROMPT, max_new_tokens=40).token_ids
    assert result.stats.drafters["followers"].num_accepted > 10
    assert result.events == ()


def test_no_request_learns_from_another(table_target: Callable[..., specframe.Target]) -> None:
    """The second of two equal requests is proposed what the first was."""
    engine = specframe.Engine(table_target(vocab_size=6, order=1), strategy="followers")
    first, second = (engine.generate(PROMPT, max_new_tokens=20).stats.drafters["followers"] for _ in range(2))
    assert (first.num_proposed, first.num_accepted) == (second.num_proposed, second.num_accepted)


def test_it_is_certified(certify_drafter: Callable[..., Any]) -> None:
    """Among other things: after any history it proposes what a new session does that is told the same text."""
    certificate = certify_drafter(lambda facts: Followers(FollowersOptions(min_count=1), facts), name="followers")
    (aligned,) = [check for check in certificate.checks if check.name == "contract: alignment"]
    assert aligned.status == "passed"
