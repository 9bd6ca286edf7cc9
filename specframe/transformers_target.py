"""The transformers target: any causal language model that ``AutoModelForCausalLM`` loads.

Owns the forward, the cache and their bookkeeping for one model; knows nothing about sampling, drafters or text. The
caller's model, configuration and generation configuration are never changed.
"""

from __future__ import annotations

import copy
import inspect
import operator
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from specframe.attention import AttentionSwap
from specframe.cache import TransactionalCache
from specframe.errors import CacheError, StaleEpoch, TargetError, UnsupportedModel, described
from specframe.kernel import circumstances, grant, row_costs
from specframe.prepack import Prepacked
from specframe.proposal import TargetFacts
from specframe.settings import current_settings, first_change
from specframe.target import GRANULE, SINGLE, Kernel, Ticket, Verification
from specframe.views import Loans, ModelViews

_REVERSIBLE_LAYERS = frozenset({"full_attention", "sliding_attention", "chunked_attention"})
_LENGTH_DEPENDENT_ROPE = frozenset({"dynamic", "longrope"})


class TransformersTarget:
    """A transformers model as a target.

    ``tokenizer`` is needed for text prompts, text output and stop strings. ``prefill_chunk``: how many prompt ids one
    forward takes; ``prepack``: whether linear layers run on packed copies of their weights (``prepack.py``), None for on those
    that another target has packed, as suits a draft of its layers. Raises ``UnsupportedModel`` for a model that cannot be
    decoded exactly, naming the property.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: Any = None, *, prefill_chunk: int = 1024, prepack: bool | None = False
    ) -> None:
        self.model, self.tokenizer, self.prefill_chunk = model, tokenizer, prefill_chunk
        _check_supported(model)
        config = model.config.get_text_config()
        parameters = inspect.signature(model.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"
        self._can_skip_head = "logits_to_keep" in parameters
        self._can_place = "position_ids" in parameters
        self._attention = AttentionSwap(model)
        self._prepacked = Prepacked(model, packs=prepack)
        self._rope = _RopeState(model)
        self.cache = TransactionalCache(config.num_hidden_layers)
        self.loans = Loans()
        self._prompt_row: tuple[tuple[int, ...], torch.Tensor] | None = None
        self._kernels: dict[tuple[Any, ...], Kernel] = {}
        self._row_costs: dict[tuple[Any, ...], tuple[float, ...]] = {}
        self._cache_made_by: tuple[Any, ...] = ()
        self._process_id = os.getpid()
        vocab_size, dtype, device = _shape_of(model)
        self.facts = TargetFacts(
            vocab_size=vocab_size,
            stop_ids=stop_ids_of(model, tokenizer),
            context_limit=context_limit_of(config),
            speculation_limit=speculation_limit_of(config),
            dtype=dtype,
            device=device,
            tokenizer=tokenizer,
        )

    def views(self, names: frozenset[str]) -> ModelViews:
        """Return what a drafter that declared ``names`` may read of the model's weights."""
        return ModelViews(self.model, names, self.loans)

    def tensors(self) -> dict[str, Iterable[torch.Tensor]]:
        """Return the weights, a tied one as often as it is used, packed copies of them, and the cache's buffers."""
        layers: Sequence[Any] = self.cache.layers
        return {
            "weights": self._weights(),
            "prepacked": self._prepacked.tensors,
            "cache": [part for layer in layers for part in (layer.keys, layer.values) if part is not None],
        }

    def _weights(self) -> Iterator[torch.Tensor]:
        # The model's `parameters()` leaves a tied weight out the second time.
        yield from (weight for _, weight in self.model.named_parameters(remove_duplicate=False))
        yield from (buffer for _, buffer in self.model.named_buffers(remove_duplicate=False))

    @property
    def is_prepacked(self) -> bool:
        """Whether linear layers run on packed copies of their weights."""
        return bool(self._prepacked)

    def is_current(self) -> bool:
        """Whether the facts still hold; a caller may have moved, cast or resized the model."""
        facts = (self.facts.vocab_size, self.facts.dtype, self.facts.device)
        return facts == _shape_of(self.model)

    def kernel(self, wanted: str) -> Kernel:
        """Return the kernel contract for a strategy's ``kernel``; measured once for this model, machine and dtype."""
        key = (wanted, *circumstances(self))
        if key not in self._kernels:
            self._kernels[key] = grant(self, wanted)
        return self._kernels[key]

    def row_costs(self) -> tuple[float, ...]:
        """Return what a forward of 1 to 16 rows costs over one of a single row; measured once for model, machine and dtype."""
        key = circumstances(self)
        if key not in self._row_costs:
            self._row_costs[key] = row_costs(self)
        return self._row_costs[key]

    def open(self, request_id: int, *, max_tokens: int, kernel: Kernel = SINGLE) -> TransformersSession:
        """Start a session that may hold ``max_tokens`` tokens; what another kernel cached is forgotten.

        One that is still open was interrupted before it could be closed: it is ended.
        """
        check_evaluating(self.model)
        if not self.is_current():
            raise TargetError(
                "the model was cast, moved or resized after this target was made, whose facts and cache are another model's; "
                "make the target and its engine again"
            )
        self._check_process()
        self._prepacked.refresh()
        self.cache.abandon()
        made_by = (kernel.width, *circumstances(self)) if kernel.width is not None else ()
        if made_by != self._cache_made_by:
            self.reset()
            self._cache_made_by = made_by
        self.cache.pad_to(1 if kernel.width is None else GRANULE)
        limit = self.facts.context_limit
        self.cache.reserve((max_tokens if limit is None else min(max_tokens, limit)) + (kernel.width or 0))
        self._rope.restore()
        return TransformersSession(self, request_id, kernel)

    def _check_process(self) -> None:
        # OpenMP's threads are not there in a forked process, and whoever waits for them waits for ever.
        if os.getpid() != self._process_id and self.facts.device == "cpu" and torch.get_num_threads() > 1:
            raise TargetError(
                "this process was forked after the model was loaded, and torch's threads do not survive a fork; call "
                "torch.set_num_threads(1) here first, or start processes with 'spawn' and load the model in them"
            )

    def reset(self) -> None:
        """Forget the cached prefix and free its memory, and pack written weights again; an open session is ended."""
        self.cache.abandon()
        self.cache.release()
        self._prompt_row = None
        self._prepacked.refresh()

    def forward(self, ids: Sequence[int], *, num_rows: int) -> torch.Tensor:
        """Run the model on ids after the cache and return the logits of the last ``num_rows``, ``[num_rows, vocab]``."""
        return self.run(torch.tensor([ids], device=self.facts.device), self.cache, num_rows)[0, -num_rows:]

    def rows(self, ids: torch.Tensor, cache: Cache) -> torch.Tensor:
        """Run the model on ``[batch, length]`` ids after a cache and return each one's last logits, ``[batch, vocab]``."""
        return self.run(ids.to(self.model.device), cache, 1)[:, -1].cpu()

    def run(self, ids: torch.Tensor, cache: Cache, num_rows: int) -> torch.Tensor:
        """Run the model on ``[batch, length]`` ids after a cache; at least the last ``num_rows`` logits of each come back."""
        arguments: dict[str, Any] = {self._cache_argument: cache, "use_cache": True}
        if self._can_skip_head:
            arguments["logits_to_keep"] = num_rows
        start, limit = cache.get_seq_length(), self.facts.context_limit
        if limit is not None and start + ids.shape[1] > limit and self._can_place:
            # Padding rows, which nobody reads; a table of positions has no entry for theirs.
            arguments["position_ids"] = torch.arange(start, start + ids.shape[1], device=ids.device).clamp(
                max=limit - 1
            )[None]
        with self._attention(), self._prepacked():
            logits: torch.Tensor = self.model(input_ids=ids, **arguments).logits
        return logits


