"""Drafters for tests: right, wrong, hostile, random and broken ones.

They use what any plugin may use, and nothing else. Each keeps the sessions that it opened, so that a test can read what
a session was told.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch

from specframe.proposal import Commit, Drafter, DraftRequest, Round, TokenView
from specframe.testing.faults import Failing, Fault


class RecordedSession:
    """A session that proposes by a function and remembers its commits."""

    def __init__(self, request: DraftRequest, propose: Callable[[Round], None]) -> None:
        self.request, self._propose = request, propose
        self.commits: list[Commit] = []
        self.num_rounds = 0
        self.is_closed = False

    def propose(self, round: Round) -> None:
        self.num_rounds += 1
        self._propose(round)

    def commit(self, commit: Commit) -> None:
        self.commits.append(commit)

    def close(self) -> None:
        self.is_closed = True


class _Drafter:
    """What the drafters here share: nothing is learned from requests, so there is nothing to forget."""

    def __init__(self) -> None:
        self.sessions: list[RecordedSession] = []
        self.is_closed = False

    def open(self, request: DraftRequest) -> RecordedSession:
        session = RecordedSession(request, self._proposer(request))
        self.sessions.append(session)
        return session

    def reset(self) -> None:
        pass

    def close(self) -> None:
        self.is_closed = True

    def _proposer(self, request: DraftRequest) -> Callable[[Round], None]:
        raise NotImplementedError


class Oracle(_Drafter):
    """Offer a known continuation of the prompt, as far as there is room.

    ``wrong_at``: index, within every round's proposal, of a token that is replaced by the next id; None for never.
    """

    def __init__(self, continuation: Sequence[int], wrong_at: int | None = None) -> None:
        super().__init__()
        self.continuation, self.wrong_at = list(continuation), wrong_at

    def _proposer(self, request: DraftRequest) -> Callable[[Round], None]:
        def propose(round: Round) -> None:
            start = len(round.context) - len(request.prompt_ids)
            for index, token in enumerate(self.continuation[start:]):
                wrong = (token + 1) % request.facts.vocab_size
                if not round.offer(wrong if index == self.wrong_at else token):
                    return

        return propose


class Adversary(_Drafter):
    """Offer whatever ``chooser(context, index in the round)`` returns, until it returns None or the round is full."""

    def __init__(self, chooser: Callable[[TokenView, int], int | None]) -> None:
        super().__init__()
        self.chooser = chooser

    def _proposer(self, request: DraftRequest) -> Callable[[Round], None]:
        def propose(round: Round) -> None:
            index = 0
            while (token := self.chooser(round.context, index)) is not None and round.offer(token):
                index += 1

        return propose


class RandomOffers(_Drafter):
    """Offer random ids, a random number of them; every session repeats the seed's stream."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def _proposer(self, request: DraftRequest) -> Callable[[Round], None]:
        source = random.Random(self.seed)

        def propose(round: Round) -> None:
            for _ in range(source.randint(0, round.room)):
                if not round.offer(source.randrange(request.facts.vocab_size)):
                    return

        return propose


class LogitsDrafter(_Drafter):
    """Let the core draw from rows that a function of the context makes.

    ``row_function(ids)`` returns a row of logits, or None to end the proposal. ``num_tokens``: at most so many in a
    round.
    """

    def __init__(
        self,
        row_function: Callable[[tuple[int, ...]], torch.Tensor | Sequence[float] | None],
        num_tokens: int | None = None,
    ) -> None:
        super().__init__()
        self.row_function, self.num_tokens = row_function, num_tokens

    def _proposer(self, request: DraftRequest) -> Callable[[Round], None]:
        def propose(round: Round) -> None:
            num_left = round.room if self.num_tokens is None else min(round.room, self.num_tokens)
            while num_left > 0 and (row := self.row_function(round.context[:])) is not None:
                if round.draw(torch.as_tensor(row, dtype=torch.float64)) is None:
                    return
                num_left -= 1

        return propose


class Faulty(Failing):
    """Behave as ``inner``, and fail at one call of one method, after it.

    ``method``: ``open``, ``propose``, ``commit``, ``close`` (of a session or of the drafter) or ``reset``; ``at_call``: which
    call of it fails, from 0, over all sessions. The inner method runs first, so that a ``propose`` that fails has already
    added its tokens. ``error`` is raised as it is.
    """

    def __init__(
        self, method: str, at_call: int = 0, inner: Drafter | None = None, error: BaseException | None = None
    ) -> None:
        silent = Adversary(lambda context, index: None)
        error = error if error is not None else RuntimeError(f"scripted failure of {method}")
        super().__init__(inner if inner is not None else silent, Fault(method, error, at_call=at_call, is_after=True))
