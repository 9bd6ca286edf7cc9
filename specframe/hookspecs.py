"""The hooks that a plugin may implement.

Imports neither torch nor transformers: listing plugins stays cheap. Hooks run once, when plugins are loaded; none runs in
the round loop, and verification, commit and stop are never hooks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from specframe.grammar import Grammar
    from specframe.proposal import Drafter, Needs, TargetFacts

PROJECT = "specframe"
API = 1

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


class RegisterDrafter(Protocol):
    """The function that ``specframe_register_drafters`` receives."""

    def __call__(
        self, name: str, factory: Callable[..., Drafter], *, options: type[Any], needs: Needs, api: int
    ) -> None:
        """Register a drafter under a name.

        ``factory(options, facts)`` makes one drafter for an engine; ``options`` is an attrs class whose defaults are the
        drafter's own; ``needs`` is checked against the target before the factory runs; ``api`` is 1.
        """


class RegisterGrammar(Protocol):
    """The function that ``specframe_register_grammars`` receives."""

    def __call__(self, name: str, compile: Callable[[str, TargetFacts], Grammar], *, api: int) -> None:
        """Register a grammar language under a name; ``api`` is 1.

        ``compile(source, facts)`` returns a ``Grammar``, a ``TextGrammar`` if it can; ``facts.stop_ids`` are the request's. It
        raises ``InvalidGrammar`` for a source that it cannot honour. An engine keeps what it returns and uses it for any
        number of requests.
        """


@hookspec
def specframe_register_drafters(register: RegisterDrafter) -> None:
    """Register drafters by calling ``register`` once for each; the return value is ignored."""


@hookspec
def specframe_register_grammars(register: RegisterGrammar) -> None:
    """Register grammar languages by calling ``register`` once for each; the return value is ignored."""