def _shape_of(model: PreTrainedModel) -> tuple[int, str, str]:
    vocab_size = model.get_output_embeddings().weight.shape[0]
    return int(vocab_size), str(model.dtype).removeprefix("torch."), str(model.device)


class _RopeState:
    """The frequencies of length-dependent RoPE as they were loaded; long requests change them for those after."""

    def __init__(self, model: PreTrainedModel) -> None:
        modules = [module for module in model.modules() if _is_length_dependent(module)]
        self._loaded = [
            (module, name, value.clone() if isinstance(value, torch.Tensor) else value)
            for module in modules
            for name, value in (*module.named_buffers(recurse=False), *vars(module).items())
            if name.endswith(("inv_freq", "max_seq_len_cached"))
        ]

    def restore(self) -> None:
        """Put the loaded frequencies back."""
        for module, name, value in self._loaded:
            setattr(module, name, value.clone() if isinstance(value, torch.Tensor) else value)


class TransformersSession:
    """One generation on a transformers target."""

    def __init__(self, target: TransformersTarget, request_id: int, kernel: Kernel) -> None:
        self._target, self._request_id, self._kernel = target, request_id, kernel
        self._cache = target.cache
        self._transaction = self._cache.begin()
        self._settings = current_settings()
        self._note = ""
        self.epoch = 0
        target.loans.begin()

    @property
    def num_committed(self) -> int:
        """How many authoritative ids the cache stands for."""
        return self._cache.num_committed

    def cancel(self) -> None:
        """Make every ticket of the current epoch stale."""
        self.epoch += 1

    @torch.inference_mode()
    def prefill(self, ticket: Ticket, prompt_ids: Sequence[int]) -> Verification:
        """Feed the part of the prompt that is not cached and return the row that predicts the first token."""
        self._check(ticket)
        self._check_weights(ticket)
        prompt, target = tuple(prompt_ids), self._target
        num_shared = _shared_length(self._cache.ids[: self._cache.num_committed], prompt)
        known = target._prompt_row
        if num_shared == len(prompt) and known is not None and known[0] == prompt:
            self._transaction.cut_to(num_shared)
            return Verification(known[1].clone(), num_forwards=0)
        chunk_size = target.prefill_chunk if self._kernel.width is None else GRANULE
        limit = target.facts.speculation_limit
        if limit is not None and max(len(prompt), self._cache.num_committed) > limit:
            num_shared, chunk_size = 0, len(prompt)  # keys of calls of different lengths do not fit together
        self._transaction.cut_to(min(num_shared, len(prompt) - 1))  # the last id is fed again: its row is read
        num_forwards = 0
        # Rows that are read come from one kernel: in blocks, the last id is fed as the first pending one.
        num_unread = 0 if self._kernel.width is None else len(prompt) - 1
        while (start := self._cache.num_committed) < len(prompt):
            if start < num_unread:
                chunk = prompt[start : min(start + chunk_size, num_unread)]
                logits = self._feed(ticket, chunk, num_rows=0, shape=GRANULE)
            else:
                chunk = prompt[start : start + chunk_size]
                logits = self._feed(ticket, chunk, num_rows=1, shape=self._kernel.width)
            self._transaction.commit_prefix(len(chunk))
            num_forwards += 1
        self._check_cached()
        target._prompt_row = (prompt, logits.clone())
        return Verification(logits, num_forwards=num_forwards)

    @torch.inference_mode()
    def verify_linear(
        self, ticket: Ticket, pending: int, proposal: Sequence[int], *, num_skipped: int = 0
    ) -> Verification:
        """Feed the pending id and the proposal; row i predicts proposal i, the last row the extra token."""
        self._check(ticket)
        self._check_weights(ticket)
        if self._cache.num_provisional:
            raise CacheError(f"{self._cache.num_provisional} ids are still provisional; commit before the next call")
        ids = (pending, *proposal)
        self._kernel.check(self.num_committed, len(ids))
        self._watch_settings()
        logits = self._feed(ticket, ids, num_rows=len(ids) - num_skipped, shape=self._kernel.width)
        return Verification(logits, note=self._note)

    def commit(self, ticket: Ticket, num_tokens: int) -> None:
        """Commit the first ``num_tokens`` of what was fed and roll back the rest."""
        self._check(ticket)
        self._transaction.commit_prefix(num_tokens)
        self._transaction.rollback_to(self._cache.num_committed)

    def check(self, ids: Sequence[int]) -> None:
        """Raise ``CacheError`` unless every layer holds exactly these ids."""
        self._cache.check(ids)

    def close(self) -> None:
        """Roll back what is provisional and give the cache back; if that fails, the cache has forgotten everything."""
        self.epoch += 1
        self._target.loans.written()  # noted before somebody may write who is allowed to
        self._transaction.finalize()
        if self._note:  # the cache is of two kinds
            self._target.reset()

    def _feed(self, ticket: Ticket, ids: Sequence[int], *, num_rows: int, shape: int | None) -> torch.Tensor:
        """Feed ids and return the rows after the last ``num_rows`` of them.

        ``shape``: the rows that the forward has, and the head if any is read; those that are missing are padding, rolled
        back at once.
        """
        num_padding = 0 if shape is None else shape - len(ids)
        padded = [*ids, *[ids[-1]] * num_padding]
        self._transaction.append_provisional(padded)
        try:
            logits = self._target.forward(padded, num_rows=(shape or num_rows) if num_rows else 1)
        except Exception as error:
            self._transaction.rollback_to(self._cache.num_committed)
            cause = described(error)
            raise TargetError(f"the target's forward failed ({cause})", round_id=ticket.round_id) from error
        if num_padding:
            self._transaction.rollback_to(len(self._cache.ids) - num_padding)
        if logits.shape[0] == num_rows:
            return logits
        end = logits.shape[0] - num_padding
        return logits[end - num_rows : end]

    def _watch_settings(self) -> None:
        # The reader of a stream may set them between two rounds, and which code torch then runs is another question.
        if self._kernel.width is not None and not self._note and (change := first_change(self._settings)) is not None:
            self._note = f"torch's {change}, was set in the middle of a generation under kernel '{self._kernel}'"

    def _check_cached(self) -> None:
        if not self._cache.is_followed():
            raise UnsupportedModel(
                f"{type(self._target.model).__name__} does not keep in its cache one position for each id that it is given, so "
                "that nothing can be rolled back; such models are not supported yet"
            )

    def _check_weights(self, ticket: Ticket) -> None:
        written = self._target.loans.written()
        if written is not None:
            raise TargetError(
                f"a drafter wrote into the target's {written}, which it may only read, so that this is another model now; "
                "leave that drafter out, and load the model again",
                round_id=ticket.round_id,
            )

    def _check(self, ticket: Ticket) -> None:
        if ticket.request_id != self._request_id or ticket.epoch != self.epoch:
            raise StaleEpoch(
                f"call of request {ticket.request_id}, epoch {ticket.epoch}, on a session of request {self._request_id}, "
                f"epoch {self.epoch}; it was cancelled or replaced"
            )


