"""A draft's shape: some of the target's layers, a head of the ids that matter, and what the folder of a draft holds.

Knows models and files; nothing about how it is trained.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedConfig, PreTrainedModel

from specframe.borrowing import PARTS
from specframe.errors import InvalidRequest, UnsupportedModel, described
from specframe.layout import BORROWS, OUTPUT_MAP, RECEIPT
from specframe.loading import load_draft
from specframe.train.corpus import Shard
from specframe.transformers_target import TransformersTarget

_WEIGHTS = "model.safetensors"
_ADDS = (".o_proj", ".down_proj")  # a layer's products whose results are added to what passes through it
# Norms behind them: what is next to nothing before one is not so behind it.
_RESCALES = ("post_feedforward_layernorm", "post_mlp_layernorm")
_NOT_PER_LAYER = frozenset({"architectures", "bos_token_id", "eos_token_id", "pad_token_id"})


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


def build_draft(target: PreTrainedModel, num_layers: int, target_ids: Sequence[int]) -> PreTrainedModel:
    """Return a draft in float32 that begins as the target's first layers, with its embeddings and these rows of its head.

    The first layers say more by themselves than any others. Raises ``UnsupportedModel`` for a target that cannot be cut so.
    """
    if target.get_output_embeddings().bias is not None:
        raise UnsupportedModel(
            f"the head of {type(target).__name__} has a bias; drafts of such a target are not built yet"
        )
    draft: PreTrainedModel = AutoModelForCausalLM.from_config(
        _cut_config(target.config, num_layers, len(target_ids)), dtype=torch.float32
    )
    lend(draft, target, target_ids)
    tensors = target.state_dict()
    own = own_parameters(draft)
    missing = sorted(name for name, parameter in own if name not in tensors or tensors[name].shape != parameter.shape)
    if missing:
        raise UnsupportedModel(
            f"{type(target).__name__} is no plain stack of layers: with {num_layers} of them it has another {missing[0]}"
        )
    with torch.no_grad():
        for name, parameter in own:
            parameter.copy_(tensors[name])
    return draft


def go_on_from(folder: Path, target: TransformersTarget, num_layers: int) -> tuple[PreTrainedModel, list[int]]:
    """Return a draft of a float32 target that begins as another one, and the target ids of its columns.

    Layers that the other one lacks are the target's, but add nothing to what passes through them: the draft says at first
    what the other one says. Raises ``InvalidRequest`` for a draft of another make, or that does not borrow the target's
    embeddings and head; ``LoadError`` for one that was made for another target; ``UnsupportedModel`` where layers cannot be
    added.
    """
    known = load_draft(folder, views=target.views(frozenset(PARTS)))
    draft, ids = known.runner.model, [*(known.target_ids or range(target.facts.vocab_size))]
    if {*getattr(draft.config, BORROWS, [])} != {*PARTS} or min(ids) < 0:
        rule = "must be a draft that borrows the target's embeddings and head, and has an id for every column"
        raise InvalidRequest("start", rule, folder.name)
    return with_more_layers(draft, num_layers, target.model, ids), ids


def with_more_layers(
    draft: PreTrainedModel, num_layers: int, target: PreTrainedModel, target_ids: Sequence[int]
) -> PreTrainedModel:
    """Return a draft with as many layers, the further ones silent: it says to the digit what the given one says.

    Raises as ``go_on_from`` does.
    """
    num_known = draft.config.get_text_config().num_hidden_layers
    if num_layers == num_known:
        return draft
    grown = build_draft(target, num_layers, target_ids)
    known, own = dict(own_parameters(draft)), dict(own_parameters(grown))
    if any(name not in own or own[name].shape != parameter.shape for name, parameter in known.items()):
        raise InvalidRequest("start", "must be made of layers such as the target's", type(draft).__name__)
    with torch.no_grad():
        for name, parameter in own.items():
            if name in known:
                parameter.copy_(known[name])
            elif name.rpartition(".")[0].endswith(_ADDS):
                parameter.zero_()
        ids = torch.tensor([list(target_ids)[:8]])
        is_silent = torch.equal(*(each.eval()(input_ids=ids).logits for each in (draft, grown)))
    if not is_silent or any(name.rpartition(".")[2] in _RESCALES for name, _ in grown.named_modules()):
        raise UnsupportedModel(
            f"layers of {type(target).__name__} cannot be added to a draft: they cannot be kept from changing at once what "
            f"passes through them; give --layers {num_known}, as many as the draft has"
        )
    return grown


def _cut_config(config: PreTrainedConfig, num_layers: int, num_columns: int) -> PreTrainedConfig:
    """Return the configuration of the first layers and a head of so many columns.

    What is listed for every layer is cut. Special ids without a row of their own would be taken for rows that are not there;
    they stand in the generation configuration.
    """
    config = copy.deepcopy(config)
    text = config.get_text_config()
    values = vars(text)
    num_target = text.num_hidden_layers
    per_layer = {
        name: value[:num_layers]
        for name, value in values.items()
        if isinstance(value, list) and len(value) == num_target and name not in _NOT_PER_LAYER
    }
    text.num_hidden_layers, text.vocab_size, text.tie_word_embeddings = num_layers, num_columns, False
    for name, value in per_layer.items():
        setattr(text, name, value)
    for name, value in list(values.items()):
        ids = value if isinstance(value, list) else [value]
        if name.endswith("_token_id") and any(token is not None and not 0 <= token < num_columns for token in ids):
            setattr(text, name, None)
    return config


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
    draft: PreTrainedModel,
    target_ids: Sequence[int],
    target: TransformersTarget,
    folder: Path,
    dtype: torch.dtype,
    *,
    making: Path,
) -> None:
    """Write a draft's folder: its own tensors, the map of its columns, and the target's tokenizer and special ids.

    All is written in ``making`` first and then moved, the weights last: a folder that has any holds everything they need.
    Raises ``OSError``.
    """
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    (making / OUTPUT_MAP).write_text(json.dumps(list(target_ids)), encoding="utf-8")
    config = copy.deepcopy(draft.config)
    config.dtype = dtype
    setattr(config, BORROWS, ["embeddings", "head"])
    config.architectures = [type(draft).__name__]
    config.save_pretrained(making)
    _special_ids(target).save_pretrained(making)
    try:
        target.tokenizer.save_pretrained(making)
        _strip_white_space(making / "tokenizer.json")
    except Exception as error:  # its files are written by another library, with errors of its own
        raise OSError(f"the tokenizer could not be written ({described(error)})") from error
    tensors = {name: parameter.detach().to(dtype).contiguous() for name, parameter in own_parameters(draft)}
    (making / _WEIGHTS).write_bytes(safetensors.torch.save(tensors, metadata={"format": "pt"}))
    for name in (_WEIGHTS, RECEIPT):  # of an earlier draft
        (folder / name).unlink(missing_ok=True)
    for path in sorted(making.iterdir(), key=lambda path: path.name == _WEIGHTS):
        if (folder / path.name).is_dir():
            shutil.rmtree(folder / path.name)
        path.replace(folder / path.name)
    making.rmdir()


def _strip_white_space(file: Path) -> None:
    """Write a JSON file anew without it, which is more than half of the demo's tokenizer."""
    if file.is_file():
        content = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _special_ids(target: TransformersTarget) -> GenerationConfig:
    """Return what ends and begins the target's texts, and nothing about how it draws."""
    places = (target.model.generation_config, target.model.config.get_text_config(), target.tokenizer)
    begin = next((found for place in places if (found := getattr(place, "bos_token_id", None)) is not None), None)
    return GenerationConfig(bos_token_id=begin, eos_token_id=sorted(target.facts.stop_ids) or None)
