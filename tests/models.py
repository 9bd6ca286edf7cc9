"""Tiny random transformers models, and a target that checks every row against a cache-free forward."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.masking_utils import eager_mask

from specframe import Engine, Length, Strategy, TransformersTarget
from specframe.testing import byte_tokenizer
from specframe.testing import random_table as random_table  # the table that most tests use

KINDS = ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "mistral", "gpt2")
SLIDING_KINDS = ("gemma2", "gemma3", "mistral")
PROMPT = tuple(range(5, 20))
CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_CONFIGS = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma": GemmaConfig,
    "gemma2": Gemma2Config,
    "gemma3": Gemma3TextConfig,
    "mistral": MistralConfig,
}


def tiny_config(kind: str = "llama", *, window: int = 8, **options: Any) -> PreTrainedConfig:
    """Return a configuration: vocab 64, hidden 32, 2 layers, 4 heads, 2 KV heads, 64 positions, no special ids."""
    common: dict[str, Any] = {
        "eos_token_id": None,
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "vocab_size": 64,
    }
    if kind == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        return GPT2Config(**{**common, **sizes, **options})
    values: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "head_dim": 8,
    }
    if kind in SLIDING_KINDS:
        values["sliding_window"] = window
    if kind == "gemma3":
        values["layer_types"] = ["sliding_attention", "full_attention"]
    return _CONFIGS[kind](**{**common, **values, **options})


def tiny_model(kind: str = "llama", *, dtype: torch.dtype = torch.float64, window: int = 8, **options: Any) -> Any:
    """Return a new random model of a kind; equal arguments give equal weights."""
    config = tiny_config(kind, window=window, **options)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # The library's eager attention goes through float32 whatever the model's dtype; soft-capped models need eager.
        implementation = FULL_PRECISION if kind == "gemma2" else None
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=implementation).eval()
        for parameter in model.parameters():
            # Norms stay near their start, so that rows depend on the whole context and greedy text varies.
            if parameter.ndim == 1:
                parameter.data.add_(0.1 * torch.randn_like(parameter))
            else:
                parameter.data.normal_(0, 0.3)
    return model


def save_model(folder: Path, **options: Any) -> Path:
    """Save a tiny model with the byte tokenizer, a chat template and two end-of-sequence ids."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    arguments = {"vocab_size": len(tokenizer), "dtype": torch.float32, **ids, **options}
    tiny_model(**arguments).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def full_precision_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    softcap: float | None = None,
    **arguments: Any,
) -> tuple[torch.Tensor, None]:
    """Do what the library's eager attention does, softmax in the model's own dtype."""
    num_groups = query.shape[1] // key.shape[1]
    weights = query @ key.repeat_interleave(num_groups, dim=1).transpose(2, 3) * scaling
    if softcap is not None:
        weights = softcap * torch.tanh(weights / softcap)
    if attention_mask is not None:
        weights = weights + attention_mask
    mixed = weights.softmax(dim=-1) @ value.repeat_interleave(num_groups, dim=1)
    return mixed.transpose(1, 2).contiguous(), None


FULL_PRECISION = "test_full_precision"
AttentionInterface.register(FULL_PRECISION, full_precision_attention)
AttentionMaskInterface.register(FULL_PRECISION, eager_mask)


@cache
def shared_model(kind: str = "llama", *, window: int = 8) -> Any:
    """Return a float64 model that tests share; they may not change it."""
    return tiny_model(kind, window=window)


class CheckedTarget(TransformersTarget):
    """A target that compares every row with a cache-free forward of the ids that its cache stands for.

    ``fed``: how many ids each forward took; ``worst``: the largest difference of a logit so far.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        self.fed: list[int] = []
        self.worst = 0.0

    def forward(self, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        logits = super().forward(ids, num_rows=num_rows)
        self.cache.check(self.cache.ids)
        assert list(ids) == self.cache.ids[len(self.cache.ids) - len(ids) :]
        expected = self.model(input_ids=torch.tensor([self.cache.ids]), use_cache=False).logits[0, -num_rows:]
        self.fed.append(len(ids))
        self.worst = max(self.worst, float((logits - expected).abs().max()))
        return logits


class CountingTarget(TransformersTarget):
    """A target that keeps the ids of every forward in ``fed``."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None, **options: Any) -> None:
        super().__init__(model, tokenizer, **options)
        self.fed: list[tuple[int, ...]] = []

    def forward(self, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        self.fed.append(tuple(ids))
        return super().forward(ids, num_rows=num_rows)


class RecordingTarget(TransformersTarget):
    """A target that keeps the row of every position, the last that was computed, and the rows that its forwards had.

    Rows of rejected ids are overwritten by later forwards, so what is left are those of committed positions.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any = None) -> None:
        super().__init__(model, tokenizer)
        self.read: dict[int, torch.Tensor] = {}
        self.shapes: set[int] = set()

    def forward(self, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        start = len(self.cache.ids) - len(ids)
        logits = super().forward(ids, num_rows=num_rows)
        if num_rows > 1:
            self.shapes.add(len(ids))
            self.read |= {start + index: row.clone() for index, row in enumerate(logits)}
        return logits

    def layers(self) -> list[torch.Tensor]:
        """Return the keys and values of all committed positions."""
        length = self.cache.num_committed
        return [part[:, :, :length].clone() for layer in self.cache.layers for part in (layer.keys, layer.values)]


def engine_on(target: Any, *drafters: Any, length: int = 4, **strategy: Any) -> Engine:
    """Return a debugging engine with drafters ``d0``, ``d1``, ... that propose at most ``length`` tokens a round."""
    named = {f"d{index}": drafter for index, drafter in enumerate(drafters)}
    return Engine(target, named, strategy=Strategy(length=Length(max_tokens=length), **strategy), debug=True)


def library_greedy(model: Any, prompt: Sequence[int], num_tokens: int, **arguments: Any) -> tuple[int, ...]:
    """Return the ids that ``model.generate`` adds to a prompt, greedily."""
    inputs = torch.tensor([list(prompt)])
    output = model.generate(
        inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=num_tokens, do_sample=False, **arguments
    )
    return tuple(output[0, len(prompt) :].tolist())
