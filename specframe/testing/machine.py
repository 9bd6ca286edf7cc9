"""A machine whose every cost and acceptance is known: a clock that stands until something is paid for.

Seconds come from the script alone, so a speed-up is a number that the cost model must predict, and a policy that loses time
can be seen to lose it. Knows engines from outside.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from specframe.engine import Engine
from specframe.proposal import DraftRequest, Round
from specframe.strategy import Length, Strategy
from specframe.testing.drafters import RecordedSession
from specframe.testing.table import Call, TableTarget

VOCAB_SIZE = 16


class Machine:
    """A target with prices, and the clock that they are paid on.

    ``verify_s(k)``: seconds of a forward over the pending id and k proposals; ``prefill_s``: of a prefill; ``noise()``: a
    factor on each, 1 by default. The text of its target is known: every id is followed by the next one.
    """

    def __init__(
        self, verify_s: Callable[[int], float], *, prefill_s: float = 0.0, noise: Callable[[], float] = lambda: 1.0
    ) -> None:
        self._verify_s, self._prefill_s, self._noise = verify_s, prefill_s, noise
        self.now = 0.0
        self.target = TableTarget(_row, vocab_size=VOCAB_SIZE, on_call=self._pay)

    def clock(self) -> float:
        """Return the seconds that were spent."""
        return self.now

    def spend(self, seconds: float) -> None:
        """Let something take so long, but for the noise."""
        self.now += seconds * self._noise()

    def engine(self, *drafters: ScriptedDrafter, length: Length | None = None, **strategy: Any) -> Engine:
        """Return an engine on this machine, with drafters ``d0``, ``d1``, ... ."""
        named = {f"d{index}": drafter for index, drafter in enumerate(drafters)}
        made = Strategy(length=length or Length(), **strategy)
        return Engine(self.target, named, strategy=made, clock=self.clock)

    def _pay(self, call: Call) -> None:
        if call.kind == "prefill":
            self.spend(self._prefill_s)
        elif call.kind == "verify":
            self.spend(self._verify_s(len(call.ids) - 1))


class ScriptedDrafter:
    """Offer tokens that stand with known probabilities, at known prices.

    ``chance(num_emitted, position)``: a_i, the probability that the token at ``position``, from 1, of a proposal stands where
    all before it do, after so many emitted tokens. ``token_s``: d, seconds per token; ``ask_s``: per round in which it is
    asked. ``wanted(num_emitted)``: how many tokens it wants to propose at most; None for all that there is room for. Every
    session repeats the draws of ``seed``.
    """

    def __init__(
        self,
        machine: Machine,
        chance: Callable[[int, int], float],
        *,
        token_s: float = 0.0,
        ask_s: float = 0.0,
        wanted: Callable[[int], int] | None = None,
        seed: int = 0,
    ) -> None:
        self._machine, self._chance, self._wanted = machine, chance, wanted
        self._token_s, self._ask_s, self._seed = token_s, ask_s, seed

    def open(self, request: DraftRequest) -> RecordedSession:
        """Start a session whose draws begin anew."""
        source = random.Random(self._seed)
        num_prompt = len(request.prompt_ids)

        def propose(round: Round) -> None:
            self._machine.spend(self._ask_s)
            num_emitted = len(round.context) - num_prompt
            room = round.room if self._wanted is None else min(round.room, self._wanted(num_emitted))
            stands = True
            for position in range(1, room + 1):
                self._machine.spend(self._token_s)
                stands = stands and source.random() < self._chance(num_emitted, position)
                round.offer((round.context[-1] + (1 if stands else 2)) % VOCAB_SIZE)

        return RecordedSession(request, propose)

    def reset(self) -> None:
        """Do nothing: nothing is learned from requests."""

    def close(self) -> None:
        """Do nothing: nothing is held."""


def _row(ids: tuple[int, ...]) -> list[float]:
    return [float(token == (ids[-1] + 1) % VOCAB_SIZE) for token in range(VOCAB_SIZE)]
