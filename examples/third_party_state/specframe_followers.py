"""A drafter with state: it counts in one generation's text which token follows which, and proposes the usual one.

The state is the session's, so that nothing passes from one request to another. It is made from commits alone: what was
proposed and refused never gets into it, nor is what another drafter proposed missed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import attrs

import specframe


@attrs.frozen
class FollowersOptions:
    """``max_tokens``: at most so many tokens a round; ``min_count``: how often a token must have followed another."""

    max_tokens: int = attrs.field(default=4, validator=attrs.validators.ge(1))
    min_count: int = attrs.field(default=2, validator=attrs.validators.ge(1))


class Followers:
    """The drafter; holds nothing but its options."""

    def __init__(self, options: FollowersOptions, facts: specframe.TargetFacts) -> None:
        self._options = options

    def open(self, request: specframe.DraftRequest) -> FollowersSession:
        """Start a session that has seen nothing."""
        return FollowersSession(self._options)

    def reset(self) -> None:
        """Do nothing: what is learned is a session's."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


class FollowersSession:
    """Counts of one generation: ``_followers[a][b]`` is how often ``b`` followed ``a``."""

    def __init__(self, options: FollowersOptions) -> None:
        self._options = options
        self._followers: defaultdict[int, Counter[int]] = defaultdict(Counter)
        self._last: int | None = None

    def propose(self, round: specframe.Round) -> None:
        """Offer the most frequent follower of the last token, then that one's, while each is frequent enough."""
        token = round.context[-1]
        for _ in range(self._options.max_tokens):
            if token not in self._followers:
                return
            token, count = self._followers[token].most_common(1)[0]
            if count < self._options.min_count or not round.offer(token):
                return

    def commit(self, commit: specframe.Commit) -> None:
        """Count the new pairs; the first one spans two commits."""
        for token in commit.ids:
            if self._last is not None:
                self._followers[self._last][token] += 1
            self._last = token

    def close(self) -> None:
        """Forget the generation."""
        self._followers.clear()


@specframe.hookimpl
def specframe_register_drafters(register: Any) -> None:
    """Register ``followers``."""
    register("followers", Followers, options=FollowersOptions, needs=specframe.Needs(cheap=True), api=1)
