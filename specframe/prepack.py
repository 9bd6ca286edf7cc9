"""Linear layers whose weights oneDNN has prepacked: on a CPU a forward over few rows is as long as reading them takes.

torch reads a float32 weight through a library that on some processors is three times slower than memory, and puts one in
bfloat16 into oneDNN's order anew in every call. Packed once, a forward takes half to three quarters of the time, and one
over eight rows little more than one over a single row. The model keeps its own weights, so this costs their memory again;
and as every library sums in an order of its own, logits differ in their last bits from those of torch's path. Plain decoding
and verification use the same products. Knows modules and weights; nothing about rounds.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import psutil
import torch

from specframe.errors import InvalidRequest

_NUM_ROWS = 8  # that the order is made for; it serves any number
_LEAST_ELEMENTS = 2**14  # of a weight: a call of oneDNN takes ten microseconds, whatever it computes
_SAMPLED = 8  # in every request each eighth value on a weight's diagonal is looked at: two microseconds a weight
_MOST_OF_MEMORY = 0.25  # of what there is, that packed weights take without being asked for
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))  # of a container

Product = Callable[[torch.Tensor], torch.Tensor]


class _Packed:
    """A weight in oneDNN's order, and what it was made from, whose storage is held so that no other takes its place."""

    def __init__(self, weight: torch.Tensor) -> None:
        self._source, self._version = weight.detach(), weight._version
        self._key = _key(weight)
        self._sample = self._source.diagonal()[::_SAMPLED]
        self._seen = self._sample.clone()
        self.tensor: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(self._source, _NUM_ROWS)

    def is_of(self, weight: torch.Tensor) -> bool:
        """Whether a weight is the one that was packed: as torch counts the writes into it, and as a sample tells.

        Torch does not count those through ``.data``, by which adapters are merged, for one.
        """
        return (
            type(weight) is torch.nn.Parameter
            and not weight.is_inference()  # for which torch counts nothing
            and _key(weight) == self._key
            and weight._version == self._version
            and torch.equal(self._sample, self._seen)
        )


_Key = tuple[int, torch.Size, tuple[int, ...], torch.dtype]
_known: WeakValueDictionary[_Key, _Packed] = WeakValueDictionary()
"""By where a weight lies: models that share one, as a target and the draft of its first layers, share what is packed."""


class _Used(NamedTuple):
    """A layer, its product, and what the product was made of."""

    layer: torch.nn.Linear
    product: Product
    packed: _Packed
    bias: torch.Tensor | None


class Prepacked:
    """Lets a model's linear layers use prepacked weights inside a ``with`` block; their own ``forward`` is back behind it.

    ``packs``: True to pack weights here, None to use those that another model has packed, False for neither. Models that
    share layers must take turns in the block, which the locks of ``AttentionSwap`` see to.
    """

    def __init__(self, model: torch.nn.Module, *, packs: bool | None) -> None:
        self._model, self._packs = model, packs
        self._used: list[_Used] = []
        self._slots: list[tuple[dict[str, Any], Product]] = []
        self._find()

    def __bool__(self) -> bool:
        return bool(self._used)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The packed weights, opaque to everything but oneDNN."""
        return [used.packed.tensor for used in self._used]

    def refresh(self) -> None:
        """Pack again what its owner has written or replaced since; cheap where nothing was."""
        if all(map(_is_current, self._used)):
            return
        for used in self._used:
            _take_back(used)
        self._find()

    def _find(self) -> None:
        layers = _layers(self._model) if self._packs is not False else ()
        found = [(layer, _packed(layer.weight, make=bool(self._packs))) for layer in layers]
        self._used = [
            _Used(layer, _product(packed.tensor, layer.bias), packed, layer.bias)
            for layer, packed in found
            if packed is not None
        ]
        self._slots = [(vars(used.layer), used.product) for used in self._used]  # what every forward needs, at hand

    @contextmanager
    def __call__(self) -> Iterator[None]:
        # Torch's own products know what it lets anyone set, oneDNN's switch and autocast; packed ones would not ask.
        is_off = not torch.backends.mkldnn.enabled or torch.is_autocast_enabled("cpu")
        slots = [] if is_off else self._slots
        try:
            for own, product in slots:
                own.setdefault("forward", product)  # a layer whose forward somebody else has replaced keeps it
            yield
        finally:
            for own, product in slots:
                if own.get("forward") is product:
                    del own["forward"]


def is_possible() -> bool:
    """Whether this torch has oneDNN's products on a processor that they are made for."""
    names = ("_linear_pointwise", "_reorder_linear_weight", "_is_mkldnn_bf16_supported")
    return (
        platform.machine().lower() in ("x86_64", "amd64")
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.mkldnn, name) for name in names)
    )


def is_wanted(model: torch.nn.Module, wanted: bool | None) -> bool:
    """Return whether a model that was loaded is to be packed: as ``wanted``, or if None where that is possible and cheap.

    Cheap is at most a quarter of the memory of the machine, or of the container that this is. Raises ``InvalidRequest``
    where it is wanted and nothing can be packed.
    """
    layers = list(_layers(model)) if wanted is not False else []
    if wanted and not layers:
        rule = "can be asked for on an x86 CPU, where torch has oneDNN, for linear layers in float32 or bfloat16"
        raise InvalidRequest("prepack", rule, True, "leave it out")
    total = sum(layer.weight.nbytes for layer in layers)
    return bool(layers) and (bool(wanted) or total <= _MOST_OF_MEMORY * _memory())


def _memory() -> int:
    """Return the bytes of memory that this process may use."""
    sizes: list[int] = [psutil.virtual_memory().total]
    for limit in _LIMITS:
        with suppress(OSError, ValueError):  # there is none, or its file says "max"
            sizes.append(int(limit.read_text()))
    return min(sizes)


def _layers(model: torch.nn.Module) -> Iterator[torch.nn.Linear]:
    """Give the layers that can be packed: plain ones on the CPU, neither quantised nor parametrised; none where nothing can."""
    if not is_possible():
        return
    dtypes = {torch.float32} | ({torch.bfloat16} if torch.ops.mkldnn._is_mkldnn_bf16_supported() else set())
    for module in model.modules():
        # A weight of another kind is a quantised one that says it is not; one that is no parameter was made by a hook.
        if type(module) is not torch.nn.Linear or type(weight := module.weight) is not torch.nn.Parameter:
            continue
        is_large = weight.numel() >= _LEAST_ELEMENTS
        if is_large and weight.device.type == "cpu" and weight.dtype in dtypes and not weight.is_inference():
            yield module


def _take_back(used: _Used) -> None:
    """Remove a product that an interrupt left in its layer, before there is another."""
    if vars(used.layer).get("forward") is used.product:
        del used.layer.forward


def _key(weight: torch.Tensor) -> _Key:
    return weight.data_ptr(), weight.shape, weight.stride(), weight.dtype


def _packed(weight: torch.Tensor, *, make: bool) -> _Packed | None:
    known = _known.get(key := _key(weight))
    if known is None or not known.is_of(weight):
        if not make:
            return None
        _known[key] = known = _Packed(weight)
    return known


def _is_current(used: _Used) -> bool:
    return used.packed.is_of(used.layer.weight) and used.layer.bias is used.bias


def _product(packed: torch.Tensor, bias: torch.Tensor | None) -> Product:
    multiply: Any = torch.ops.mkldnn._linear_pointwise.default
    return lambda input: multiply(input, packed, bias, "none", [], "")