def check_type(kind: type[PreTrainedModel], config: PreTrainedConfig) -> None:
    """Raise ``UnsupportedModel`` for a model class that, with this configuration, cannot be decoded exactly."""
    name = kind.__name__
    text_config = config.get_text_config()
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} is an encoder-decoder model; specframe decodes causal (decoder-only) models")
    is_causal = name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or kind.can_generate()
    if not is_causal:
        raise UnsupportedModel(f"{name} is not a causal language model; load it with AutoModelForCausalLM")
    if getattr(text_config, "is_decoder", None) is False and _looks_ahead(kind, config):
        raise UnsupportedModel(f"{name} reads what comes after a token too: 'is_decoder' is false in its configuration")
    layer_types = set(getattr(text_config, "layer_types", None) or ())
    if getattr(kind, "_is_stateful", False) or not layer_types <= _REVERSIBLE_LAYERS:
        kinds = ", ".join(sorted(layer_types - _REVERSIBLE_LAYERS)) or "recurrent layers"
        raise UnsupportedModel(
            f"{name} keeps state that cannot be rolled back ({kinds}); such models are not supported yet"
        )


def _looks_ahead(kind: type[PreTrainedModel], config: PreTrainedConfig) -> bool:
    """Whether attention is not causal; GPT-NeoX has ``is_decoder`` in its configuration, false, and never reads it."""
    with torch.device("meta"):  # the structure only
        modules = kind(copy.deepcopy(config)).modules()
    return any(getattr(module, name, None) is False for module in modules for name in ("is_causal", "is_decoder"))


