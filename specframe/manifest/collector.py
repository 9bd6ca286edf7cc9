"""From a model at rest, or a loaded one, to its manifest; cheap parts first, weights only when asked for."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from specframe.errors import InvalidManifest, InvalidRequest, LoadError, SpecframeError, described
from specframe.layout import BORROWS, OUTPUT_MAP
from specframe.manifest.file import from_plain, to_plain
from specframe.manifest.identity import Decoding, Manifest, Numerics, Template, Weights
from specframe.manifest.remember import remember, stamp
from specframe.manifest.source import Source
from specframe.manifest.tensors import (
    ADAPTER_CONFIG,
    Weighed,
    adapter_digest,
    entries,
    has_weights,
    weigh_folder,
    weight_files,
)

if TYPE_CHECKING:
    from specframe.target import Target

_HEAD = "lm_head.weight"
_SMALL_FILES = frozenset((".json", ".jinja", ".model", ".txt", ".tiktoken"))
_LICENSE = re.compile(r"\A---\r?\n(?:(?!---).*\n)*?license:[ \t]*[\"']?([\w.+-]+)")  # within the card's front matter
DTYPES = ("float32", "float64", "bfloat16", "float16")
_ORIGINS = frozenset(("dataset", "tokenizer", "model_name_or_path", "model_file_base_name"))


def check_dtype(dtype: Any) -> str | None:
    """Return a dtype, torch's or its name, as its name; None stays. Raises ``InvalidRequest`` for one that no model runs in."""
    name = str(dtype).removeprefix("torch.") if dtype is not None else None
    if name is not None and name not in DTYPES:
        raise InvalidRequest("dtype", f"must be one of {', '.join(DTYPES)}", name)
    return name


def collect(
    source: Source,
    *,
    weights: bool = False,
    dtype: str | None = None,
    adapters: Sequence[str | Path] = (),
    decoding: Decoding = Decoding(),  # noqa: B008 - frozen
) -> Manifest:
    """Return the manifest of a model at rest.

    ``weights``: digest its tensors too (a GGUF file is converted for that); ``dtype``: of the forward, by default the
    model's own; ``adapters``: PEFT folders, in the order in which they are applied. What was computed once is kept in the
    cache folder. Raises ``InvalidRequest`` for a folder without a configuration or an unknown dtype, ``LoadError`` for
    files that cannot be read.
    """
    dtype = check_dtype(dtype)
    if weights:
        source = source.whole()
    manifest = _remembered(source)
    folder = source.folder
    chain = [*([folder] if folder is not None and (folder / ADAPTER_CONFIG).is_file() else []), *map(Path, adapters)]
    kept = attrs.evolve(manifest.weights, adapters=tuple(map(adapter_digest, chain)))
    manifest = attrs.evolve(
        manifest,
        numerics=Numerics(dtype or manifest.numerics.dtype),
        weights=kept,
        decoding=decoding,
    )
    if not weights or folder is None:
        return manifest
    return with_weights(manifest, weigh_folder(folder))


def collect_all(source: Source) -> Manifest:
    """Return the manifest of a model at rest, with its weights where there are any."""
    whole = source.whole()
    return collect(whole, weights=whole.folder is not None and has_weights(whole.folder))


def with_weights(manifest: Manifest, weighed: Weighed) -> Manifest:
    """Return the manifest with what the weights weigh."""
    return attrs.evolve(manifest, weights=attrs.evolve(manifest.weights, **weighed._asdict()))


def of_target(target: Target) -> Manifest | None:
    """Return a target's manifest without its weights: the one that it states, else that of its loaded model.

    None for a target that is not a transformers model and states none.
    """
    from specframe.transformers_target import TransformersTarget

    if target.facts.identity is not None or not isinstance(target, TransformersTarget):
        return target.facts.identity
    model: Any = target.model
    return _assemble(
        model.config,
        getattr(model, "generation_config", None),
        target.tokenizer,
        architecture=type(model).__name__,
        dtype=target.facts.dtype,
    )


def weighed_target(target: Target) -> Manifest | None:
    """Return a target's manifest with its weights: of a transformers model the tensors that are loaded."""
    from specframe.manifest.tensors import weigh_loaded
    from specframe.transformers_target import TransformersTarget

    manifest = of_target(target)
    if manifest is None or manifest.weights.digest is not None or not isinstance(target, TransformersTarget):
        return manifest
    return with_weights(manifest, weigh_loaded(target.model))


def strings_of(source: Source) -> list[str | None] | None:
    """Return the string of every id of a model's tokenizer, or None without one."""
    strings: list[str | None] | None = remember("strings", _key(source), lambda: _strings(source.read_tokenizer()))
    return strings


def _remembered(source: Source) -> Manifest:
    kept = remember("identity", _key(source), lambda: to_plain(_collect(source)))
    try:
        return from_plain(dict(kept), "kept manifest")
    except InvalidManifest:  # kept by another version of this code
        return _collect(source)


def _key(source: Source) -> list[Any]:
    """Return what the cheap parts depend on; weight files are among it where a dtype is read off them."""
    files = weight_files(source.folder) if source.folder is not None and has_weights(source.folder) else []
    trusted = ["trusted"] if source.trust_remote_code else []
    made_by = [_code(), version("transformers"), version("tokenizers"), *trusted]
    return [*made_by, _fingerprint(source), list(map(stamp, files))]


@functools.cache
def _code() -> str:
    """Return a digest of the code that makes manifests: what another version of it has kept is not used."""
    here = Path(__file__).parent
    files = [*here.glob("*.py"), here.parent / "text.py", here.parent / "transformers_target.py"]
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(files))).hexdigest()


