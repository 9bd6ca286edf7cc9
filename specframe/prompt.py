"""From what a caller passes as a prompt to token ids, checked before anything runs."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from specframe.errors import InvalidRequest, TargetError, described
from specframe.proposal import TargetFacts

if TYPE_CHECKING:
    import torch

Prompt: TypeAlias = "str | Sequence[int] | Sequence[Mapping[str, str]] | torch.Tensor"


def encode(prompt: Any, facts: TargetFacts) -> tuple[int, ...]:
    """Return the ids of a raw text, of chat messages (rendered by the model's template), or of ids.

    Ids may be a sequence of integers or a tensor ``[length]`` or ``[1, length]``. Raises ``InvalidRequest``, and
    ``TargetError`` where the tokenizer fails.
    """
    ids = _to_ids(prompt, facts)
    if not ids:
        raise InvalidRequest("prompt", "must hold at least one token", prompt if isinstance(prompt, str) else [])
    for position, token in enumerate(ids):
        if not 0 <= token < facts.vocab_size:
            raise InvalidRequest(
                "prompt", f"must hold ids in [0, {facts.vocab_size})", token, f"see position {position}"
            )
    if facts.context_limit is not None and len(ids) > facts.context_limit:
        rule = f"must not be longer than the model's context of {facts.context_limit} tokens"
        raise InvalidRequest("prompt", rule, len(ids), "shorten it")
    return ids


def _to_ids(prompt: Any, facts: TargetFacts) -> tuple[int, ...]:
    if isinstance(prompt, str):
        return _tokenize(_tokenizer(facts), prompt)
    if hasattr(prompt, "tolist"):  # a tensor or an array
        prompt = prompt.tolist()
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
        raise InvalidRequest("prompt", "must be a text, token ids or chat messages", _brief(prompt))
    if prompt and isinstance(prompt[0], Mapping):
        return _render(prompt, facts)
    if prompt and isinstance(prompt[0], Sequence) and not isinstance(prompt[0], str):
        if len(prompt) > 1:
            raise InvalidRequest(
                "prompt", "must be one sequence", f"a batch of {len(prompt)}", "call generate for each"
            )
        prompt = prompt[0]
    for position, token in enumerate(prompt):
        if isinstance(token, bool) or not isinstance(token, numbers.Integral):
            hint = f"see position {position} of {len(prompt)}"
            raise InvalidRequest("prompt", "as ids must hold integers", _brief(token), hint)
    return tuple(map(int, prompt))


def _render(messages: Sequence[Any], facts: TargetFacts) -> tuple[int, ...]:
    tokenizer = _tokenizer(facts)
    if not getattr(tokenizer, "chat_template", None):
        raise InvalidRequest(
            "prompt", "as chat messages needs a tokenizer with a chat template", "none", "pass a text or ids"
        )
    if not all(isinstance(message, Mapping) and {"role", "content"} <= message.keys() for message in messages):
        raise InvalidRequest("prompt", "as chat messages must hold 'role' and 'content' in each", _brief(messages))
    try:
        rendered = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    except Exception as error:  # a template is a program of the model's author
        raise InvalidRequest("prompt", "must fit the model's chat template", described(error)) from error
    return _tokenize(tokenizer, rendered, add_special_tokens=False)


def _tokenize(tokenizer: Any, text: str, **options: bool) -> tuple[int, ...]:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        rule = "must be valid Unicode text"
        raise InvalidRequest(
            "prompt", rule, f"a lone surrogate at character {error.start}", "decode it as UTF-8"
        ) from None
    try:
        return tuple(tokenizer(text, **options)["input_ids"])
    except Exception as error:
        raise TargetError(f"the tokenizer failed on the prompt ({described(error)})") from error


def _brief(value: Any) -> str:
    """Say what a value is without showing a prompt in an error."""
    try:
        return f"{type(value).__name__} of {len(value)}"
    except TypeError:
        return type(value).__name__


def _tokenizer(facts: TargetFacts) -> Any:
    if facts.tokenizer is None:
        raise InvalidRequest("prompt", "as text or chat needs a target with a tokenizer", None, "pass token ids")
    return facts.tokenizer