def _check_supported(model: PreTrainedModel) -> None:
    check_type(type(model), model.config)
    name = type(model).__name__
    if model.get_output_embeddings() is None:
        raise UnsupportedModel(f"{name} is not a causal language model; load it with AutoModelForCausalLM")
    check_evaluating(model)


def check_evaluating(model: PreTrainedModel) -> None:
    """Raise ``UnsupportedModel`` for a model in training mode."""
    if model.training:
        raise UnsupportedModel(
            f"{type(model).__name__} is in training mode, where dropout makes its output random; call model.eval() first"
        )


def stop_ids_of(model: PreTrainedModel, tokenizer: Any) -> frozenset[int]:
    """Return the end-of-sequence ids from the first place that has any, in the order in which ``generate`` looks."""
    for source in (getattr(model, "generation_config", None), model.config.get_text_config(), tokenizer):
        value = getattr(source, "eos_token_id", None)
        if value is not None:
            return _as_ids(value)
    return frozenset()


def _as_ids(value: Any) -> frozenset[int]:
    """Return ids from what ``generate`` takes for them: an id, several, or a tensor of one or several."""
    ids = value.tolist() if isinstance(value, torch.Tensor) else value
    try:
        return frozenset(map(operator.index, ids if isinstance(ids, Iterable) else (ids,)))
    except TypeError:
        raise UnsupportedModel(f"the model's 'eos_token_id' must be an id or a list of ids (got {value!r})") from None


