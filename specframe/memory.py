"""What a target and its drafters hold, in bytes, as far as they tell it.

Three numbers are kept apart: logical (every part as if it stood alone), deduplicated (storages counted once, however many
parts share or tie them), and incremental (what drafters add to the target). What is not told is unknown, not nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

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


def num_bytes(parts: Mapping[str, Collection[torch.Tensor]]) -> dict[str, Any]:
    """Return the logical bytes of each part, and the deduplicated and incremental ones of all."""
    logical: dict[str, int] = {}
    storages: dict[int, int] = {}
    plain: dict[int, int] = {}
    for part, tensors in parts.items():
        logical[part] = sum(tensor.nbytes for tensor in tensors)
        own = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
        storages |= own
        if part.startswith("target "):
            plain |= own
    total = sum(storages.values())
    return {"logical": logical, "deduplicated": total, "incremental": total - sum(plain.values())}


def account(holders: Holders) -> dict[str, Any]:
    """Return what ``num_bytes`` does of what holders tell now, who is unknown, and the peak of the process.

    Raises nothing: a drafter that fails to tell is unknown.
    """
    parts: dict[str, list[torch.Tensor]] = {}
    unknown = []
    for name, holder in holders.items():
        try:
            parts |= tensors_of({name: holder})
            unknown += unknown_of({name: holder})
        except Exception:
            unknown.append(name)
    return {**num_bytes(parts), "unknown": unknown, "process": max_resident()}


def max_resident() -> int:
    """Return the most bytes that this process was ever resident with, as the system counts."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
