"""Strategies: which drafters, in which order, under which verifier and length policy. Pure data and its TOML form.

Knows nothing about engines, models or installed plugins; names are resolved when an engine is made.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import attrs
import cattrs
from cattrs.errors import ForbiddenExtraKeysError, IterableValidationNote

from specframe.errors import InvalidStrategy
from specframe.files import data_folder

VERIFIERS = ("coupled", "residual")
MODES = ("extend", "first")
POLICIES = ("fixed", "adaptive")
_KERNEL = re.compile(r"auto|single|block(:([2-9]|[1-5][0-9]|6[0-4]))?")

T = TypeVar("T")


def _positive(instance: Any, attribute: attrs.Attribute[int], value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidStrategy(f"'{attribute.name}' must be an integer >= 1 (got {value!r})")


def _milliseconds(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if value is not None and not (is_number and 0 < value < math.inf):
        raise InvalidStrategy(f"'{attribute.name}' must be a number > 0, in milliseconds (got {value!r})")


def _one_of(allowed: tuple[str, ...], coming: str = "") -> Any:
    def check(instance: Any, attribute: attrs.Attribute[str], value: str) -> None:
        if value not in allowed:
            note = f"; {coming}" if coming else ""
            raise InvalidStrategy(f"'{attribute.name}' must be one of {', '.join(allowed)} (got {value!r}){note}")

    return check


def _kernel(instance: Any, attribute: attrs.Attribute[str], value: str) -> None:
    if not isinstance(value, str) or not _KERNEL.fullmatch(value):
        raise InvalidStrategy(f"'kernel' must be auto, single, block, or block:W with 2 to 64 rows (got {value!r})")


def _is_a(kind: type[Any]) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
        if not isinstance(value, kind):
            raise InvalidStrategy(f"'{attribute.name}' must be a {kind.__name__} (got {value!r})")

    return check


def _all_are(kind: type[Any]) -> Any:
    def check(instance: Any, attribute: attrs.Attribute[Any], value: tuple[Any, ...]) -> None:
        if not isinstance(value, tuple) or not all(isinstance(item, kind) for item in value):
            raise InvalidStrategy(f"'{attribute.name}' must be a tuple of {kind.__name__} (got {value!r})")

    return check


@attrs.frozen
class Length:
    """How many tokens a round may propose.

    ``policy``: ``fixed`` (as many as the drafters want) or ``adaptive`` (as many as pay); ``max_tokens``:
    at most so many.
    """

    policy: str = attrs.field(default="fixed", validator=_one_of(POLICIES))
    max_tokens: int = attrs.field(default=8, validator=_positive)


@attrs.frozen
class DrafterUse:
    """One drafter of a strategy: what it uses and how.

    ``use``: its registered name; ``options``: those that are given to it; ``budget_ms``: milliseconds that a proposal may
    take, None for no limit (in a worker one second): a drafter that takes longer is off for the rest of the request;
    ``worker``: whether it runs in a process of its own, which may crash, hang or leak; only for a drafter that offers and
    does not draw.
    """

    use: str = attrs.field(validator=_is_a(str))
    options: Mapping[str, Any] = attrs.field(factory=dict, validator=_is_a(Mapping))
    budget_ms: float | None = attrs.field(default=None, validator=_milliseconds)
    worker: bool = attrs.field(default=False, validator=_is_a(bool))


@attrs.frozen
class Identity:
    """Which run is meant. ``manifest``: the compatibility manifest that it is pinned to, in a file a path relative to it."""

    manifest: str | None = None


@attrs.frozen
class Strategy:
    """What a generation runs with.

    ``name``: of the strategy, the file's own if not given; ``verifier``: ``coupled`` or ``residual``, for sampling (greedy is
    implied by temperature 0); ``mode``: ``extend`` (each drafter adds while room is left) or ``first`` (the first that adds
    anything wins); ``kernel``: the kernel contract, ``auto``, ``single``, ``block`` or ``block:W``; ``disable``: plugins that
    are not loaded; ``length``: tokens per round; ``drafters``: in order; ``identity``: the manifest that a run is pinned to.
    """

    name: str = "none"
    verifier: str = attrs.field(default="coupled", validator=_one_of(VERIFIERS, "greedy is implied by temperature 0"))
    mode: str = attrs.field(default="extend", validator=_one_of(MODES))
    kernel: str = attrs.field(default="auto", validator=_kernel)
    disable: tuple[str, ...] = attrs.field(default=(), validator=_all_are(str))
    length: Length = attrs.field(default=Length(), validator=_is_a(Length))
    drafters: tuple[DrafterUse, ...] = attrs.field(default=(), validator=_all_are(DrafterUse))
    identity: Identity = attrs.field(default=Identity(), validator=_is_a(Identity))

    @property
    def named_drafters(self) -> dict[str, DrafterUse]:
        """The drafters by name, in order; one that is used twice gets a number behind its name."""
        named: dict[str, DrafterUse] = {}
        for use in self.drafters:
            names = itertools.chain([use.use], (f"{use.use}#{count}" for count in itertools.count(2)))
            named[next(name for name in names if name not in named)] = use
        return named

    @classmethod
    def from_toml(cls, path: str | Path) -> Strategy:
        """Read a strategy file. Raises ``InvalidStrategy`` naming the file and the key."""
        path = Path(path)
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        except OSError as error:
            raise InvalidStrategy(f"strategy file '{path.name}' cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or no path at all
            raise InvalidStrategy(f"strategy file {path.name!r} is not valid TOML: {error}") from error
        strategy = structure({"name": path.stem, **data}, cls, f"strategy file '{path.name}'")
        if strategy.identity.manifest is None:
            return strategy
        return attrs.evolve(strategy, identity=Identity(str(path.parent / strategy.identity.manifest)))


def structure(data: Mapping[str, Any], cls: type[T], where: str) -> T:
    """Make an attrs object from plain data; unknown keys and wrong types raise ``InvalidStrategy``.

    ``where`` names the source in the message.
    """
    try:
        return _converter().structure(data, cls)
    except InvalidStrategy as error:
        raise InvalidStrategy(f"{where}: {error}") from error
    except cattrs.BaseValidationError as error:
        raise InvalidStrategy(f"{where}: {_first_problem(error)}") from error
    except (TypeError, ValueError) as error:
        raise InvalidStrategy(f"{where}: {error}") from error


@functools.cache
def _converter() -> cattrs.Converter:
    converter = cattrs.Converter(forbid_extra_keys=True)
    for scalar in (int, float, str, bool):
        converter.register_structure_hook(scalar, _strict)
    converter.register_structure_hook_func(lambda kind: kind == tuple[str, ...], _strings)
    return converter


def _strings(value: Any, kind: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise TypeError(f"must be a list of strings (got {value!r})")
    return tuple(value)


def _strict(value: Any, kind: type[T]) -> T:
    # cattrs would call int("8") or bool("false"); a wrong type in a file is a mistake to be told.
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        raise TypeError(f"must be of type {kind.__name__} (got {value!r})")
    return kind(value)  # type: ignore[call-arg]


def _first_problem(error: BaseException, path: str = "") -> str:
    """Say the innermost first problem of a cattrs error group, with the key it stands at."""
    if isinstance(error, ForbiddenExtraKeysError):
        allowed = ", ".join(field.name for field in attrs.fields(error.cl))
        unknown = ", ".join(f"'{path}{key}'" for key in sorted(error.extra_fields))
        return f"unknown key {unknown}; allowed: {allowed or 'none'}"
    if isinstance(error, BaseExceptionGroup):
        inner = error.exceptions[0]
        for note in getattr(inner, "__notes__", ()):
            if isinstance(note, IterableValidationNote):
                path = f"{path.rstrip('.')}[{note.index}]."
            elif name := getattr(note, "name", ""):
                path = f"{path}{name}."
        return _first_problem(inner, path)
    if isinstance(error, KeyError):
        return f"key '{path.rstrip('.')}' is missing"
    if isinstance(error, AttributeError | TypeError) and not str(error).startswith("must"):
        return f"'{path.rstrip('.')}' has the wrong type"
    text = str(error)
    return text if text.startswith("'") or not path else f"'{path.rstrip('.')}' {text}"


def shipped() -> dict[str, Path]:
    """Return the strategies that come with specframe, by name."""
    folder = data_folder("_manifests/strategies", "manifests/strategies")
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


__all__ = ["DrafterUse", "Identity", "Length", "Strategy", "shipped", "structure"]
