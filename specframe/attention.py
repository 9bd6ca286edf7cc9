"""Scaled dot-product attention that does not expand grouped keys and values.

With grouped heads and a mask, transformers' path repeats K and V for every query head in every layer. This one gives the
same result from the cache's views. So it does for one row in half precision, for which torch's CPU kernel packs the keys of a
group once for each of its heads. Everything else is the library's own function. Knows nothing about rounds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "specframe_sdpa"
_KEY = "_attn_implementation_internal"  # where a configuration keeps the name of its attention
_OWN_ARGUMENTS = frozenset({"position_bias", "softcap"})


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend ``[batch, heads, rows, dim]`` queries to ``[batch, kv_heads, length, dim]`` keys.

    ``attention_mask``: ``[batch, 1, rows, length]``, None for one row that sees all keys.
    """
    num_groups, num_rows = query.shape[1] // key.shape[1], query.shape[2]
    # In float32 one row costs the same either way, and the library's way is plain decoding's of everybody else.
    is_shared = num_groups > 1 and (
        attention_mask is not None
        if num_rows > 1
        else query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16)
    )
    if not is_shared or any(kwargs.get(name) is not None for name in _OWN_ARGUMENTS):
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return output
    if attention_mask is not None and query.device.type == "cpu":
        mixed = scaled_dot_product_attention(query, key, value, attention_mask, dropout, scale=scaling, enable_gqa=True)
    else:
        # Fused kernels take no grouped heads beside a mask: the heads of a group become rows of their shared key head.
        grouped = query.reshape(query.shape[0], key.shape[1], num_groups * num_rows, query.shape[3])
        mask = attention_mask.repeat(1, 1, num_groups, 1) if attention_mask is not None else None
        mixed = scaled_dot_product_attention(grouped, key, value, mask, dropout, scale=scaling)
        mixed = mixed.reshape(query.shape[0], query.shape[1], num_rows, value.shape[3])
    return mixed.transpose(1, 2).contiguous(), None


_locks: WeakValueDictionary[int, threading.Lock] = (
    WeakValueDictionary()
)  # by the id of a configuration that a swap holds
_making = threading.Lock()

AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)


class AttentionSwap:
    """Lets a model use ``attention`` inside a ``with`` block, where it would use transformers' SDPA; else changes nothing.

    The model's configuration is the caller's, so it is put back after every forward; models that share one take turns, as
    two engines on a model do, or a target and the draft of its first layers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        configs = [getattr(module, "config", None) for module in model.modules()]
        found = {id(config): config for config in configs if isinstance(config, PreTrainedConfig)}
        # Their dictionaries: to ask a configuration itself runs its lookups and validators, five times a forward.
        self._configs = [vars(config) for config in found.values()]
        with _making:  # in one order for all, so that nobody waits for each other
            self._locks = [_locks.setdefault(key, threading.Lock()) for key in sorted(found)]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with _all_held(self._locks):
            # One that has the name already was left so by an interrupt.
            swapped = [config for config in self._configs if config[_KEY] in ("sdpa", NAME)]
            try:
                for config in swapped:
                    config[_KEY] = NAME
                yield
            finally:
                for config in swapped:
                    config[_KEY] = "sdpa"


@contextmanager
def _all_held(locks: Sequence[threading.Lock]) -> Iterator[None]:
    # A lock's own `with` cannot be interrupted between taking it and being bound to free it.
    with locks[0]:
        if len(locks) == 1:
            yield
            return
        with _all_held(locks[1:]):
            yield
