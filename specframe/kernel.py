"""Choosing and probing the kernel contract of a transformers target.

Under ``block`` every forward that is read has W rows, over keys padded to a multiple of 64: rows then come from the same
machine code whatever else is in the block. That this holds to the bit is measured here and never assumed. Knows one model's
forward, and nothing about rounds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specframe.cache import TransactionalCache
from specframe.errors import UnsupportedModel, described
from specframe.manifest.digest import canonical
from specframe.manifest.remember import remember
from specframe.target import GRANULE, SINGLE, Kernel

if TYPE_CHECKING:
    from specframe.transformers_target import TransformersTarget

WIDTHS = (4, 8, 16)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16)  # whose costs adaptive lengths begin with; between them costs lie on a line
EDGES = (64, 512, 2048)  # key lengths where kernels are known to change their ways
_PROBE = 5  # the version of what is measured
_ACCEPTANCE = 0.7  # of a proposed token, for the choice of W: between open chat and a quotation
_MOST_S = 5.0  # of measuring costs, from which on nothing is repeated
_MOST_SPREAD = 1.3  # of the median of some times over the least, on a machine that does nothing else
_TOLERANCES = {"float64": 1e-6, "float32": 1e-3}  # of the largest logit; others 0.05
_SETTINGS = ("CUBLAS_WORKSPACE_CONFIG", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "NVIDIA_TF32_OVERRIDE")

_logger = logging.getLogger("specframe")

_measured: dict[str, Any] = {}  # of this process: one that cannot write its cache folder does not choose W twice


def grant(target: TransformersTarget, wanted: str) -> Kernel:
    """Return the contract for a strategy's ``kernel``: ``auto`` (by dtype), ``single``, ``block`` or ``block:W``.

    W and the verdict on it are measured once for a machine, a model's shape, dtype and number of threads, and remembered.
    Where blocks cannot keep what they are for, ``auto`` is ``single`` with a note. Raises ``UnsupportedModel`` where they
    are asked for by name and their rows would be wrong.
    """
    if wanted == "single" or (wanted == "auto" and target.facts.dtype in ("float32", "float64")):
        return SINGLE
    reason = why_rows_depend(target)
    key = conditions(target)
    _, _, given = wanted.partition(":")
    width, is_certified = int(given) if given else 0, False
    if not reason:
        try:
            width = width or choose_width(_once("kernel-cost", key, lambda: measure_costs(target)))
            verdict = _once("kernel-probe", [key, width], lambda: probe(target, width))
            reason, is_certified = verdict["wrong"], verdict["is_bitwise"]
        except Exception as error:  # a model that cannot run padded, or too little memory: not remembered
            reason = f"a padded forward failed ({described(error)})"
    if is_certified:
        return Kernel(width, is_certified=True)
    if wanted != "auto" and reason:
        raise UnsupportedModel(f"kernel '{wanted}' is not possible for this model: {reason}; use kernel 'single'")
    if wanted == "auto":
        return Kernel(note=f"kernel 'single' below float32: {reason or 'rows of a block are not bitwise equal here'}")
    return Kernel(
        width, note=f"rows of a block of {width} are not bitwise equal on this machine; the class is token-exact"
    )


def probe(target: TransformersTarget, width: int) -> dict[str, Any]:
    """Return what makes blocks of a model wrong, or an empty text, and whether their rows are equal to the bit."""
    wrong = "" if padding_is_hidden(target, width) else "its attention does not leave out the keys that its mask hides"
    return {"wrong": wrong, "is_bitwise": not wrong and rows_are_independent(target, width)}


def why_rows_depend(target: TransformersTarget) -> str:
    """Return why a row of this model depends on others of its call, or an empty text."""
    names = ((name.rpartition(".")[2] + type(module).__name__).lower() for name, module in target.model.named_modules())
    if any("expert" in name or "moe" in name for name in names):
        return "its experts are chosen and run for all rows of a call together"
    if target.facts.speculation_limit is not None:
        return "its RoPE depends on the length of the call"
    return ""


def padding_is_hidden(target: TransformersTarget, width: int) -> bool:
    """Whether rows over padded keys are those over the keys themselves, up to rounding.

    Attention that takes no mask, or that counts positions from the end of the keys, reads what is not there.
    """
    tolerance = _TOLERANCES.get(target.facts.dtype, 0.05)
    with probe_cache(target) as cache:
        for start in _starts(target, width):
            cache.fill(start)
            cache.shout_behind(start + width)
            rows = []
            for granule in (1, GRANULE):
                cache.show_multiples_of(granule)
                rows.append(cache.feed(cache.ids[:width], width).double())
                cache.cut(start)
            if not float((rows[0] - rows[1]).abs().max()) <= tolerance * float(rows[0].abs().max()):
                return False
    return True


def choose_width(costs: dict[str, float]) -> int:
    """Return the width that gives most tokens for its cost, where a token is accepted with probability 0.7."""
    tokens = {width: (1 - _ACCEPTANCE ** int(width)) / (1 - _ACCEPTANCE) for width in costs}
    return int(max(costs, key=lambda width: tokens[width] / costs[width]))


def measure_costs(target: TransformersTarget) -> dict[str, float]:
    """Return what a forward of each width costs over the cheapest, by width."""
    with probe_cache(target) as cache:
        seconds = _least(cache.time(WIDTHS, repeats=5))
    return {str(width): round(second / min(seconds.values()), 4) for width, second in seconds.items()}


def row_costs(target: TransformersTarget) -> tuple[float, ...]:
    """Return what a forward of 1 to 16 rows costs over one of a single row, without padding; nothing where it fails.

    Measured like the widths, for this depends on the machine more than on anything: on one processor eight rows cost twice
    as much as two, on the next less. What was measured on a disturbed machine is not remembered.
    """
    try:
        return tuple(_once("row-costs", conditions(target), lambda: measure_row_costs(target)))
    except _Disturbed as error:
        return tuple(error.costs)
    except Exception as error:  # such as too little context or memory
        _logger.info("what rows cost could not be measured (%s)", described(error))
        return ()


class _Disturbed(Exception):
    """Costs that were measured while the machine did something else."""

    def __init__(self, costs: list[float]) -> None:
        self.costs = costs
        super().__init__()


def measure_row_costs(target: TransformersTarget) -> list[float]:
    """Measure what ``row_costs`` returns."""
    with probe_cache(target) as cache:
        cache.show_multiples_of(1)
        times = cache.time(ROWS, repeats=6)
    seconds = _least(times)
    known = [min(seconds[size] / seconds[1], size) for size in ROWS]  # n rows could be n forwards
    costs = [round(float(cost), 4) for cost in np.interp(range(1, ROWS[-1] + 1), ROWS, known)]
    is_uneven = any(statistics.median(times[size]) > _MOST_SPREAD * seconds[size] for size in ROWS)
    if is_uneven or any(seconds[size] > size * _MOST_SPREAD * seconds[1] for size in ROWS):
        raise _Disturbed(costs)
    return costs


def _least(times: dict[int, list[float]]) -> dict[int, float]:
    """Return the least times: what disturbs a machine only ever makes a forward slower."""
    return {size: min(seconds) for size, seconds in times.items()}


def rows_are_independent(target: TransformersTarget, width: int) -> bool:
    """Whether logits and keys are equal to the bit between one token a forward and several, at the edges of key lengths.

    What stands in the other rows is random in both.
    """
    num_tokens, kernel = width + 8, Kernel(width)
    random = np.random.default_rng(0)
    with probe_cache(target) as cache:
        for start in _starts(target, width):
            cache.fill(start)
            singly = cache.decode(start, [1] * num_tokens, width, random)
            chunks: list[int] = []
            while (done := sum(chunks)) < num_tokens:
                most = min(kernel.most_ids(start + done) or width, num_tokens - done)
                chunks.append(int(random.integers(1, most, endpoint=True)))
            together = cache.decode(start, chunks, width, random)
            if not all(torch.equal(one, other) for one, other in zip(singly, together, strict=True)):
                return False
    return True


def _starts(target: TransformersTarget, width: int) -> list[int]:
    """Return positions from which a few tokens cross the edges of key lengths, as far as the context goes.

    The blocks of the first five are padded to the edge, those after them to the next multiple.
    """
    limit = target.facts.context_limit or EDGES[-1] + 4 * width
    return sorted({max(min(edge - width - 4, limit - 2 * width - 8), 1) for edge in EDGES})


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

    def time(self, sizes: Sequence[int], repeats: int) -> dict[int, list[float]]:
        """Return the seconds of forwards over the first ids, by how many ids; interleaved.

        ``repeats`` times, or fewer, but once, where that takes longer than 5 seconds.
        """
        seconds: dict[int, list[float]] = {size: [] for size in sizes}
        begin = time.perf_counter()
        for repeat in range(1 + repeats):
            if repeat > 1 and time.perf_counter() - begin > _MOST_S:
                break
            for size in sizes:
                start = time.perf_counter()
                self.feed(self.ids[:size], size)
                if repeat:  # the first time makes what the later ones find
                    seconds[size].append(time.perf_counter() - start)
                self.cut(GRANULE)
        return seconds

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

    def shout_behind(self, length: int) -> None:
        """Put values where none count that nobody can read without being changed by them."""
        for layer in self._layers:
            layer.values[:, :, length:] = 100

    def show_multiples_of(self, granule: int) -> None:
        """Show attention a multiple of ``granule`` positions from now on."""
        for layer in self._layers:
            layer.granule = granule

    def decode(self, start: int, chunks: Sequence[int], width: int, random: np.random.Generator) -> list[torch.Tensor]:
        """Feed the first ids from ``start`` on in chunks, in blocks filled with random ids; return rows, keys and values."""
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
    ids = random.integers(0, target.facts.vocab_size, 3 * GRANULE).tolist()
    with torch.inference_mode():
        cache = ProbeCache(target, ids[GRANULE:])
        cache.feed(ids[:GRANULE], 1)
        yield cache


def circumstances(target: TransformersTarget) -> tuple[Any, ...]:
    """Return what a verdict depends on and may change while a model is in use; cheap."""
    model, kind = target.model, target.model.device.type
    return (
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(kind) and str(torch.get_autocast_dtype(kind)),
        model.config.get_text_config()._attn_implementation,
        *map(str, (model.dtype, model.device)),
        target.is_prepacked,
    )


def conditions(target: TransformersTarget) -> list[Any]:
    """Return all that bitwise equality may depend on: the machine, the libraries, and the model's shape, not its weights."""
    model, device = target.model, target.model.device
    config = model.config.to_diff_dict()
    for name in ("_name_or_path", "transformers_version"):
        config.pop(name, None)
    # Not the configuration alone: adapters, quantised or replaced modules leave it as it is.
    modules = [[name, type(module).__qualname__] for name, module in model.named_modules()]
    tensors = [[name, list(tensor.shape), str(tensor.dtype)] for name, tensor in model.state_dict().items()]
    return [
        _PROBE,
        torch.cuda.get_device_name(device) if device.type == "cuda" else [device.type, _processor()],
        [platform.machine(), os.cpu_count(), *(os.environ.get(name) for name in _SETTINGS)],
        [torch.__version__, torch.backends.cpu.get_cpu_capability(), version("transformers")],
        [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32],
        repr(sorted(config.items())),
        [modules, tensors],
        list(circumstances(target)),
    ]


def _once(kind: str, key: Any, make: Callable[[], Any]) -> Any:
    """Return what was measured before, in this process or an earlier one, else measure it."""
    name = f"{kind} {canonical(key)!r}"
    if name not in _measured:
        _measured[name] = remember(kind, key, make)
    return _measured[name]


def _processor() -> str:
    """Return the processor's name as far as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = ("model name", "cpu family", "model\t", "stepping", "flags")
    return "\n".join(sorted({line for line in lines if line.startswith(names)}))
