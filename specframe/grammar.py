"""The grammar protocol: a pure state machine whose mask is part of the target's declared distribution.

Knows nothing about any grammar language. Its place in the pipeline is after the caller's processors and before
temperature (``policy.py``); row i of a block sees the state after ``proposal[:i]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

State = Any
"""A state is its grammar's own: hashable, never changed, and not looked into by anyone else."""


class Forced(NamedTuple):
    """Text that a grammar forces, tokenised canonically.

    ``ids`` are its pieces as far as no entry of the vocabulary reaches from them, or from before them, over the end of the
    text; ``held`` the ones behind, which could still merge with what follows. Both are empty where nothing is forced.
    """

    ids: tuple[int, ...] = ()
    held: tuple[int, ...] = ()


class Grammar(Protocol):
    """What a grammar engine gives the core. All methods are pure: the same arguments give the same answer."""

    @property
    def start(self) -> State:
        """The state before the first generated token."""

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        """Return which ids may come next, ``[logits width]`` bool; stop ids are allowed exactly in final states.

        The caller does not write into it, so that it may be cached per state.
        """

    def advance(self, state: State, token: int) -> State:
        """Return the state after an allowed token. Raises ``GrammarError`` for one that is not."""

    def is_final(self, state: State) -> bool:
        """Tell whether the text so far is complete."""


@runtime_checkable
class TextGrammar(Grammar, Protocol):
    """A grammar over text: it tells the text that it forces, and may begin behind other text.

    Forced text is not forced tokens: it has many spellings. It may be proposed, or declared to be spelled canonically
    (``canonical.py``).
    """

    @property
    def start_inside(self) -> State:
        """The state before the grammar's text where it follows other text of the same output."""

    def forced(self, state: State) -> Forced:
        """Return the text that must come next, as token ids; nothing where it may end or go on in two ways."""


def read_only(grammar: Grammar) -> Grammar:
    """Return a grammar as drafters may have it: a mask that one of them writes into is not the target's."""
    return _ReadOnlyText(grammar) if isinstance(grammar, TextGrammar) else _ReadOnly(grammar)


class _ReadOnly:
    """A grammar whose masks cannot be written."""

    def __init__(self, inner: Grammar) -> None:
        self._inner = inner

    @property
    def start(self) -> State:
        return self._inner.start

    def mask(self, state: State) -> npt.NDArray[np.bool_]:
        mask = self._inner.mask(state).view()
        mask.flags.writeable = False
        return mask

    def advance(self, state: State, token: int) -> State:
        return self._inner.advance(state, token)

    def is_final(self, state: State) -> bool:
        return self._inner.is_final(state)


class _ReadOnlyText(_ReadOnly):
    """A grammar over text whose masks cannot be written."""

    _inner: TextGrammar

    @property
    def start_inside(self) -> State:
        return self._inner.start_inside

    def forced(self, state: State) -> Forced:
        return self._inner.forced(state)