def context_limit_of(config: Any) -> int | None:
    """Return how many tokens the model takes; dynamic RoPE stretches the length that it was trained on."""
    limit = getattr(config, "max_position_embeddings", None)
    factors = [rope["factor"] for rope in _ropes(config) if rope.get("rope_type") == "dynamic"]
    return int(limit * min(factors)) if limit is not None and factors else limit


def speculation_limit_of(config: Any) -> int | None:
    """Return the position past which rows depend on the length of the call, or None."""
    ropes = [rope for rope in _ropes(config) if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE]
    lengths = [rope.get("original_max_position_embeddings") or config.max_position_embeddings for rope in ropes]
    return min(map(int, lengths), default=None)


def _is_length_dependent(module: torch.nn.Module) -> bool:
    rope_type = getattr(module, "rope_type", None)
    kinds = rope_type.values() if isinstance(rope_type, dict) else (rope_type,)
    return any(kind in _LENGTH_DEPENDENT_ROPE for kind in kinds)


def _ropes(config: Any) -> list[dict[str, Any]]:
    """Return the RoPE parameters, of every layer type where they differ by type."""
    rope = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return nested or [rope]


def _shared_length(cached: Sequence[int], prompt: Sequence[int]) -> int:
    length = min(len(cached), len(prompt))
    return next((index for index in range(length) if cached[index] != prompt[index]), length)
