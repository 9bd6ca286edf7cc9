"""The logits processors before the grammar: transformers' own where they exist, ours where they do not.

Knows torch and transformers, and nothing about rounds: each is a pure function of (ids ``[1, length]``, scores
``[1, vocab]``), so that it can be replayed for any row of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import torch
from transformers import LogitsProcessor
from transformers.generation import logits_process as library

from specframe.errors import InvalidRequest

if TYPE_CHECKING:
    from specframe.sampling import SamplingPolicy

P = TypeVar("P", bound=LogitsProcessor)

_PURE_LIBRARY_TYPES = (
    library.MinLengthLogitsProcessor,
    library.MinNewTokensLengthLogitsProcessor,
    library.TemperatureLogitsWarper,
    library.RepetitionPenaltyLogitsProcessor,
    library.TopPLogitsWarper,
    library.TopKLogitsWarper,
    library.MinPLogitsWarper,
    library.TypicalLogitsWarper,
    library.EpsilonLogitsWarper,
    library.EtaLogitsWarper,
    library.NoRepeatNGramLogitsProcessor,
    library.SequenceBiasLogitsProcessor,
    library.NoBadWordsLogitsProcessor,
    library.ForcedBOSTokenLogitsProcessor,
    library.ForcedEOSTokenLogitsProcessor,
    library.ExponentialDecayLengthPenalty,
    library.LogitNormalization,
    library.SuppressTokensAtBeginLogitsProcessor,
    library.SuppressTokensLogitsProcessor,
)


def pure(processor: P) -> P:
    """Declare a processor a pure function of (ids, scores), and return it.

    A pure processor keeps no state between calls, so that rows of a block can be processed in any number. One that keeps
    state and is declared all the same makes the output wrong.
    """
    try:
        processor.specframe_pure = True  # type: ignore[attr-defined]
    except AttributeError:
        raise InvalidRequest(
            "processor", "must take attributes to be declared pure", processor, "wrap it in a class"
        ) from None
    return processor


def is_pure(processor: Any) -> bool:
    """Tell whether a processor was declared pure, or is one of transformers' own that keep no state."""
    return type(processor) in _PURE_LIBRARY_TYPES or bool(getattr(processor, "specframe_pure", False))


def is_replayable(processor: Any) -> bool:
    """Tell whether a processor may run under speculation: it is pure, or offers ``snapshot()`` and ``restore(state)``.

    Rows are processed in order up to the first rejection, so the target's rows call a processor exactly as often, and with
    the same prefixes, as plain decoding does. Only draft draws are extra calls: state is taken before them and put back.
    """
    return is_pure(processor) or (hasattr(processor, "snapshot") and hasattr(processor, "restore"))


def build_processors(
    policy: SamplingPolicy, *, stop_ids: frozenset[int], num_prompt: int, device: str = "cpu"
) -> list[Any]:
    """Return the policy's processors in the pipeline's order; those that are off are left out."""
    processors: list[Any] = []
    if policy.repetition_penalty not in (None, 1):
        processors.append(library.RepetitionPenaltyLogitsProcessor(penalty=float(policy.repetition_penalty or 1)))
    if policy.presence_penalty or policy.frequency_penalty:
        processors.append(CountPenalty(policy.presence_penalty or 0.0, policy.frequency_penalty or 0.0, num_prompt))
    if policy.no_repeat_ngram_size is not None:
        processors.append(library.NoRepeatNGramLogitsProcessor(policy.no_repeat_ngram_size))
    if policy.logit_bias:
        bias: Any = {(token,): float(value) for token, value in policy.logit_bias}
        processors.append(library.SequenceBiasLogitsProcessor(sequence_bias=bias))
    if policy.bad_words_ids:
        words = [list(word) for word in policy.bad_words_ids]
        processors.append(library.NoBadWordsLogitsProcessor(bad_words_ids=words))
    if policy.suppress_tokens:
        processors.append(library.SuppressTokensLogitsProcessor(list(policy.suppress_tokens)))
    if policy.min_new_tokens and stop_ids:
        processors.append(
            library.MinNewTokensLengthLogitsProcessor(
                num_prompt, policy.min_new_tokens, sorted(stop_ids), device=device
            )
        )
    return [*processors, *policy.processors]


class CountPenalty(LogitsProcessor):
    """Subtract ``presence`` from the score of every generated id, and ``frequency`` times its count."""

    def __init__(self, presence: float, frequency: float, num_prompt: int) -> None:
        self.presence, self.frequency, self.num_prompt = presence, frequency, num_prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        counts = torch.bincount(input_ids[0, self.num_prompt :], minlength=scores.shape[-1]).to(scores.dtype)
        return scores - self.frequency * counts - self.presence * (counts > 0).to(scores.dtype)
