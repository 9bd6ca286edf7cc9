"""The prompt lookup drafter and its session.

Knows rounds and commits; what to look for is the index's and the phrasebook's, how much to propose the trust's. It only
offers, so every token it proposes is a point mass.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specframe_prompt_lookup.index import Match, NgramIndex
from specframe_prompt_lookup.phrasebook import Phrasebook
from specframe_prompt_lookup.trust import Trust

if TYPE_CHECKING:
    from specframe import Commit, DraftRequest, Round, TargetFacts
    from specframe_prompt_lookup.options import PromptLookupOptions


class PromptLookup:
    """Propose what followed the last tokens where they stood before.

    Keeps the phrasebook, which is given, and nothing of any request. Raises ``InvalidStrategy`` for phrases that cannot
    be read or tokenised.
    """

    def __init__(self, options: PromptLookupOptions, facts: TargetFacts) -> None:
        self._options, self._vocab_size = options, facts.vocab_size
        self._phrasebook = Phrasebook.from_options(options, facts)

    def open(self, request: DraftRequest) -> PromptLookupSession:
        """Start a session with an empty index; the prompt comes with the first commit."""
        return PromptLookupSession(self._options, self._vocab_size, self._phrasebook)

    def reset(self) -> None:
        """Do nothing: nothing is learned from requests."""

    def close(self) -> None:
        """Drop the phrasebook."""
        self._phrasebook = None


class PromptLookupSession:
    """Look up in one generation's context."""

    def __init__(self, options: PromptLookupOptions, vocab_size: int, phrasebook: Phrasebook | None) -> None:
        self._options, self._vocab_size, self._phrasebook = options, vocab_size, phrasebook
        self._index, self._trust = NgramIndex(options.min_ngram, options.max_ngram), Trust()
        self._num_before = self._num_offered = 0
        self._copied_from: int | None = None  # where the last offer stands in the index
        self._source: int | None = None  # where the text would go on if it went on copying

    def propose(self, round: Round) -> None:
        """Offer the continuation of the best match, as far as it is trusted; nothing without a match."""
        provisional = round.context[len(self._index) :]
        found = self._find(provisional)
        if found is None:
            return
        match, continuation = found
        self._num_before = len(provisional)
        for token in itertools.islice(continuation, self._limit(match, round.room)):
            # A prompt may hold ids that the target reads and never writes, such as image placeholders.
            if token >= self._vocab_size or not round.offer(token):
                break
            self._num_offered += 1

    def commit(self, commit: Commit) -> None:
        """Index the new ids and learn from what became of the own offers."""
        assert commit.start_pos == len(self._index), "commits are contiguous"
        self._index.extend(commit.ids)
        self._follow(commit)
        # After a rejection before the first own offer, the own ones were never put to the test.
        if self._num_offered and commit.num_accepted >= self._num_before:
            self._trust.learn(self._num_offered, min(commit.num_accepted - self._num_before, self._num_offered))
        self._num_before = self._num_offered = 0

    def close(self) -> None:
        """Forget the request."""
        self._index = NgramIndex(self._options.min_ngram, self._options.max_ngram)

    def _follow(self, commit: Commit) -> None:
        """Keep the place in the source that is being copied: an edited copy parts from it, and comes back."""
        if self._num_offered and commit.num_accepted > self._num_before and self._copied_from is not None:
            self._source = self._copied_from + len(commit.ids) - self._num_before
        elif self._source is not None:
            self._source += len(commit.ids)

    def _find(self, provisional: Sequence[int]) -> tuple[Match, Iterator[int]] | None:
        match = self._index.find(provisional, near=self._source)
        self._copied_from = match.next_pos if match is not None else None
        if match is not None:
            return match, self._index.copy(match.next_pos, provisional)
        return self._phrasebook.find(self._index.tail(provisional)) if self._phrasebook else None

    def _limit(self, match: Match, room: int) -> int:
        limit = room if self._options.max_tokens is None else min(room, self._options.max_tokens)
        return limit if self._options.length == "fixed" else min(limit, self._trust.num_tokens(match.num_ids))
