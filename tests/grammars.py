"""What the tests of grammars share: facts of small tokenizers, walks over ids and bytes, and targets that like to end."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specframe import TargetFacts
from specframe.testing import TableTarget, byte_tokenizer
from specframe.testing.tokenizers import _visible

TOKENIZER = byte_tokenizer()
STOP_IDS = frozenset(TOKENIZER.convert_tokens_to_ids(["</s>", "<eot>"]))
FACTS = TargetFacts(vocab_size=len(TOKENIZER), stop_ids=STOP_IDS, tokenizer=TOKENIZER)


def small_tokenizer(*pieces: bytes, merges: Sequence[tuple[bytes, bytes]] = ()) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer whose ids are ``pieces`` and, last, the special ``</s>``."""
    vocab = {_visible(piece): token for token, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[(_visible(left), _visible(right)) for left, right in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def small_facts(*pieces: bytes, merges: Sequence[tuple[bytes, bytes]] = ()) -> TargetFacts:
    """Return the facts of a target with such a tokenizer; ``</s>`` is its stop id."""
    tokenizer = small_tokenizer(*pieces, merges=merges)
    return TargetFacts(vocab_size=len(pieces) + 1, stop_ids=frozenset({len(pieces)}), tokenizer=tokenizer)


def after(grammar: Any, ids: Sequence[int]) -> Any:
    """Return the state after ids, each of which must be allowed."""
    state = grammar.start
    for token in ids:
        assert grammar.mask(state)[token], f"id {token} of {list(ids)} is not allowed"
        state = grammar.advance(state, token)
    return state


def takes(grammar: Any, text: str | bytes) -> bool:
    """Tell whether a grammar over the byte tokenizer takes a text, byte by byte."""
    state = grammar.start
    for byte in text.encode() if isinstance(text, str) else text:
        if not grammar.mask(state)[byte]:
            return False
        state = grammar.advance(state, byte)
    return bool(grammar.is_final(state))


def allowed(grammar: Any, ids: Sequence[int] = ()) -> list[int]:
    """Return the ids that a grammar allows after others."""
    return np.flatnonzero(grammar.mask(after(grammar, ids))).tolist()


def ending_target(seed: int = 0, *, boost: float = 7.0, tokenizer: Any = TOKENIZER, **options: Any) -> TableTarget:
    """Return a random table over a tokenizer that prefers stop ids, and then what closes a JSON text.

    So that outputs under a grammar come to their end.
    """
    stop_ids = sorted(STOP_IDS) if tokenizer is TOKENIZER else [tokenizer.eos_token_id]
    bonus = np.zeros(len(tokenizer))
    bonus[[tokenizer.convert_tokens_to_ids(character) for character in '"}]']] = boost / 2
    bonus[stop_ids] = boost

    def row(ids: tuple[int, ...]) -> list[float]:
        noise = np.random.default_rng([seed, zlib.crc32(repr(ids).encode())]).normal(0, 1.5, len(tokenizer))
        return (noise + bonus).tolist()

    return TableTarget(row, vocab_size=len(tokenizer), order=3, stop_ids=stop_ids, tokenizer=tokenizer, **options)
