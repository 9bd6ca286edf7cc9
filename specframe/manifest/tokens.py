"""A tokenizer's identity, and the strings of its ids.

Reads transformers tokenizers: of the tokenizers library from the library's own JSON, others from what they say of
themselves. State of calls (padding, truncation) is no part of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from specframe.manifest.digest import digest
from specframe.manifest.identity import Tokenizer
from specframe.text import TokenBytes

BLOCK = 1024  # ids that share a short digest, so that manifests alone can tell where two vocabularies part

_ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
_UNKNOWN = ("unk_token", "unk_id", "fuse_unk")


def tokenizer_identity(tokenizer: Any) -> Tokenizer:
    """Return the identity of a transformers tokenizer."""
    strings = token_strings(tokenizer)
    state, added = _state(tokenizer)
    model = dict(state.get("model") or {})
    vocabulary = model.pop("vocab", None)
    if model.get("type") == "Unigram":  # its vocabulary is a list of [string, score] by id
        model["scores"] = [score for _, score in vocabulary or ()]
    if "merges" in model:
        model["merges"] = _packed(model["merges"])
    unknown = {key: value for key in _UNKNOWN if (value := model.pop(key, None)) is not None}
    if unknown.get("unk_id") is None and unknown.get("unk_token") in (known := tokenizer.get_vocab()):
        unknown["unk_id"] = known[unknown["unk_token"]]
    byte_fallback = bool(model.pop("byte_fallback", False))
    fields: dict[str, Any] = {
        "size": len(strings),
        "vocabulary": digest("vocabulary-v1", _packed(strings)),
        "vocabulary_blocks": "".join(
            hashlib.sha256(_packed(strings[start : start + BLOCK]).encode()).hexdigest()[:8]
            for start in range(0, len(strings), BLOCK)
        ),
        "token_bytes": digest("token-bytes-v1", _packed(_bytes(tokenizer, len(strings)))),
        "added_tokens": digest("added-tokens-v1", added),
        "model": str(model.get("type", type(tokenizer).__name__)),
        "segmentation": digest("segmentation-v1", model),
        "normalizer": digest("normalizer-v1", state.get("normalizer")),
        "pre_tokenizer": digest("pre-tokenizer-v1", state.get("pre_tokenizer")),
        "post_processor": digest("post-processor-v1", state.get("post_processor")),
        "decoder": digest("decoder-v1", state.get("decoder")),
        "byte_fallback": byte_fallback,
        "unknown": unknown,
        "special": _special(tokenizer),
        "padding_side": str(getattr(tokenizer, "padding_side", "right")),
        "truncation_side": str(getattr(tokenizer, "truncation_side", "right")),
    }
    return Tokenizer(digest=digest("tokenizer-v1", fields), **fields)


def token_strings(tokenizer: Any) -> list[str | None]:
    """Return the string of every id, in order; None for a hole."""
    vocabulary = tokenizer.get_vocab()
    strings: list[str | None] = [None] * (max(vocabulary.values(), default=-1) + 1)
    for string, token in vocabulary.items():
        strings[token] = string
    return strings


def first_difference(ours: Sequence[str | None], theirs: Sequence[str | None]) -> tuple[int, str | None, str | None]:
    """Return the first id that stands for different strings, and both strings; the lists differ."""
    for token in range(max(len(ours), len(theirs))):
        first, second = (strings[token] if token < len(strings) else None for strings in (ours, theirs))
        if first != second:
            return token, first, second
    raise ValueError("the vocabularies do not differ")


def first_block(ours: str, theirs: str) -> tuple[int, int] | None:
    """Return the first and last id of the first block in which two ``vocabulary_blocks`` differ; None where none does."""
    for index in range(0, max(len(ours), len(theirs)), 8):
        if ours[index : index + 8] != theirs[index : index + 8]:
            return index // 8 * BLOCK, (index // 8 + 1) * BLOCK - 1
    return None  # digests of blocks are short, and a file may have been made by hand


def _packed(items: Sequence[Any]) -> str:
    """Return strings, or lists of them, as one: the canonical form of so many takes a second."""
    return json.dumps(items, separators=(",", ":"))


def _bytes(tokenizer: Any, size: int) -> list[str]:
    table = TokenBytes(tokenizer)
    return ["special" if table.is_special(token) else table[token].hex() for token in range(size)]


def _state(tokenizer: Any) -> tuple[Mapping[str, Any], list[Any]]:
    """Return the backend's parts as plain data, and its added tokens in order."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:  # a tokenizer written in Python: its class and arguments are all that it tells
        arguments = {key: str(value) for key, value in sorted(tokenizer.init_kwargs.items()) if "file" not in key}
        arguments.pop("name_or_path", None)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        entries = [[token, str(entry), bool(entry.special)] for token, entry in sorted(added.items())]
        return {"model": {"type": type(tokenizer).__name__, "arguments": arguments}}, entries
    state = json.loads(backend.to_str())
    return state, [dict(sorted(entry.items())) for entry in state["added_tokens"]]


def _special(tokenizer: Any) -> dict[str, int]:
    ids = {role: getattr(tokenizer, f"{role}_token_id", None) for role in _ROLES}
    return {role: int(token) for role, token in ids.items() if token is not None}
