"""Speculative decoding for existing ``model.generate`` code, through transformers' ``custom_generate``.

Translates what ``generate`` prepared into a request; refuses by name what specframe cannot honour. Knows transformers'
generation arguments, and nothing about rounds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import logits_process as library
from transformers.generation.configuration_utils import GenerationMode
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specframe.engine import Engine
from specframe.errors import IncompatibleManifest, InvalidRequest
from specframe.sampling import SamplingPolicy
from specframe.strategy import Strategy
from specframe.transformers_target import TransformersTarget

_logger = logging.getLogger("specframe")

# transformers' warpers in the pipeline's order, and the policy field that each stands for.
_WARPERS = (
    (library.TemperatureLogitsWarper, "temperature"),
    (library.TopKLogitsWarper, "top_k"),
    (library.TopPLogitsWarper, "top_p"),
    (library.MinPLogitsWarper, "min_p"),
    (library.TypicalLogitsWarper, "typical_p"),
)
_POLICY_ATTRIBUTES = {"typical_p": "mass"}
# What generate itself prepares for a text prompt; anything else would change the model's rows unseen.
_UNDERSTOOD = frozenset(
    ("attention_mask", "position_ids", "cache", "past_key_values", "logits_to_keep", "use_cache", "cache_position")
)
_WANTED_OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def as_custom_generate(strategy: str | Path | Strategy = "prompt_lookup") -> CustomGenerate:
    """Return a function for ``model.generate(**inputs, custom_generate=...)``.

    ``generate`` gets more arguments: ``spec_tokenizer``, ``spec_streamer`` (a transformers streamer), ``spec_stop`` (stop
    strings, with the tokenizer), ``spec_seed`` (without one, sampling takes a seed from torch's global generator, so that
    ``torch.manual_seed`` repeats it), and a grammar, with the tokenizer: one of ``spec_regex``, ``spec_json_schema``,
    ``spec_choice`` and ``spec_lark``, with ``spec_grammar_tokenization`` and ``spec_grammar_after``; see ``Arguments``.
    """
    return CustomGenerate(strategy)


class CustomGenerate:
    """A decoding method for transformers' ``generate``; keeps one engine, for the model that it last saw."""

    def __init__(self, strategy: str | Path | Strategy) -> None:
        self._strategy = strategy
        self._engine: Engine | None = None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        spec_tokenizer: Any = None,
        spec_streamer: Any = None,
        spec_stop: str | Sequence[str] | None = None,
        spec_seed: int | None = None,
        spec_regex: str | None = None,
        spec_json_schema: Mapping[str, Any] | bool | str | None = None,
        spec_choice: Sequence[str] | None = None,
        spec_lark: str | None = None,
        spec_grammar_tokenization: str = "any",
        spec_grammar_after: str | int | None = None,
        **model_kwargs: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput:
        """Generate after ``input_ids``, ``[1, length]``, and return ``[1, length + generated]``, as ``generate`` does."""
        _refuse(input_ids, generation_config, model_kwargs)
        if spec_stop is not None and spec_tokenizer is None:
            raise InvalidRequest("spec_stop", "needs a tokenizer", spec_stop, "give it as spec_tokenizer=")
        engine = self._engine_for(model, spec_tokenizer)
        if generation_config.do_sample and spec_seed is None:
            spec_seed = int(torch.randint(2**62, ()))
        stream = engine.stream(
            input_ids,
            max_new_tokens=_budget(stopping_criteria, generation_config, input_ids.shape[1]),
            stop=spec_stop,
            stop_ids=_stop_ids(stopping_criteria, engine.target.facts.vocab_size),
            seed=spec_seed if generation_config.do_sample else None,
            policy=_policy(logits_processor, do_sample=bool(generation_config.do_sample)),
            criterion=_criterion(stopping_criteria),
            regex=spec_regex,
            json_schema=spec_json_schema,
            choice=spec_choice,
            lark=spec_lark,
            grammar_tokenization=spec_grammar_tokenization,
            grammar_after=spec_grammar_after,
            keep_prefix=False,  # the caller may change the weights before the next call
        )
        if spec_streamer is not None:
            spec_streamer.put(input_ids.cpu())
        try:
            for piece in stream:
                for token in piece.token_ids if spec_streamer is not None else ():
                    spec_streamer.put(torch.tensor([token]))
        finally:
            stream.close()
        if spec_streamer is not None:
            spec_streamer.end()
        for event in stream.result.events:
            if not event.drafter:  # a drafter's own are logged where they happen
                _logger.warning("%s", event.message)
        new_ids = torch.tensor([stream.result.token_ids], dtype=input_ids.dtype, device=input_ids.device)
        sequences: Any = torch.cat((input_ids, new_ids), dim=-1)
        if generation_config.return_dict_in_generate:
            return GenerateDecoderOnlyOutput(sequences=sequences)
        result: torch.Tensor = sequences
        return result

    def _engine_for(self, model: PreTrainedModel, tokenizer: Any) -> Engine:
        target = self._engine.target if self._engine is not None else None
        if (
            self._engine is None
            or not isinstance(target, TransformersTarget)
            or target.model is not model
            or target.tokenizer is not tokenizer
            or not target.is_current()
        ):
            if self._engine is not None:
                self._engine.close()
            try:
                self._engine = Engine(TransformersTarget(model, tokenizer), strategy=self._strategy)
            except IncompatibleManifest as error:
                if tokenizer is None:
                    error.add_note("generate does not pass the target's tokenizer on; give it as spec_tokenizer=")
                raise
        return self._engine


