"""From options to a network: a model of its own, one that borrows the target's embeddings and head, or the target's layers.

Knows files and models; nothing about rounds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

import specframe
from specframe import InvalidStrategy, LoadError, TransformersTarget
from specframe_draft_model.network import Network

if TYPE_CHECKING:
    from specframe import TargetFacts, Views
    from specframe_draft_model.options import DraftModelOptions

TARGET_IDS = "target_ids.json"
BORROWS = "specframe_borrows"  # in config.json: which tensors are the target's, 'embeddings' and 'head'


def load_network(options: DraftModelOptions, facts: TargetFacts) -> Network:
    """Return the network that the options name.

    Raises ``LoadError`` for tensors that are missing or do not fit, and ``InvalidStrategy`` where the target lends nothing.
    """
    if options.layers is not None:
        return Network(TransformersTarget(_views(facts, "layers").first_layers(options.layers)))
    assert options.model is not None
    folder = Path(options.model)
    device = options.device or facts.device
    if _borrowed(folder):
        return Network(_load_borrowing(folder, options, facts, device), _target_ids(folder))
    return Network(specframe.load_target(options.model, dtype=options.dtype, device=device), _target_ids(folder))


def _borrowed(folder: Path) -> list[str]:
    file = folder / "config.json"
    try:
        return list(json.loads(file.read_text(encoding="utf-8")).get(BORROWS, ())) if file.is_file() else []
    except (OSError, ValueError, AttributeError) as error:
        raise LoadError(f"config.json of draft '{folder.name}' cannot be read ({error})") from error


def _load_borrowing(folder: Path, options: DraftModelOptions, facts: TargetFacts, device: str) -> TransformersTarget:
    """Load a draft whose folder lacks embeddings and head, and give it the target's."""
    views, names = _views(facts, "embeddings"), _borrowed(folder)
    dtype = options.dtype or facts.dtype
    try:
        config = AutoConfig.from_pretrained(folder)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, config=config, dtype=getattr(torch, dtype), output_loading_info=True
        )
    except Exception as error:  # damaged files, wrong shapes, no such dtype
        raise LoadError(f"draft '{folder.name}' could not be loaded ({type(error).__name__}: {error})") from error
    model, told = loaded
    lent = {"embeddings": model.get_input_embeddings(), "head": model.get_output_embeddings()}
    lacking = {
        f"{name}.weight" for name, module in model.named_modules() if any(module is lent[part] for part in names)
    }
    missing = sorted({*told["missing_keys"]} - lacking)
    if missing:
        raise LoadError(
            f"draft '{folder.name}' lacks {len(missing)} tensors, such as {missing[0]}; bring the whole folder"
        )
    ids = _target_ids(folder)
    for part in names:
        weight = views.embeddings if part == "embeddings" else views.head
        if part == "head" and ids is not None:
            weight = weight[ids.to(weight.device)]  # the one copy: rows that a product can stream
        if weight.shape[1] != lent[part].weight.shape[1]:
            raise LoadError(
                f"draft '{folder.name}' borrows {part} of width {lent[part].weight.shape[1]}, the target's have "
                f"{weight.shape[1]}; use a draft that was made for this target"
            )
        lent[part].weight = torch.nn.Parameter(weight.to(device=device, dtype=model.dtype), requires_grad=False)
    return TransformersTarget(model.to(device).eval())


def _target_ids(folder: Path) -> torch.Tensor | None:
    file = folder / TARGET_IDS
    return torch.tensor(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def _views(facts: TargetFacts, what: str) -> Views:
    if facts.views is None:
        raise InvalidStrategy(
            f"the draft reads the target's {what}, and this target lends none; use a model of its own"
        )
    return facts.views
