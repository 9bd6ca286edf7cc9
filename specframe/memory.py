"""What a target and its drafters hold, in bytes, as far as they tell it.

Three numbers are kept apart: logical (every part as if it stood alone), deduplicated (storages counted once, however many
parts share or tie them), and incremental (what drafters add to the target). What is not told is unknown, not nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from specframe.proposal import HoldsTensors

if TYPE_CHECKING:
    import torch

    from specframe.proposal import Drafter
    from specframe.target import Target

Holders = Mapping[str, "Target | Drafter"]
"""A target, under the name ``target``, and its drafters by name."""


def holders(target: Target, drafters: Mapping[str, Drafter]) -> Holders:
    """Return who may hold tensors, by name."""
    return {"target": target, **drafters}


def tensors_of(holders: Holders) -> dict[str, list[torch.Tensor]]:
    """Return the tensors that target and drafters tell to hold, by part: ``target weights``, ``target cache`` and so on."""
    return {
        f"{name} {part}": list(tensors)
        for name, holder in holders.items()
        if isinstance(holder, HoldsTensors)
        for part, tensors in holder.tensors().items()
    }


def unknown_of(holders: Holders) -> list[str]:
    """Return the names of those that do not tell what they hold."""
    return [name for name, holder in holders.items() if not isinstance(holder, HoldsTensors)]


class _Weight(NamedTuple):
    """The logical bytes of a part, and those of each storage by its address."""

    logical: int
    storages: dict[int, int]


def num_bytes(parts: Mapping[str, Iterable[torch.Tensor]]) -> dict[str, Any]:
    """Return the logical bytes of each part, and the deduplicated and incremental ones of all."""
    return _sums({part: _weigh(tensors) for part, tensors in parts.items()})


class Ledger:
    """Accounts of what a target and its drafters hold, taken whenever one is asked for.

    Weights are weighed once, and stay: to walk a model takes longer than everything else in an account.
    """

    def __init__(self, holders: Holders) -> None:
        self._holders = holders
        self._weights: dict[str, _Weight] = {}

    def account(self) -> dict[str, Any]:
        """Return what ``num_bytes`` does of what holders tell now, who is unknown, and the peak of the process.

        Raises nothing: a drafter that fails to tell is unknown.
        """
        parts: dict[str, _Weight] = {}
        unknown = []
        for name, holder in self._holders.items():
            try:
                parts |= self._told(name, holder)
            except Exception:
                unknown.append(name)
        return {**_sums(parts), "unknown": unknown, "process": max_resident()}

    def _told(self, name: str, holder: Target | Drafter) -> dict[str, _Weight]:
        if not isinstance(holder, HoldsTensors):
            raise TypeError(f"{type(holder).__name__} does not tell what it holds")
        return {
            f"{name} {part}": self._remembered(name, tensors) if part == "weights" else _weigh(tensors)
            for part, tensors in holder.tensors().items()
        }

    def _remembered(self, name: str, tensors: Iterable[torch.Tensor]) -> _Weight:
        if name not in self._weights:
            self._weights[name] = _weigh(tensors)
        return self._weights[name]


def _weigh(tensors: Iterable[torch.Tensor]) -> _Weight:
    logical, storages = 0, {}
    for tensor in tensors:
        logical += tensor.nbytes
        if tensor.is_mkldnn:  # its storage is oneDNN's
            storages[id(tensor)] = tensor.nbytes
            continue
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return _Weight(logical, storages)


def _sums(parts: Mapping[str, _Weight]) -> dict[str, Any]:
    storages: dict[int, int] = {}
    plain: dict[int, int] = {}
    for part, weight in parts.items():
        storages |= weight.storages
        if part.startswith("target "):
            plain |= weight.storages
    total = sum(storages.values())
    logical = {part: weight.logical for part, weight in parts.items()}
    return {"logical": logical, "deduplicated": total, "incremental": total - sum(plain.values())}


def max_resident() -> int:
    """Return the most bytes that this process was ever resident with, as the system counts."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
