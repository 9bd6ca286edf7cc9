"""Every public name says what it is."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest

import specframe
import specframe.testing
import specframe_draft_model
import specframe_grammar
import specframe_prompt_lookup
from specframe import hookspecs, random, verify

MODULES = (specframe, specframe.testing, hookspecs, specframe_draft_model, specframe_grammar, specframe_prompt_lookup)
# What an implementation does is told where the contract is; it repeats that only to add something.
CONTRACTS = (
    specframe.Drafter, specframe.DraftSession, specframe.HoldsTensors, specframe.Views,
    specframe.TextGrammar, specframe.Grammar, specframe.Target, specframe.TargetSession, random.Random, verify.Row,
)  # fmt: skip
TOLD = {name for contract in CONTRACTS for name in vars(contract) if not name.startswith("_")}


def public_names():
    """Yield every public name with its object; of what a module does not export, what is defined in it."""
    for module in MODULES:
        exported = getattr(module, "__all__", None)
        names = exported or [
            name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__
        ]
        for name in names:
            if not name.startswith("_"):
                yield pytest.param(getattr(module, name), id=f"{module.__name__}.{name}")


def untold(value):
    """Return what of a public name has no docstring that somebody wrote: itself, or members by name."""
    kind = value if isinstance(value, type) or callable(value) else type(value)
    name = getattr(kind, "__name__", "")
    found = [] if kind.__doc__ and not kind.__doc__.startswith(f"{name}(") else [name]  # made by attrs or a named tuple
    for member_name, member in vars(value).items() if isinstance(value, type) else ():
        is_public = not member_name.startswith("_") and (
            inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)
        )
        if is_public and not inspect.getdoc(member) and member_name not in TOLD:
            found.append(member_name)
    return found


@pytest.mark.parametrize("value", [*public_names()])
def test_a_public_name_has_a_docstring(value):
    """``help`` is the first place that a user looks; members that implement a contract are told there."""
    assert untold(value) == []


def test_a_name_without_a_docstring_is_seen():
    """A negative control: a class, its methods and properties, a function, and what attrs or a named tuple writes by itself."""

    class Bare:
        def method(self): ...
        @property
        def value(self): ...
        def propose(self): ...  # told by the contract

    class Pair(NamedTuple):
        left: int

    assert untold(Bare) == ["Bare", "method", "value"]
    assert untold(Pair) == ["Pair"]
    assert untold(lambda: None) == ["<lambda>"]
    assert untold(untold) == []


def test_what_is_imported_late_is_all_there():
    """A name in ``__all__`` that no module has would fail at a user's."""
    for module in MODULES[:2]:
        assert set(module._LAZY) <= set(module.__all__)
        assert all(hasattr(module, name) for name in module.__all__)
