"""How many tokens of a match to propose: a rule of one request, without clocks and without randomness.

Knows nothing about tokens. A long match is likely to go on and a short one is not, and a target forward over many rows
costs more than one over two.
"""

from __future__ import annotations

MIN_FACTOR, MAX_FACTOR = 0.5, 4.0


class Trust:
    """Follow a match of n ids for ``(n - 1) * factor`` tokens, at least 1.

    The factor starts at 1, doubles (to at most 4) when a whole proposal was accepted, and halves (to at least 1/2) when
    not. So two agreeing ids are worth one token, sixteen are worth fifteen, and repetition soon gets full length.
    """

    def __init__(self) -> None:
        self._factor = 1.0

    def num_tokens(self, num_ids: int) -> int:
        """Return how many tokens a match of ``num_ids`` is worth."""
        return max(1, int((num_ids - 1) * self._factor))

    def learn(self, num_offered: int, num_accepted: int) -> None:
        """Take note of what became of a proposal whose first token was put to the test."""
        if num_accepted == num_offered:
            self._factor = min(MAX_FACTOR, self._factor * 2)
        else:
            self._factor = max(MIN_FACTOR, self._factor / 2)
