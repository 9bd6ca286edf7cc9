"""Parts that fail on command: targets and their sessions, drafters and theirs, tokenizers, clocks, whatever text is written to.

A failing part is the part itself behind a proxy, so that nothing but the fault differs. Knows methods by name, and nothing
about what they do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

P = TypeVar("P")


class Fault:
    """What happens at one call of a method, or at all calls from that one on.

    ``method``: its name, ``__call__`` for a function; ``at_call``: which call, from 0, counted over everything that the fault
    is given to; ``persists``: at all later ones too. ``do``: an exception, which is raised, or a function. Before the call it
    is given nothing; ``is_after`` gives it what the method returned, and it may return something else in its place.
    """

    def __init__(
        self,
        method: str,
        do: BaseException | Callable[..., Any],
        *,
        at_call: int = 0,
        is_after: bool = False,
        persists: bool = False,
    ) -> None:
        self.method, self.at_call, self.persists = method, at_call, persists
        self.num_calls = 0
        self._do, self._is_after = do, is_after

    def around(self, call: Callable[[], Any]) -> Any:
        """Make a call of the method, and do what is due."""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        if index < self.at_call or (index > self.at_call and not self.persists):
            return call()
        if not self._is_after:
            self._happen()
            return call()
        value = call()
        changed = self._happen(value)
        return value if changed is None else changed

    def _happen(self, *value: Any) -> Any:
        if isinstance(self._do, BaseException):
            raise self._do
        return self._do(*value)


def failing(part: P, *faults: Fault) -> P:
    """Return a part that does what ``part`` does, but for the faults; what its ``open`` returns has them too."""
    return cast(P, Failing(part, *faults))


class Failing:
    """A part behind faults; ``failing`` makes one that type checkers take for the part."""

    def __init__(self, part: Any, *faults: Fault) -> None:
        self._part, self._faults = part, faults

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._part, name)
        return self._watched(name, value) if callable(value) else value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._watched("__call__", self._part)(*args, **kwargs)

    def __len__(self) -> int:
        return len(self._part)

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            made: Callable[[], Any] = lambda: call(*args, **kwargs)  # noqa: E731
            for fault in self._faults:
                if fault.method == name:
                    made = _around(fault, made)
            value = made()
            return Failing(value, *self._faults) if name == "open" else value

        return watched


def _around(fault: Fault, call: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: fault.around(call)
