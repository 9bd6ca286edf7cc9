"""When a generation ends before its text does: a token that anyone may cancel, and a deadline.

Knows nothing about generations. A flag is all there is, so that it may be set from another thread or in a signal handler.
"""

from __future__ import annotations

from collections.abc import Callable


class CancelToken:
    """Ends the generations that it was given to, from anywhere, within one round: ``generate(..., cancel=token)``.

    One token may be given to any number of requests, also to later ones: once cancelled, it stays so.
    """

    def __init__(self) -> None:
        self._is_cancelled = False

    @property
    def is_cancelled(self) -> bool:
        """Whether ``cancel`` was called."""
        return self._is_cancelled

    def cancel(self) -> None:
        """End the generations; what they have emitted is their result, with ``finish_reason`` ``cancelled``."""
        self._is_cancelled = True


class Ending:
    """Tells whether a call is to end early: its token was cancelled, or its time is over.

    ``deadline_s``: seconds from now by ``clock``, or None.
    """

    def __init__(self, token: CancelToken | None, deadline_s: float | None, clock: Callable[[], float]) -> None:
        self._token, self._clock = token, clock
        self._deadline = None if deadline_s is None else clock() + deadline_s

    @property
    def may_come(self) -> bool:
        """Whether there is anything that could end the call."""
        return self._token is not None or self._deadline is not None

    @property
    def reason(self) -> str | None:
        """``cancelled``, ``deadline``, or None while the call may go on."""
        if self._token is not None and self._token.is_cancelled:
            return "cancelled"
        if self._deadline is not None and self._clock() >= self._deadline:
            return "deadline"
        return None
