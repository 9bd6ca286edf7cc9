"""The digest of a model's tensors: their content, streamed, and independent of files, shards and their order.

Reads safetensors headers and bytes; never makes a tensor of a file. Of other weight files it digests the bytes.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from specframe.errors import LoadError, described
from specframe.manifest.digest import digest
from specframe.manifest.remember import remember, stamp

ADAPTER_CONFIG = "adapter_config.json"
_STEMS = ("model.safetensors", "pytorch_model.bin")  # in the order in which transformers looks
_ADAPTER_NOISE = frozenset(
    ("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision", "lora_dropout")
)


class Weighed(NamedTuple):
    """What was weighed: the digest of the tensors, their number, and their size in bytes."""

    digest: str
    num_tensors: int | None
    num_bytes: int


def weight_files(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, as transformers chooses them; none where there are none."""
    for name in _STEMS:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                files = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
                return [folder / file for file in sorted(set(files))]
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise LoadError(
                    f"the weight index '{index.name}' cannot be read ({described(error)}); repair the model's files"
                ) from error
    return []


def has_weights(folder: Path) -> bool:
    """Tell whether all weight files of a folder are there."""
    files = weight_files(folder)
    return bool(files) and all(file.is_file() for file in files)


def weigh_folder(folder: Path) -> Weighed:
    """Return the digest of a folder's weights. Raises ``LoadError`` unless all of them are there and whole."""
    files = weight_files(folder)
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise LoadError(
            f"model '{folder.name}' does not hold all its weights ({missing[0] if missing else _STEMS[0]} is missing); "
            "bring the missing files"
        )
    return weigh(files)


def weigh(files: Iterable[Path]) -> Weighed:
    """Return the digest of weight files; computed once for files of the same path, size and time."""
    files = list(files)
    found = remember("weights", ["weights-v1", *map(stamp, files)], lambda: _weigh(files))
    return Weighed(*found)


def weigh_loaded(model: Any) -> Weighed:
    """Return the digest of a loaded model's tensors; equal to its files' where no dtype or name was converted."""
    import torch

    names = {dtype: name for name, dtype in _torch_dtypes(torch).items()}
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    entries, num_bytes = [], 0
    for name, tensor in model.state_dict().items():
        if name in tied:
            continue
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        entries.append([name, names[tensor.dtype], list(tensor.shape), hashlib.sha256(data.data).hexdigest()])
        num_bytes += data.nbytes
    return Weighed(digest("weights-v1", sorted(entries)), len(entries), num_bytes)


def adapter_digest(folder: Path) -> str:
    """Return the digest of a PEFT adapter folder."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LoadError(f"'{folder.name}' is not an adapter: {ADAPTER_CONFIG} cannot be read") from error
    kept = {key: _unordered(value) for key, value in config.items() if key not in _ADAPTER_NOISE and value is not None}
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        weights = folder / "adapter_model.bin"
    if not weights.is_file():
        raise LoadError(f"adapter '{folder.name}' holds no weights (adapter_model.safetensors is missing)")
    return digest("adapter-v1", [kept, weigh([weights]).digest])


def _unordered(value: Any) -> Any:
    # target_modules and the like are sets that PEFT writes in any order.
    return sorted(value) if isinstance(value, list) and all(isinstance(item, str) for item in value) else value


def _weigh(files: list[Path]) -> list[Any]:
    if any(file.suffix != ".safetensors" for file in files):
        parts = []
        for file in files:
            with file.open("rb") as stream:
                parts.append(hashlib.file_digest(stream, "sha256").hexdigest())
        total = sum(file.stat().st_size for file in files)
        return [digest("weight-files-v1", sorted(parts)), None, total]
    weighed = [tensor for file in files for tensor in _tensors(file)]
    entries = sorted(entry for entry, _ in weighed)
    return [digest("weights-v1", entries), len(weighed), sum(size for _, size in weighed)]


class Entry(NamedTuple):
    """A tensor of a safetensors file: its content is the file's bytes from ``start`` to ``end``."""

    name: str
    dtype: str
    shape: list[int]
    start: int
    end: int


def entries(file: Path) -> list[Entry]:
    """Return what a safetensors file declares, in its order. Raises ``LoadError`` for a header that cannot be read."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length))
        header.pop("__metadata__", None)
        return [
            Entry(name, entry["dtype"], entry["shape"], *(8 + length + offset for offset in entry["data_offsets"]))
            for name, entry in header.items()
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise LoadError(f"'{file.name}' is not a safetensors file: its header cannot be read") from error


def _tensors(file: Path) -> Iterator[tuple[list[Any], int]]:
    """Give name, dtype, shape and digest of every tensor of a safetensors file, and its size in bytes."""
    declared = entries(file)
    end = max((entry.end for entry in declared), default=0)
    if file.stat().st_size < end:
        raise LoadError(f"'{file.name}' is cut off: {end} bytes are declared, {file.stat().st_size} are there")
    if not declared:
        return
    with (
        file.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as view,
    ):
        for entry in declared:
            with view[entry.start : entry.end] as part:
                content = hashlib.sha256(part).hexdigest()
            yield [entry.name, entry.dtype, entry.shape, content], entry.end - entry.start


def _torch_dtypes(torch: Any) -> dict[str, Any]:
    return {
        "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
        "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
        "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
    }  # fmt: skip
