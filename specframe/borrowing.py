"""Drafts that are made for one target and leave some of their tensors to it.

Knows a draft's configuration and its loaded model; nothing about files, rounds, or whether the pair fits otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from specframe.errors import InvalidRequest, LoadError
from specframe.layout import BORROWS
from specframe.proposal import Views

PARTS = ("embeddings", "head")


def borrowed_parts(config: PreTrainedConfig, views: Views | None, name: str) -> tuple[str, ...]:
    """Return which tensors a model takes from a target: none, unless it is a draft that was made so.

    Raises ``LoadError`` for what cannot be borrowed, or where there is nobody to borrow from.
    """
    parts = getattr(config, BORROWS, [])
    if not isinstance(parts, list) or any(part not in PARTS for part in parts):
        raise LoadError(
            f"config.json of '{name}': '{BORROWS}' must be a list of {' and '.join(map(repr, PARTS))} (got {parts!r})"
        )
    if parts and views is None:
        raise LoadError(
            f"'{name}' leaves its {' and '.join(parts)} to a target; it is a draft, for a target that lends them"
        )
    if config.get_text_config().tie_word_embeddings and len({*parts}) == 1:
        raise LoadError(f"'{name}' has tied embeddings and borrows {parts[0]} only; borrow both, or none")
    return tuple(dict.fromkeys(parts))


def lent_dtype(views: Views, parts: Sequence[str], wanted: str | None) -> str:
    """Return the dtype of a draft that borrows, which is the target's. Raises ``InvalidRequest`` where another is wanted."""
    dtype = str(_view(views, parts[0]).dtype).removeprefix("torch.")
    if wanted not in (None, dtype):
        rule = f"must be the target's, {dtype}, for a draft that borrows its tensors"
        raise InvalidRequest("dtype", rule, wanted, "leave it out: in another dtype they would be copies")
    return dtype


@contextmanager
def expecting_gaps() -> Iterator[None]:
    """Keep transformers from reporting tensors that are missing on purpose; others that are missing are an error of ours."""
    logger = logging.getLogger("transformers.modeling_utils")
    # A filter and not a level: with a level of its own, this logger also reports which layers no device shares.
    logger.addFilter(_is_error)
    try:
        yield
    finally:
        logger.removeFilter(_is_error)


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def borrow(
    draft: PreTrainedModel, views: Views, parts: Sequence[str], target_ids: Sequence[int] | None, name: str
) -> frozenset[str]:
    """Give a draft the target's tensors, without a copy on the target's device, and return the names that they have in it.

    ``target_ids``: the rows that a reduced head takes, which are the one copy. Raises ``LoadError`` for another width.
    """
    modules: dict[str, Any] = {"embeddings": draft.get_input_embeddings(), "head": draft.get_output_embeddings()}
    names = {id(module): path for path, module in draft.named_modules()}
    for part in parts:
        module, weight = modules[part], _view(views, part)
        if part == "head" and target_ids is not None:
            weight = weight[torch.tensor(target_ids, device=weight.device)]
        if weight.shape[1] != module.weight.shape[1]:
            raise LoadError(
                f"'{name}' borrows {part} of width {module.weight.shape[1]}, the target's have {weight.shape[1]}; use a "
                "draft that was made for this target"
            )
        module.weight = torch.nn.Parameter(weight, requires_grad=False)
    return frozenset(f"{names[id(modules[part])]}.weight" for part in parts)


def _view(views: Views, part: str) -> torch.Tensor:
    return views.embeddings if part == "embeddings" else views.head
