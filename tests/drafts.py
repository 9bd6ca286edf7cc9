"""Draft models for tests of the draft-model drafter: on tiny models, on tables of rows, and in folders that borrow."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from models import PROMPT, tiny_model
from safetensors.torch import load_file, save_file

import specframe
from specframe import DrafterUse, Strategy, TransformersTarget
from specframe.cache import TransactionalCache
from specframe.proposal import DraftRequest, TargetFacts
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel
from specframe_draft_model.network import Network


def network(model: Any, **options: Any) -> Network:
    return Network(TransformersTarget(model), **options)


def drafter(model: Any = None, *, target_ids: torch.Tensor | None = None, **options: Any) -> DraftModel:
    """Return a drafter on another tiny model than the target's."""
    model = model if model is not None else other_model()
    return DraftModel(network(model, target_ids=target_ids), DraftModelOptions(model="unused", **options))


def other_model(**options: Any) -> Any:
    model = tiny_model(**{"num_hidden_layers": 1, "dtype": torch.float32, **options})
    model.get_input_embeddings().weight.data.mul_(0.7)
    return model


def near_model(**options: Any) -> Any:
    """Return a copy of the target with a little noise: most proposals are right, some are not."""
    model = tiny_model(**options)
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    return model


def session_of(made: DraftModel, vocab_size: int = 64) -> Any:
    request = DraftRequest(PROMPT, TargetFacts(vocab_size), specframe.SamplingPolicy(), frozenset())
    return made.open(request)


class TableRunner:
    """What a network runs, with rows from a table instead of a forward."""

    prefill_chunk = 1024
    model = SimpleNamespace(get_input_embeddings=lambda: SimpleNamespace(weight=torch.empty(1 << 20, 0)))

    def __init__(self, row: Callable[[tuple[int, ...]], Sequence[float]]) -> None:
        self.cache = TransactionalCache(0)
        self.facts = SimpleNamespace(context_limit=None)
        self._row = row

    def forward(self, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        return torch.tensor([self._row(tuple(self.cache.ids))], dtype=torch.float64)

    def reset(self) -> None:
        self.cache.release()


def using(model: Any, **options: Any) -> Strategy:
    return Strategy(drafters=(DrafterUse("draft_model", {"model": str(model), **options}),))


def drop(*names: str) -> Callable[[Path], None]:
    """Return what drops tensors of a model's folder."""

    def change(folder: Path) -> None:
        file = folder / "model.safetensors"
        tensors = {key: value.clone() for key, value in load_file(file).items() if key not in names}
        save_file(tensors, file, metadata={"format": "pt"})

    return change


def reshape(folder: Path) -> None:
    """Give a norm another width."""
    file = folder / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    tensors["model.norm.weight"] = torch.ones(7)
    save_file(tensors, file, metadata={"format": "pt"})


def reduce_head(folder: Path, target_ids: Sequence[int]) -> None:
    """Leave of a draft's head the rows of ``target_ids``; -1 is any row. Its configuration tells of its embeddings still."""
    file = folder / "model.safetensors"
    tensors = {key: value.clone() for key, value in load_file(file).items()}
    tensors["lm_head.weight"] = tensors["lm_head.weight"][torch.tensor(target_ids)].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    (folder / "target_ids.json").write_text(json.dumps(list(target_ids)))


def let_borrow(folder: Path, target_ids: Sequence[int] | None = None, parts: Any = ("embeddings", "head")) -> None:
    """Make a draft's folder leave tensors to its target, and its head reduced to ``target_ids``."""
    names = {"embeddings": "model.embed_tokens.weight", "head": "lm_head.weight"}
    drop(*(names[part] for part in parts if part in names))(folder)
    config = json.loads((folder / "config.json").read_text())
    config["specframe_borrows"] = list(parts) if isinstance(parts, tuple) else parts
    if target_ids is not None:
        config["vocab_size"] = len(target_ids)
        (folder / "target_ids.json").write_text(json.dumps(list(target_ids)))
    (folder / "config.json").write_text(json.dumps(config))
