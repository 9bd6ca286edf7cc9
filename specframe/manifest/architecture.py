"""A model's identity from its configuration: what is computed, positions, boundaries and numerics.

Reads transformers configurations; loads no weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from specframe.manifest.digest import digest
from specframe.manifest.identity import Boundaries, Model, OutputMap, Positions

# What a configuration says that no forward reads: provenance, output switches, training.
_NOISE = frozenset(
    (
        "architectures",
        "auto_map",
        "chunk_size_feed_forward",
        "dtype",
        "torch_dtype",
        "finetuning_task",
        "gradient_checkpointing",
        "id2label",
        "initializer_factor",
        "initializer_range",
        "is_encoder_decoder",
        "label2id",
        "model_type",
        "name_or_path",
        "num_labels",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "task_specific_params",
        "tokenizer_class",
        "transformers_version",
        "use_cache",
        "use_return_dict",
    )
)
_TRAINING_SUFFIXES = ("dropout", "pdrop", "drop_rate", "_loss_coef")
# What has a field of its own.
_PLACED = frozenset(
    (
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "sep_token_id",
        "cls_token_id",
        "mask_token_id",
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "max_position_embeddings",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window",
        "layer_types",
        "tie_word_embeddings",
        "quantization_config",
    )
)


def model_identity(
    config: Any, architecture: str, *, output_ids: list[int] | None = None, head_rows: int | None = None
) -> Model:
    """Return what a configuration computes; ``architecture`` names the class that will run it.

    ``output_ids``: the declared target id of every output column; ``head_rows``: of the stored output embedding, where known.
    """
    text = config.get_text_config()
    width = head_rows if head_rows is not None else int(text.vocab_size)
    return Model(
        architecture=architecture,
        type=str(config.model_type),
        hidden_size=getattr(text, "hidden_size", None),
        num_layers=getattr(text, "num_hidden_layers", None),
        head_width=width,
        tied_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        computation=digest("computation-v1", _computation(config.to_dict())),
        output_map=_output_map(output_ids, width) if output_ids is not None else None,
    )


def positions_identity(config: Any) -> Positions:
    """Return limits, windows and RoPE of a configuration."""
    from specframe.transformers_target import context_limit_of, speculation_limit_of

    text = config.get_text_config()
    kinds = itertools.groupby(getattr(text, "layer_types", None) or ())
    return Positions(
        context_limit=context_limit_of(text),
        sliding_window=getattr(text, "sliding_window", None),
        layers=tuple(f"{kind}*{len(list(run))}" for kind, run in kinds),
        rope=as_plain(getattr(text, "rope_parameters", None) or {}),
        block_limit=speculation_limit_of(text),
    )


def boundaries_identity(config: Any, generation: Any, tokenizer: Any) -> Boundaries:
    """Return where texts begin and end; ``generation`` is the generation configuration, or None."""
    from specframe.transformers_target import stop_ids_of

    text = config.get_text_config()
    places = {"generation": generation, "config": text, "tokenizer": tokenizer}
    model: Any = SimpleNamespace(generation_config=generation, config=config)
    around = _around(tokenizer) if tokenizer is not None else ((), ())
    strings = getattr(generation, "stop_strings", None) or ()
    return Boundaries(
        bos_id=_first(places, "bos_token_id"),
        pad_id=_first(places, "pad_token_id"),
        stop_ids=tuple(sorted(stop_ids_of(model, tokenizer))),
        stop_strings=(strings,) if isinstance(strings, str) else tuple(strings),
        stop_ids_in={
            name: sorted(_ids(value))
            for name, place in places.items()
            if (value := getattr(place, "eos_token_id", None)) is not None
        },
        prefix_ids=around[0],
        suffix_ids=around[1],
    )


def dtype_name(config: Any) -> str | None:
    """Return the dtype that a configuration declares, as torch spells it."""
    dtype = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    return None if dtype is None else str(dtype).removeprefix("torch.")


def as_plain(value: Any) -> Any:
    """Return a configuration value as what TOML can hold; None inside a mapping is left out."""
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): as_plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(as_plain, value))
    return value if isinstance(value, str | bool | int | float) else str(value)


def _computation(tree: Mapping[str, Any], *, is_top: bool = True) -> dict[str, Any]:
    return {
        key: _computation(value, is_top=False) if isinstance(value, Mapping) else as_plain(value)
        for key, value in tree.items()
        if value is not None
        and not key.startswith("_")
        and key not in _NOISE
        and not key.endswith(_TRAINING_SUFFIXES)
        and not (is_top and key in _PLACED)
    }


def _output_map(ids: list[int], head_width: int) -> OutputMap:
    placed = [token for token in ids if token >= 0]
    return OutputMap(
        digest=digest("output-map-v1", ids),
        columns=len(ids),
        largest_id=max(placed, default=-1),
        is_injective=len(set(placed)) == len(placed),
        is_complete=len(ids) == head_width,
    )


def _around(tokenizer: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that encoding puts before and after a text."""
    bare = list(tokenizer("a b", add_special_tokens=False)["input_ids"])
    full = list(tokenizer("a b")["input_ids"])
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    return tuple(full), ()  # encoding with special tokens cuts the text otherwise: all of it is the rule


def _first(places: Mapping[str, Any], name: str) -> int | None:
    found = (getattr(place, name, None) for place in places.values())
    return next((int(value) for value in found if isinstance(value, int)), None)


def _ids(value: Any) -> list[int]:
    ids = list(value) if isinstance(value, list | tuple) else [value]
    if not all(isinstance(token, int) for token in ids):
        raise TypeError(f"eos_token_id must be an id or a list of ids (got {value!r})")
    return ids
