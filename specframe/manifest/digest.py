"""Canonical bytes and digests, each of which names what it covers and in which version.

Pure: knows no models and no files. A digest is written ``<scheme>:sha256:<64 hex digits>``; a change of what a scheme covers
is a new scheme.
"""

from __future__ import annotations

import hashlib
import json
import numbers
import re
from collections.abc import Mapping
from typing import Any

import attrs

COVERS = {
    "manifest-v1": "every field of the manifest except its licence",
    "tokenizer-v1": "everything under [tokenizer]: what ids mean and how text becomes ids",
    "vocabulary-v1": "id -> token string, added tokens included",
    "token-bytes-v1": "id -> the bytes that it adds to a text",
    "added-tokens-v1": "added tokens in order, each with its id, string and flags",
    "segmentation-v1": "merges in order or unigram scores by id, and the other parameters of the tokenizer's model",
    "normalizer-v1": "the normaliser's steps",
    "pre-tokenizer-v1": "the pre-tokenizer's steps",
    "post-processor-v1": "what is put around encoded text, such as a beginning-of-sequence id",
    "decoder-v1": "the decoder's steps",
    "template-v1": "the bytes of the chat template, or of all named ones",
    "probe-v1": "the token ids of one fixed probe text or conversation",
    "computation-v1": "the model's configuration without names, versions, training-only values and what has a field here",
    "weights-v1": "name, dtype, shape and bytes of every tensor, by name, however they are spread over files",
    "weight-files-v1": "the bytes of weight files that are not safetensors",
    "adapter-v1": "an adapter's configuration without paths and versions, and its tensors as weights-v1",
    "output-map-v1": "the target id of every output column of a reduced head, in order",
    "sampling-v1": "every field of a sampling policy; a caller's own processors by their qualified names only",
    "grammar-v1": "a grammar's language and source text, its tokenisation and the marker that it begins behind",
    "plan-v1": "everything that a comparison fixes before results exist",
    "adapter-chain-v1": "the digests of adapters in the order in which they are applied",
    "position-policy-v1": "everything under [positions]: how positions are numbered and limited",
    "scheduler-policy-v1": "length policy, mode, verifier, kernel, and drafters in order with their options, models apart",
    "stops-v1": "stop ids, stop strings and whether a criterion was given, with the receipt's nonce",
    "prompt-v1": "a prompt's token ids, with the receipt's nonce",
    "output-v1": "an output's token ids, with a key that is made of nonce, prompt and seed",
    "round-v1": "a round's token ids and their place, with that key",
    "seed-v1": "a seed, with the receipt's nonce",
    "receipt-v1": "every field of a receipt",
}

_SHAPE = re.compile(r"([a-z-]+)-v(\d+):sha256:[0-9a-f]{64}")


def canonical(value: Any) -> bytes:
    """Return bytes that do not depend on dictionary order, on ``1`` against ``1.0``, or on tuple against list."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":")).encode("ascii")


def digest(scheme: str, value: Any) -> str:
    """Return the digest of a plain value under a scheme of ``COVERS``."""
    assert scheme in COVERS, scheme
    return f"{scheme}:sha256:{hashlib.sha256(canonical([scheme, value])).hexdigest()}"


def problem(text: str) -> str | None:
    """Say what is wrong with a digest's form, or None."""
    match = _SHAPE.fullmatch(text)
    if match is None:
        return "is not a digest such as 'weights-v1:sha256:' and 64 hex digits"
    if f"{match[1]}-v{match[2]}" in COVERS:
        return None
    known = [scheme for scheme in COVERS if scheme.rpartition("-v")[0] == match[1]]
    if known:
        return f"has scheme '{match[1]}-v{match[2]}'; this specframe knows {', '.join(known)}"
    return f"has the unknown scheme '{match[1]}-v{match[2]}'"


def sampling_digest(policy: Any) -> str:
    """Return the digest of a ``SamplingPolicy``."""
    fields = attrs.asdict(policy, recurse=False)
    fields["processors"] = [_qualified_name(processor) for processor in fields.get("processors") or ()]
    return digest("sampling-v1", fields)


def grammar_digest(language: str, source: str, *, tokenization: str = "any", after: str | int | None = None) -> str:
    """Return the digest of a grammar, such as ``("regex", r"\\d+")``, and of how it is put in force."""
    return digest("grammar-v1", [language, source, tokenization, after])


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted((_plain(item) for item in value), key=lambda item: (str(type(item)), str(item)))
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float):
        return int(value) if value.is_integer() else value
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, numbers.Real):  # numpy's, and others that a caller may give
        return _plain(int(value) if isinstance(value, numbers.Integral) else float(value))
    raise TypeError(f"a value of type {type(value).__name__} has no canonical form")


def _qualified_name(processor: Any) -> str:
    named = processor if hasattr(processor, "__qualname__") else type(processor)
    return f"{named.__module__}.{named.__qualname__}"
