"""Arms of a comparison: ways to generate the same tokens. Each takes prompt ids and returns the generated ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from transformers import DynamicCache

from specframe.engine import Engine
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.stream import Result
from specframe.target import Target
from specframe.transformers_target import TransformersTarget


class Arm(Protocol):
    """A way to generate."""

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        """Return the generated ids."""

    def reset(self) -> None:
        """Forget everything learned from earlier prompts."""


class Outcome(NamedTuple):
    """What an arm generated; ``result``: a specframe engine's own account of it."""

    token_ids: tuple[int, ...]
    result: Result | None = None


class WatchedArm(Arm, Protocol):
    """An arm that tells when tokens are there."""

    def run(
        self, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int | None, on_tokens: Callable[[int], None]
    ) -> Outcome:
        """Generate; ``on_tokens`` is called with how many tokens have come, each time some do. ``seed``: None when greedy."""


class TransformersArm:
    """transformers' own ``generate`` with further arguments, such as ``prompt_lookup_num_tokens``; greedy by default."""

    def __init__(self, model: Any, **arguments: Any) -> None:
        self._model, self._arguments = model, {"do_sample": False, **arguments}

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        return self._generate(prompt_ids, max_new_tokens)

    def run(
        self, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int | None, on_tokens: Callable[[int], None]
    ) -> Outcome:
        """Generate, watched through a streamer."""
        if seed is not None:
            torch.manual_seed(seed)
        return Outcome(self._generate(prompt_ids, max_new_tokens, streamer=_Watcher(on_tokens)))

    def _generate(self, prompt_ids: Sequence[int], max_new_tokens: int, **arguments: Any) -> tuple[int, ...]:
        inputs = torch.tensor([list(prompt_ids)], device=self._model.device)
        output = self._model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=max_new_tokens,
            **self._arguments,
            **arguments,
        )
        return tuple(output[0, inputs.shape[1] :].tolist())

    def reset(self) -> None:
        """Do nothing: ``generate`` keeps nothing."""


class AssistedArm(TransformersArm):
    """transformers' assisted generation; the draft's knobs stand in the assistant's own configuration."""

    def __init__(self, model: Any, assistant: Any, **arguments: Any) -> None:
        super().__init__(model, assistant_model=assistant, **arguments)
        self.assistant = assistant


class _Watcher:
    """A streamer of transformers that counts; the first thing it is given is the prompt."""

    def __init__(self, on_tokens: Callable[[int], None]) -> None:
        self._on_tokens, self._is_prompt = on_tokens, True

    def put(self, ids: torch.Tensor) -> None:
        if not self._is_prompt:
            self._on_tokens(ids.numel())
        self._is_prompt = False

    def end(self) -> None:
        """Do nothing: the return of ``generate`` is the end."""


class BareLoopArm:
    """Nothing but the target's forwards over the library's own cache and an argmax: what plain decoding cannot beat."""

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

    def __init__(self, target: Target, strategy: Strategy, *, keep_entropies: bool = False, **arguments: Any) -> None:
        self.engine = Engine(target, strategy=strategy, keep_entropies=keep_entropies)
        self._arguments = arguments
        self.last: Result | None = None

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        result = self.engine.generate(prompt_ids, max_new_tokens=max_new_tokens, **self._arguments)
        assert isinstance(result, Result)
        self.last = result
        return result.token_ids

    def run(
        self, prompt_ids: Sequence[int], max_new_tokens: int, *, seed: int | None, on_tokens: Callable[[int], None]
    ) -> Outcome:
        """Generate as a stream."""
        arguments = self._arguments if seed is None else {**self._arguments, "seed": seed}
        with self.engine.stream(prompt_ids, max_new_tokens=max_new_tokens, **arguments) as stream:
            for piece in stream:
                on_tokens(len(piece.token_ids))
            return Outcome(stream.result.token_ids, stream.result)

    def reset(self) -> None:
        """Forget the cached prefix and what the drafters learned."""
        self.engine.reset()


def lookup_strategy(max_tokens: int, **options: Any) -> Strategy:
    """Return a prompt-lookup strategy of at most ``max_tokens`` a round."""
    return Strategy(
        name="prompt_lookup", length=Length(max_tokens=max_tokens), drafters=(DrafterUse("prompt_lookup", options),)
    )
