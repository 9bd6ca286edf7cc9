"""The transactional KV cache.

Buffers are preallocated, zeroed and grow by doubling: appending writes in place and hands attention a view, rolling back
moves a length, and neither copies the past. Sliding-window layers keep every key and leave the window to the mask, so that
any rollback gives back exact keys. Knows token ids only as what the cache stands for, and nothing about rounds.
Source: the report's "Cache transaction model".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from specframe.errors import CacheError
from specframe.target import GRANULE


class BufferLayer(CacheLayerMixin):
    """One layer's keys and values, ``[1, heads, capacity, head_dim]``, of which the first ``length`` positions count.

    Attention is shown a multiple of ``granule`` positions, and a mask hides those that do not count; they are zero then.
    """

    is_sliding = False  # every key is kept; a window is the mask's business
    is_croppable = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's own
        self.length = 0
        self.reserved = 0
        self.granule = 1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Make buffers like the first states."""
        capacity = max(self.reserved, _round_up(key_states.shape[2]))
        self.device = key_states.device
        self.keys = key_states.new_zeros(*key_states.shape[:2], capacity, key_states.shape[3])
        self.values = value_states.new_zeros(*value_states.shape[:2], capacity, value_states.shape[3])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write new states after the first ``length`` and return views up to their end, or the next ``granule``."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start, end = self.length, self.length + key_states.shape[2]
        assert self.keys is not None
        if end > self.keys.shape[2]:
            self._grow(max(end, self.reserved, 2 * self.keys.shape[2]))
        assert self.values is not None
        self.keys[:, :, start:end] = key_states
        self.values[:, :, start:end] = value_states
        self.length = end
        seen = _round_up(end, self.granule)
        return self.keys[:, :, :seen], self.values[:, :, :seen]

    def cut(self, length: int) -> None:
        """Drop what stands at ``length`` and after."""
        if length >= self.length:
            return
        if self.granule > 1 and self.is_initialized:
            # Attention multiplies what its mask hides by zero, which a NaN would survive.
            assert self.keys is not None
            assert self.values is not None
            self.keys[:, :, length : self.length] = 0
            self.values[:, :, length : self.length] = 0
        self.length = length

    def _grow(self, capacity: int) -> None:
        # The one copy of the past; doubling and reservation keep it off the rounds. Where there is no memory for both
        # buffers, both stay as they are; the keys, which tell the capacity, come last.
        keys, values = (self._grown(part, _round_up(capacity)) for part in (self.keys, self.values))
        self.values, self.keys = values, keys

    def _grown(self, part: torch.Tensor | None, capacity: int) -> torch.Tensor:
        assert part is not None
        grown = part.new_zeros(*part.shape[:2], capacity, part.shape[3])
        grown[:, :, : self.length] = part[:, :, : self.length]
        return grown

    def release(self) -> None:
        """Forget everything and free the buffers."""
        self.length = 0
        self.keys = self.values = None
        self.is_initialized = False

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the key length that a mask for ``query_length`` new positions must cover, and its offset."""
        return _round_up(self.length + query_length, self.granule), 0

    def get_seq_length(self) -> int:
        """Return how many positions count."""
        return self.length

    def get_max_length(self) -> int:
        """Return -1: the layer grows."""
        return -1


class TransactionalCache(Cache):
    """The KV of one sequence: committed ids, then provisional ones.

    ``ids`` are the ids that the layers stand for; the first ``num_committed`` are authoritative. One transaction at a time
    may change it (``begin``); between transactions ``truncate`` cuts it back to a prefix.
    """

    def __init__(self, num_layers: int) -> None:
        self._buffers = [BufferLayer() for _ in range(num_layers)]
        super().__init__(layers=list(self._buffers))
        self.ids: list[int] = []
        self.num_committed = 0
        self._owner: Transaction | None = None

    @property
    def num_provisional(self) -> int:
        """How many ids may still be rolled back."""
        return len(self.ids) - self.num_committed

    def begin(self) -> Transaction:
        """Start a transaction. Raises ``CacheError`` while another is open."""
        if self._owner is not None:
            raise CacheError("the cache already has an open transaction; finalize it first")
        self._owner = Transaction(self)
        return self._owner

    def truncate(self, length: int) -> None:
        """Cut committed ids back to ``length``, between transactions."""
        if self._owner is not None:
            raise CacheError("truncate works between transactions only; inside one use rollback_to")
        self._cut_committed(length)

    def reserve(self, num_tokens: int) -> None:
        """Make the buffers hold ``num_tokens`` positions from their next growth on."""
        for layer in self._buffers:
            layer.reserved = _round_up(num_tokens)

    def pad_to(self, granule: int) -> None:
        """Show attention a multiple of ``granule`` positions from now on; another one than before forgets everything."""
        if granule != self._buffers[0].granule:
            self.release()
        for layer in self._buffers:
            layer.granule = granule

    def release(self) -> None:
        """Forget everything and free the buffers, between transactions."""
        if self._owner is not None:
            raise CacheError("release works between transactions only; finalize the open one first")
        self._forget()

    def abandon(self) -> None:
        """Finalize the open transaction, if there is one, in place of an owner that was interrupted before it could."""
        if self._owner is not None:
            self._owner.finalize()

    def check(self, ids: Sequence[int]) -> None:
        """Raise ``CacheError`` unless the cache stands for ``ids`` and every layer for as many; shared layers hold none."""
        if self.ids != list(ids):
            raise CacheError(f"the cache stands for {len(self.ids)} ids, which are not the {len(ids)} that it should")
        for index, layer in enumerate(self._buffers):
            if layer.is_initialized and layer.length != len(self.ids):
                raise CacheError(
                    f"layer {index} holds {layer.length} positions, the cache stands for {len(self.ids)} ids"
                )

    def is_followed(self) -> bool:
        """Whether every layer that holds anything holds as many positions as there are ids, and any layer does."""
        return {layer.length for layer in self._buffers if layer.is_initialized} == {len(self.ids)}

    def _cut_committed(self, length: int) -> None:
        if not 0 <= length <= self.num_committed:
            raise CacheError(f"the length must be in [0, {self.num_committed}], the committed ids (got {length})")
        self.num_committed = length  # first: if this is interrupted, the rest is provisional
        self._cut(length)

    def _forget(self) -> None:
        self.ids.clear()
        self.num_committed = 0
        for layer in self._buffers:
            layer.release()

    def _cut(self, length: int) -> None:
        if length == len(self.ids):
            return  # most rounds keep all that they fed
        with torch.inference_mode():  # what was made under it may be written under it only
            for layer in self._buffers:
                layer.cut(length)
        del self.ids[length:]  # last: while the layers hold more than is told, there is still something to cut


class Transaction:
    """The right to change a cache, from ``begin`` to ``finalize``. Misuse raises ``CacheError`` and changes nothing."""

    def __init__(self, cache: TransactionalCache) -> None:
        self._cache, self._is_fresh = cache, True

    def cut_to(self, length: int) -> None:
        """Cut committed ids back to a prefix to begin with; not possible any more once something was appended."""
        cache = self._check_owner()
        if not self._is_fresh:
            raise CacheError(
                "cut_to comes before the first append; nothing below the committed length is touched after"
            )
        cache._cut_committed(length)

    def append_provisional(self, ids: Sequence[int]) -> None:
        """Announce the ids whose KV the next forward writes."""
        self._check_owner().ids.extend(ids)
        self._is_fresh = False

    def commit_prefix(self, num_tokens: int) -> None:
        """Make the first ``num_tokens`` provisional ids authoritative."""
        cache = self._check_owner()
        if not 0 <= num_tokens <= cache.num_provisional:
            raise CacheError(
                f"commit_prefix takes 0 to {cache.num_provisional} tokens, the provisional ids (got {num_tokens})"
            )
        cache.num_committed += num_tokens

    def rollback_to(self, length: int) -> None:
        """Drop provisional ids from position ``length`` on; nothing below the committed length is touched."""
        cache = self._check_owner()
        if not cache.num_committed <= length <= len(cache.ids):
            raise CacheError(
                f"rollback_to takes a length in [{cache.num_committed}, {len(cache.ids)}], committed to appended (got {length})"
            )
        cache._cut(length)

    def finalize(self) -> None:
        """Drop what is provisional and give the cache back; a cache that cannot be cut has forgotten everything."""
        cache = self._check_owner()
        try:
            cache._cut(cache.num_committed)
        except BaseException:
            cache._forget()
            raise
        finally:
            cache._owner = None

    def _check_owner(self) -> TransactionalCache:
        if self._cache._owner is not self:
            raise CacheError("this transaction is finalized, or another owns the cache")
        return self._cache


def _round_up(num_tokens: int, granule: int = GRANULE) -> int:
    return -(-num_tokens // granule) * granule