def _refuse(input_ids: torch.Tensor, config: GenerationConfig, model_kwargs: dict[str, Any]) -> None:
    """Raise ``InvalidRequest`` for what would be silently different."""
    mode = config.get_generation_mode()
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE) and config.num_beams in (None, 1):
        raise InvalidRequest(
            "generation mode", "must be greedy search or sampling", mode.value, "leave its options out"
        )
    for name in ("num_beams", "num_return_sequences"):  # first: generate has repeated the prompt for them
        if getattr(config, name) not in (None, 1):
            raise InvalidRequest(name, "must be 1", getattr(config, name))
    if input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise InvalidRequest(
            "input_ids", "must have batch size 1", list(input_ids.shape), "call generate for each prompt"
        )
    if model_kwargs.get("inputs_embeds") is not None:
        raise InvalidRequest("inputs_embeds", "is not supported", "a tensor", "pass input_ids")
    mask = model_kwargs.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise InvalidRequest("attention_mask", "must be all ones", "padding", "remove the padding; batch size is 1")
    positions = model_kwargs.get("position_ids")
    if positions is not None and positions.flatten().tolist() != list(range(input_ids.shape[1])):
        raise InvalidRequest("position_ids", "must count from 0", "other positions", "leave them out")
    for name in ("cache", "past_key_values"):
        cache = model_kwargs.get(name)
        if cache is not None and cache.get_seq_length() > 0:
            length = f"{cache.get_seq_length()} tokens"
            raise InvalidRequest(name, "must be empty", length, "specframe keeps its own cache")
    for name, value in model_kwargs.items():
        if name not in _UNDERSTOOD and value is not None:
            raise InvalidRequest(name, "is not supported under speculation", type(value).__name__, "leave it out")
    if config.cache_implementation == "quantized":
        raise InvalidRequest(
            "cache_implementation", "must not be quantized", "quantized", "its values cannot be rolled back"
        )
    for name in _WANTED_OUTPUTS:
        if config.return_dict_in_generate and getattr(config, name, False):
            raise InvalidRequest(name, "is not available under speculation", True, "call generate without it")


def _policy(processors: LogitsProcessorList, *, do_sample: bool) -> SamplingPolicy:
    """Return the policy of prepared processors: warpers at the end become fields, the others stay as they are."""
    rest = list(processors)
    fields: dict[str, Any] = {}
    for kind, field in reversed(_WARPERS):
        if rest and type(rest[-1]) is kind and getattr(rest[-1], "min_tokens_to_keep", 1) == 1:
            fields[field] = getattr(rest.pop(), _POLICY_ATTRIBUTES.get(field, field))
    if do_sample:
        fields.setdefault("temperature", 1.0)
    return SamplingPolicy(processors=rest, **fields)


def _budget(criteria: StoppingCriteriaList, config: GenerationConfig, num_prompt: int) -> int:
    lengths = [criterion.max_length for criterion in criteria if isinstance(criterion, MaxLengthCriteria)]
    return max(0, min([int(config.max_length), *lengths]) - num_prompt)


def _stop_ids(criteria: StoppingCriteriaList, vocab_size: int) -> frozenset[int]:
    return frozenset(
        token
        for criterion in criteria
        if isinstance(criterion, EosTokenCriteria)
        for token in criterion.eos_token_id.flatten().tolist()
        if 0 <= token < vocab_size  # an id that is never generated, such as -1, stops nothing
    )


def _criterion(criteria: StoppingCriteriaList) -> Any:
    """Return the remaining criteria as one predicate of the ids so far, ``[1, length]``, or None."""
    rest = [criterion for criterion in criteria if not isinstance(criterion, MaxLengthCriteria | EosTokenCriteria)]
    if not rest:
        return None
    return lambda ids: any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in rest)
