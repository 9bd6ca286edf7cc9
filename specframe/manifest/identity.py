"""The manifest's records: frozen, plain data, one class a table of the file.

Knows nothing about where values come from. A field that is None is not known or does not apply. Nothing here may hold a
path, a user's or a host's name, or text of a prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from specframe.manifest.digest import digest

FORMAT = 1


@attrs.frozen
class Tokenizer:
    """What ids mean, and how text becomes ids.

    ``size``: the highest id + 1; ``vocabulary_blocks``: eight hex digits of a digest for each 1,024 ids, so that two
    manifests can say where they first differ; ``special``: ids by role; ``unknown``: how unknown text is encoded.
    """

    digest: str
    size: int
    vocabulary: str
    vocabulary_blocks: str
    token_bytes: str
    added_tokens: str
    model: str
    segmentation: str
    normalizer: str
    pre_tokenizer: str
    post_processor: str
    decoder: str
    byte_fallback: bool
    padding_side: str
    truncation_side: str
    unknown: Mapping[str, Any] = attrs.field(factory=dict)
    special: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class Template:
    """The chat template, and the ids that fixed conversations and texts are rendered to.

    A probe that the template refuses, such as a system message, is ``refused``.
    """

    digest: str | None = None
    probes: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Boundaries:
    """Where a text begins and ends, merged from model configuration, generation configuration and tokenizer.

    ``stop_ids``: the ids that end a generation; ``stop_ids_in``: what each place says; ``prefix_ids`` and ``suffix_ids``:
    what encoding puts around a text.
    """

    bos_id: int | None = None
    pad_id: int | None = None
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    stop_ids_in: Mapping[str, Any] = attrs.field(factory=dict)
    prefix_ids: tuple[int, ...] = ()
    suffix_ids: tuple[int, ...] = ()


@attrs.frozen
class Positions:
    """How positions are numbered and limited, in tokens.

    ``layers``: attention kinds in order, as ``kind*count``; ``rope``: its parameters and scaling; ``block_limit``: the
    length past which rows of one call depend on each other (length-dependent RoPE), None for a block-invariant model.
    """

    context_limit: int | None = None
    sliding_window: int | None = None
    layers: tuple[str, ...] = ()
    rope: Mapping[str, Any] = attrs.field(factory=dict)
    block_limit: int | None = None
    origin: int = 0


@attrs.frozen
class OutputMap:
    """The declared map of a reduced head: column -> target id; a column without one is -1.

    ``is_complete``: the map has exactly one entry for every column of the head.
    """

    digest: str
    columns: int
    largest_id: int
    is_injective: bool
    is_complete: bool


@attrs.frozen
class Model:
    """What is computed. ``head_width``: columns of the logits; ``computation``: the rest of the configuration."""

    architecture: str
    type: str
    hidden_size: int | None
    num_layers: int | None
    head_width: int
    tied_embeddings: bool
    computation: str
    output_map: OutputMap | None = None


@attrs.frozen
class Weights:
    """The tensors. ``adapters``: digests, in the order in which they are applied; ``num_bytes``: of all tensors."""

    digest: str | None = None
    num_tensors: int | None = None
    num_bytes: int | None = None
    quantization: Mapping[str, Any] = attrs.field(factory=dict)
    adapters: tuple[str, ...] = ()


@attrs.frozen
class Numerics:
    """Which computation is the declared distribution: the dtype of the forward and the kernel contract."""

    dtype: str
    kernel: str = "single"


@attrs.frozen
class Decoding:
    """Digests of the sampling policy and the grammar; None pins neither."""

    sampling: str | None = None
    grammar: str | None = None


@attrs.frozen
class Manifest:
    """Everything that says which target this is, and under which decoding identity."""

    model: Model
    numerics: Numerics
    tokenizer: Tokenizer | None = None
    template: Template = Template()
    boundaries: Boundaries = Boundaries()
    positions: Positions = Positions()
    weights: Weights = Weights()
    decoding: Decoding = Decoding()
    license: str | None = None

    @property
    def digest(self) -> str:
        """The digest of every field but the licence."""
        return digest("manifest-v1", {path: value for path, value in self.flat().items() if path != "license"})

    def flat(self) -> dict[str, Any]:
        """Return the fields that are known, by dotted path: ``{"positions.rope.rope_theta": 10000, ...}``."""
        return dict(_leaves(plain(self)))


def plain(record: Any) -> Any:
    """Return a record as dictionaries, lists and scalars, without what is None or empty.

    Scalars are those that equal themselves and that a text file can hold: a NaN becomes a word, a lone surrogate its escape.
    """
    if attrs.has(type(record)):
        record = attrs.asdict(record, recurse=False)
    if isinstance(record, Mapping):
        items = {str(key): plain(value) for key, value in record.items()}
        return {key: value for key, value in items.items() if value is not None and value != {} and value != []}
    if isinstance(record, list | tuple):
        return [plain(item) for item in record]
    if isinstance(record, str):
        return record.encode("utf-8", "backslashreplace").decode("utf-8")
    return "nan" if isinstance(record, float) and math.isnan(record) else record


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
