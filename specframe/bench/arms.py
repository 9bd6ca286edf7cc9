"""Arms of a comparison: ways to generate the same tokens. Each takes prompt ids and returns the generated ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from transformers import DynamicCache

from specframe.engine import Engine
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.stream import Result
from specframe.transformers_target import TransformersTarget


class Arm(Protocol):
    """A way to generate."""

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        """Return the generated ids."""

    def reset(self) -> None:
        """Forget everything learned from earlier prompts."""


class TransformersArm:
    """transformers' own greedy ``generate`` with further arguments, such as ``prompt_lookup_num_tokens``."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._model, self._arguments = model, arguments

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        inputs = torch.tensor([list(prompt_ids)])
        output = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            **self._arguments,
        )
        return tuple(output[0, inputs.shape[1] :].tolist())

    def reset(self) -> None:
        """Do nothing: ``generate`` keeps nothing."""


class BareLoopArm:
    """Nothing but forwards over the library's own cache and an argmax: what plain decoding through transformers cannot beat."""

    def __init__(self, target: TransformersTarget) -> None:
        self._target = target

    @torch.inference_mode()
    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        cache = DynamicCache(config=self._target.model.config)
        inputs, new_ids = torch.tensor([list(prompt_ids)]), []
        for _ in range(max_new_tokens):
            token = int(self._target.rows(inputs, cache)[0].argmax())
            new_ids.append(token)
            if token in self._target.facts.stop_ids:
                break
            inputs = torch.tensor([[token]])
        return tuple(new_ids)

    def reset(self) -> None:
        """Do nothing: the loop keeps nothing."""


class EngineArm:
    """A specframe engine as an arm. ``last`` is the last result."""

    def __init__(self, target: TransformersTarget, strategy: Strategy, **arguments: Any) -> None:
        self.engine = Engine(target, strategy=strategy)
        self._arguments = arguments
        self.last: Result | None = None

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        result = self.engine.generate(prompt_ids, max_new_tokens=max_new_tokens, **self._arguments)
        assert isinstance(result, Result)
        self.last = result
        return result.token_ids

    def reset(self) -> None:
        """Forget the cached prefix and what the drafters learned."""
        self.engine.reset()


def lookup_strategy(max_tokens: int, **options: Any) -> Strategy:
    """Return a prompt-lookup strategy of at most ``max_tokens`` a round."""
    return Strategy(
        name="prompt_lookup", length=Length(max_tokens=max_tokens), drafters=(DrafterUse("prompt_lookup", options),)
    )
