"""A draft's shape: some of the target's layers, a head of the ids that matter, and what the folder of a draft holds.

Knows models and files; nothing about how it is trained.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from specframe.borrowing import BORROWS
from specframe.errors import InvalidRequest, UnsupportedModel
from specframe.manifest.collector import OUTPUT_MAP
from specframe.train.corpus import Shard


def choose_layers(num_target: int, num_draft: int) -> list[int]:
    """Return which of the target's layers a draft begins with: the first, which say more by themselves than any others."""
    if not 1 <= num_draft <= num_target:
        raise InvalidRequest("layers", f"must be 1 to {num_target}, the target's", num_draft)
    return [*range(num_draft)]


def choose_ids(shards: Iterable[Shard], num_columns: int, vocab_size: int, stop_ids: frozenset[int]) -> list[int]:
    """Return the target ids of a reduced head, sorted: stop ids, and those that answers hold most often."""
    if num_columns >= vocab_size:
        return list(range(vocab_size))
    counts: Counter[int] = Counter()
    for shard in shards:
        counts.update(shard.ids[shard.is_answer].tolist())
    frequent = [token for token, _ in counts.most_common() if token not in stop_ids]
    rest = (token for token in range(vocab_size) if token not in counts and token not in stop_ids)
    return sorted([*stop_ids, *frequent, *rest][:num_columns])


def build_draft(target: PreTrainedModel, layers: Sequence[int], target_ids: Sequence[int]) -> PreTrainedModel:
    """Return a draft in float32 that begins with the target's layers, and has its embeddings and these rows of its head."""
    config = copy.deepcopy(target.config)
    text = config.get_text_config()
    text.num_hidden_layers, text.vocab_size, text.tie_word_embeddings = len(layers), len(target_ids), False
    if getattr(text, "layer_types", None):
        text.layer_types = [text.layer_types[layer] for layer in layers]
    if target.get_output_embeddings().bias is not None:
        raise UnsupportedModel(
            f"the head of {type(target).__name__} has a bias; drafts of such a target are not built yet"
        )
    draft: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    lend(draft, target, target_ids)
    renamed = {}
    for name, tensor in target.state_dict().items():
        head, mark, tail = name.partition(".layers.")
        if not mark:
            renamed[name] = tensor
            continue
        index, _, rest = tail.partition(".")
        for place, layer in enumerate(layers):
            if int(index) == layer:
                renamed[f"{head}.layers.{place}.{rest}"] = tensor
    own = {name for name, _ in own_parameters(draft)}
    missing = sorted(own - renamed.keys())
    if missing:
        raise UnsupportedModel(f"{type(target).__name__} is no plain stack of layers: it has no {missing[0]}")
    with torch.no_grad():
        for name, parameter in own_parameters(draft):
            parameter.copy_(renamed[name])
    return draft


def lend(draft: PreTrainedModel, target: PreTrainedModel, target_ids: Sequence[int]) -> None:
    """Give a draft the target's embeddings and the rows of its head, frozen."""
    embeddings: Any = target.get_input_embeddings()
    head: Any = target.get_output_embeddings()
    into: Any = draft.get_input_embeddings()
    out: Any = draft.get_output_embeddings()
    into.weight = torch.nn.Parameter(embeddings.weight.detach().float(), requires_grad=False)
    out.weight = torch.nn.Parameter(head.weight.detach()[torch.tensor(target_ids)].float(), requires_grad=False)


def own_parameters(draft: PreTrainedModel) -> list[tuple[str, torch.nn.Parameter]]:
    """Return the parameters that are a draft's own, by name: all that are not borrowed."""
    borrowed = {id(draft.get_input_embeddings().weight), id(draft.get_output_embeddings().weight)}
    return [(name, parameter) for name, parameter in draft.named_parameters() if id(parameter) not in borrowed]


@torch.no_grad()
def round_to(draft: PreTrainedModel, dtype: torch.dtype) -> None:
    """Round a draft's own parameters to a dtype in place, so that what is measured is what is written."""
    for _, parameter in own_parameters(draft):
        parameter.copy_(parameter.to(dtype))


def save_draft(
    draft: PreTrainedModel, target_ids: Sequence[int], tokenizer: Any, folder: Path, dtype: torch.dtype
) -> None:
    """Write a draft's folder: its own tensors, the map of its columns, and the target's tokenizer."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = copy.deepcopy(draft.config)
    config.dtype = dtype
    setattr(config, BORROWS, ["embeddings", "head"])
    config.architectures = [type(draft).__name__]
    config.save_pretrained(folder)
    if draft.generation_config is not None:
        draft.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    tensors = {name: parameter.detach().to(dtype).contiguous() for name, parameter in own_parameters(draft)}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / OUTPUT_MAP).write_text(json.dumps(list(target_ids)), encoding="utf-8")
