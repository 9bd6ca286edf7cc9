"""Arms of a comparison: ways to generate the same tokens. Each takes prompt ids and returns the generated ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from specframe.engine import Engine, Result
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.transformers_target import TransformersTarget

Arm = Callable[[Sequence[int], int], tuple[int, ...]]


def transformers_arm(model: Any, **arguments: Any) -> Arm:
    """Return transformers' own greedy ``generate`` with further arguments, such as ``prompt_lookup_num_tokens``."""

    def run(prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        inputs = torch.tensor([list(prompt_ids)])
        output = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **arguments,
        )
        return tuple(output[0, inputs.shape[1] :].tolist())

    return run


class EngineArm:
    """A specframe engine as an arm; forgets everything before each prompt. ``last`` is the last result."""

    def __init__(self, target: TransformersTarget, strategy: Strategy, **arguments: Any) -> None:
        self.engine = Engine(target, strategy=strategy)
        self._arguments = arguments
        self.last: Result | None = None

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        result = self.engine.generate(prompt_ids, max_new_tokens=max_new_tokens, **self._arguments)
        assert isinstance(result, Result)
        self.last = result
        return result.token_ids


def lookup_strategy(max_tokens: int, **options: Any) -> Strategy:
    """Return a prompt-lookup strategy of at most ``max_tokens`` a round."""
    return Strategy(
        name="prompt_lookup", length=Length(max_tokens=max_tokens), drafters=(DrafterUse("prompt_lookup", options),)
    )
