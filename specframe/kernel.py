"""Choosing and probing the kernel contract of a transformers target.

Under ``block`` every forward that is read has W rows, over keys padded to a multiple of 64: rows then come from the same
machine code whatever else is in the block. That this holds to the bit is measured here and never assumed. Knows one model's
forward, and nothing about rounds. Source: DESIGN.md section 7.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specframe.cache import GRANULE, TransactionalCache
from specframe.errors import UnsupportedModel
from specframe.manifest.remember import remember
from specframe.target import SINGLE, Kernel

if TYPE_CHECKING:
    from specframe.transformers_target import TransformersTarget

WIDTHS = (4, 8, 16)
EDGES = (64, 512, 2048)  # key lengths where kernels are known to change their ways
_PROBE = 1  # the version of what is measured
_ACCEPTANCE = 0.7  # of a proposed token, for the choice of W: between open chat and a quotation
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def grant(target: TransformersTarget, wanted: str) -> Kernel:
    """Return the contract for a strategy's ``kernel``: ``auto`` (by dtype), ``single``, ``block`` or ``block:W``.

    W and the verdict on it are measured once for a machine, a model's shape, dtype and number of threads, and remembered.
    Raises ``UnsupportedModel`` where blocks are asked for by name and the rows of the model depend on each other.
    """
    if wanted == "single" or (wanted == "auto" and target.facts.dtype in ("float32", "float64")):
        return SINGLE
    reason = why_rows_depend(target)
    if reason and wanted == "auto":
        return Kernel(note=f"kernel 'single' below float32: {reason}")
    if reason:
        raise UnsupportedModel(f"kernel '{wanted}' is not possible for this model: {reason}; use kernel 'single'")
    key = _conditions(target)
    _, _, given = wanted.partition(":")
    width = int(given) if given else choose_width(remember("kernel-cost", key, lambda: measure_costs(target)))
    if remember("kernel-probe", [key, width], lambda: rows_are_independent(target, width)):
        return Kernel(width, is_certified=True)
    return Kernel(width, note=f"rows of a block of {width} are not bitwise equal on this machine; the class is token-exact")


def why_rows_depend(target: TransformersTarget) -> str:
    """Return why a row of this model depends on others of its call, or an empty text."""
    config = target.model.config.get_text_config()
    if any((getattr(config, name, None) or 0) > 1 for name in _EXPERTS):
        return "its experts are chosen and run for all rows of a call together"
    if target.facts.speculation_limit is not None:
        return "its RoPE depends on the length of the call"
    return ""


def choose_width(costs: dict[str, float]) -> int:
    """Return the width that gives most tokens for its cost, where a token is accepted with probability 0.7."""
    tokens = {width: (1 - _ACCEPTANCE ** int(width)) / (1 - _ACCEPTANCE) for width in costs}
    return int(max(costs, key=lambda width: tokens[width] / costs[width]))


def measure_costs(target: TransformersTarget, *, repeats: int = 5) -> dict[str, float]:
    """Return what a forward of each width costs over the cheapest, by width; interleaved, the median of ``repeats``."""
    seconds: dict[int, list[float]] = {width: [] for width in WIDTHS}
    with probe_cache(target) as cache:
        for repeat in range(1 + repeats):
            for width in WIDTHS:
                start = time.perf_counter()
                cache.feed(cache.ids[:width], width)
                if repeat:
                    seconds[width].append(time.perf_counter() - start)
                cache.cut(GRANULE)
    medians = {width: statistics.median(times) for width, times in seconds.items()}
    return {str(width): round(median / min(medians.values()), 4) for width, median in medians.items()}


def rows_are_independent(target: TransformersTarget, width: int) -> bool:
    """Whether logits and keys are equal to the bit between one token a forward and several, across the edges of key lengths.

    What stands in the other rows is random in both.
    """
    limit = target.facts.context_limit or EDGES[-1] + 2 * width
    num_tokens = width + 4
    edges = {min(edge, limit - num_tokens // 2 - width) for edge in EDGES}
    random = np.random.default_rng(0)
    with probe_cache(target) as cache:
        for edge in sorted(edges):
            start = max(edge - num_tokens // 2, 1)
            cache.fill(start)
            singly = cache.decode(start, [1] * num_tokens, width, random)
            chunks: list[int] = []
            while (left := num_tokens - sum(chunks)) > 0:
                chunks.append(int(random.integers(1, min(width, left), endpoint=True)))
            together = cache.decode(start, chunks, width, random)
            if not all(torch.equal(one, other) for one, other in zip(singly, together, strict=True)):
                return False
    return True


class ProbeCache:
    """A cache of a target's that no session has, to feed as one likes. ``ids``: random ids to feed."""

    def __init__(self, target: TransformersTarget, ids: list[int]) -> None:
        self.ids = ids
        self._target = target
        self._cache = TransactionalCache(target.model.config.get_text_config().num_hidden_layers)
        self._layers: Sequence[Any] = self._cache.layers
        self._cache.pad_to(GRANULE)

    def feed(self, ids: Sequence[int], num_rows: int) -> torch.Tensor:
        """Run the model on ids and return the last ``num_rows`` rows, when they are there."""
        device = self._target.model.device
        logits = self._target.run(torch.tensor([ids], device=device), self._cache, num_rows)[0, -num_rows:]
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return logits

    def cut(self, length: int) -> None:
        """Drop what stands at ``length`` and after."""
        for layer in self._layers:
            layer.cut(length)

    def fill(self, length: int) -> None:
        """Hold ``length`` positions: the keys and values of the first ones over and over.

        Where they come from is nothing to a kernel, and to compute them would take longer than everything else.
        """
        num_granules = -(-length // GRANULE) + 2
        for layer in self._layers:
            for name in ("keys", "values"):
                setattr(layer, name, getattr(layer, name)[:, :, :GRANULE].repeat(1, 1, num_granules, 1))
            layer.length = num_granules * GRANULE
        self.cut(length)

    def show_multiples_of(self, granule: int) -> None:
        """Show attention a multiple of ``granule`` positions from now on."""
        for layer in self._layers:
            layer.granule = granule

    def decode(self, start: int, chunks: Sequence[int], width: int, random: np.random.Generator) -> list[torch.Tensor]:
        """Feed the first ids from ``start`` on in chunks, in blocks that random ids fill up; return their rows, keys and values."""
        self.cut(start)
        rows, position = [], 0
        for size in chunks:
            others = random.integers(0, self._target.facts.vocab_size, width - size).tolist()
            rows.append(self.feed([*self.ids[position : position + size], *others], width)[:size].clone())
            position += size
            self.cut(start + position)
        states = [part[:, :, start : start + position] for layer in self._layers for part in (layer.keys, layer.values)]
        return [torch.cat(rows), *(state.clone() for state in states)]


@contextlib.contextmanager
def probe_cache(target: TransformersTarget) -> Iterator[ProbeCache]:
    """Lend a cache that holds a first granule of random ids."""
    random = np.random.default_rng(1)
    opening, ids = random.integers(0, target.facts.vocab_size, (2, GRANULE)).tolist()
    with torch.inference_mode():
        cache = ProbeCache(target, ids)
        cache.feed(opening, 1)
        yield cache


def _conditions(target: TransformersTarget) -> list[Any]:
    """Return all that bitwise equality may depend on: the machine, the libraries, and the model's shape, not its weights."""
    device = target.model.device
    config = target.model.config.to_diff_dict()
    for name in ("_name_or_path", "transformers_version"):
        config.pop(name, None)
    return [
        _PROBE,
        torch.cuda.get_device_name(device) if device.type == "cuda" else [device.type, _processor()],
        [platform.machine(), os.cpu_count(), torch.get_num_threads()],
        [torch.__version__, torch.backends.cpu.get_cpu_capability(), version("transformers")],
        repr(sorted(config.items())),
        target.model.config._attn_implementation,
        target.facts.dtype,
    ]


def _processor() -> str:
    """Return the processor's name as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "cpu family", "model\t", "stepping", "flags")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))