def _fingerprint(source: Source) -> Any:
    """Return the content of every small file that a manifest is made of; of a GGUF file path, size and time."""
    if source.folder is None:
        assert source.gguf is not None
        return stamp(source.gguf)
    return {
        str(file.relative_to(source.folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in _small_files(source.folder)
    }


def stamps(folder: Path) -> list[Any]:
    """Return what changes when a file changes that a model is loaded from or a manifest is made of."""
    weights = [file for file in weight_files(folder) if file.is_file()]
    return sorted(map(stamp, [*_small_files(folder), *weights]))


def _small_files(folder: Path) -> list[Path]:
    files = [*folder.glob("*"), *folder.glob("additional_chat_templates/*")]
    return [file for file in files if (file.suffix in _SMALL_FILES or file.name == "README.md") and file.is_file()]


def _collect(source: Source) -> Manifest:
    try:
        return _describe(source)
    except SpecframeError:
        raise
    except Exception as error:  # damaged files fail in many places of as many libraries
        name = (source.folder or source.gguf or Path(source.hub or "model")).name
        raise LoadError(f"model '{name}' cannot be described ({described(error)}); repair its files") from error


def _describe(source: Source) -> Manifest:
    from transformers import GenerationConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    from specframe.manifest.architecture import dtype_name

    config = source.read_config(str(source.folder or source.gguf))
    folder = source.folder
    if folder is not None and (folder / "generation_config.json").is_file():
        generation = GenerationConfig.from_pretrained(folder)
    else:
        generation = GenerationConfig.from_model_config(config)
    tokenizer = source.read_tokenizer()
    columns = output_ids(folder)
    if source.gguf is not None:  # reading it takes long: what explains a refusal is kept now
        remember("strings", _key(source), lambda: _strings(tokenizer))
    named = getattr(config, "architectures", None) or ["unknown"]
    return _assemble(
        config,
        generation,
        tokenizer,
        architecture=str(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type, named[0])),
        dtype=dtype_name(config) or (_stored_dtype(folder) if folder is not None else None) or "float32",
        output_ids=columns,
        head_rows=_head_rows(folder, config, columns) if folder is not None and columns is not None else None,
        license=_license(folder),
    )


def _assemble(
    config: Any,
    generation: Any,
    tokenizer: Any,
    *,
    architecture: str,
    dtype: str,
    output_ids: list[int] | None = None,
    head_rows: int | None = None,
    license: str | None = None,
) -> Manifest:
    from specframe.manifest.architecture import (
        as_plain,
        boundaries_identity,
        model_identity,
        positions_identity,
    )
    from specframe.manifest.probes import template_identity
    from specframe.manifest.tokens import tokenizer_identity

    quantization = getattr(config, "quantization_config", None)
    return Manifest(
        model=model_identity(config, architecture, output_ids=output_ids, head_rows=head_rows),
        numerics=Numerics(dtype),
        tokenizer=tokenizer_identity(tokenizer) if tokenizer is not None else None,
        template=template_identity(tokenizer) if tokenizer is not None else Template(),
        boundaries=boundaries_identity(config, generation, tokenizer),
        positions=positions_identity(config),
        weights=Weights(quantization=_without_origins(as_plain(quantization)) if quantization else {}),
        license=license,
    )


def _without_origins(quantization: dict[str, Any]) -> dict[str, Any]:
    """Leave out where a quantisation came from: paths of its maker's machine say nothing of the weights."""
    return {key: value for key, value in quantization.items() if key not in _ORIGINS}


def _strings(tokenizer: Any) -> list[str | None] | None:
    from specframe.manifest.tokens import token_strings

    return None if tokenizer is None else token_strings(tokenizer)


def _stored_dtype(folder: Path) -> str | None:
    """Return the dtype of the first floating-point tensor, which transformers loads in where none is declared."""
    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
    stored = (entry.dtype for file in _tensor_files(folder) for entry in entries(file))
    return next((names[dtype] for dtype in stored if dtype in names), None)


def _head_rows(folder: Path, config: Any, columns: list[int]) -> int | None:
    """Return the rows of a head that has a map: those that are stored, or that it borrows; None where it has neither."""
    borrowed = getattr(config, BORROWS, None)
    if isinstance(borrowed, list) and "head" in borrowed:
        return len(columns)
    shapes = (entry.shape for file in _tensor_files(folder) for entry in entries(file) if entry.name == _HEAD)
    return next((shape[0] for shape in shapes if shape), None)


def _tensor_files(folder: Path) -> list[Path]:
    return [file for file in weight_files(folder) if file.suffix == ".safetensors" and file.is_file()]


def output_ids(folder: Path | None) -> list[int] | None:
    """Return the target id of every output column that a draft's folder declares, -1 for none; None without a map.

    Raises ``InvalidRequest`` for a map that is no list of integers.
    """
    if folder is None or not (folder / OUTPUT_MAP).is_file():
        return None
    try:
        ids = json.loads((folder / OUTPUT_MAP).read_text(encoding="utf-8"))
    except ValueError:
        ids = None
    if not isinstance(ids, list) or any(isinstance(token, bool) or not isinstance(token, int) for token in ids):
        raise InvalidRequest("model", f"must hold a list of target ids in {OUTPUT_MAP}", folder.name)
    return [max(token, -1) for token in ids]


def _license(folder: Path | None) -> str | None:
    card = folder / "README.md" if folder is not None else None
    if card is None or not card.is_file():
        return None
    found = _LICENSE.match(card.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else None
