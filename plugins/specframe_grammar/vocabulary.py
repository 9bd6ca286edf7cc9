"""A tokenizer's ids as bytes of text, and forced text as ids. Made once for a tokenizer and its stop ids."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, ref

import specframe
from specframe_grammar.trie import Trie

MOST_TEXT = 512
"""Bytes of forced text that are tokenised at once; what is beyond comes later."""
MOST_KNOWN = 8
"""Vocabularies of a tokenizer that are kept, one for each set of stop ids: some 10 MB at 49,000 ids, 60 MB at 262,000."""


class Vocabulary:
    """``texts[i]``: the bytes that id i adds to a text, empty for ids that are no text: special, stop and padded ones.

    ``first_texts``: the same for the first id of an output, from which some tokenizers drop a space.
    """

    def __init__(self, facts: specframe.TargetFacts) -> None:
        table = specframe.TokenBytes(facts.tokenizer)
        self.stop_ids = sorted(facts.stop_ids)
        self._tokenizer = ref(facts.tokenizer)  # which owns this, through the dictionary below
        text_ids = [
            token
            for token in range(facts.vocab_size)
            if token not in facts.stop_ids and not table.is_special(token) and table[token]
        ]
        self.texts = [b""] * facts.vocab_size
        self.first_texts = [b""] * facts.vocab_size
        for token in text_ids:
            self.texts[token] = table[token]
            first = table.first(token)
            self.first_texts[token] = first.removeprefix(b" ") if table.strips_space else first

    @classmethod
    def of(cls, facts: specframe.TargetFacts) -> Vocabulary:
        """Return the vocabulary of a target, which requests and engines share as long as its tokenizer lives."""
        key = (facts.vocab_size, facts.stop_ids)
        with _lock:  # engines of several threads may share a tokenizer
            known = _known.setdefault(facts.tokenizer, {})
            if key not in known:
                if len(known) == MOST_KNOWN:
                    del known[next(iter(known))]  # the oldest
                known[key] = cls(facts)
            return known[key]

    @cached_property
    def trie(self) -> Trie:
        """The trie of ``texts``."""
        return Trie(self.texts)

    @cached_property
    def first_trie(self) -> Trie:
        """The trie of ``first_texts``."""
        return self.trie if self.first_texts == self.texts else Trie(self.first_texts)

    @property
    def has_first(self) -> bool:
        """Whether the first id of an output adds other bytes than a later one."""
        return self.first_trie is not self.trie

    def tokenise(self, text: bytes, next_bytes: Sequence[int], *, is_first: bool) -> specframe.Forced:
        """Return forced text as the ids that the tokenizer spells it with, empty where it spells another text.

        ``next_bytes``: those that may follow; a piece is held if an entry of the vocabulary reaches from it, or from before
        it, over the end of the text to one of them. A character that is cut off at the end is left out.
        """
        if len(text) > MOST_TEXT:
            text, next_bytes = text[:MOST_TEXT], text[MOST_TEXT : MOST_TEXT + 1]
        whole = text.decode("utf-8", "ignore").encode()
        if not whole or not text.startswith(whole):  # it begins inside a character
            return specframe.Forced()
        ids = self._spelling(whole, is_first=is_first)
        end = self._first_that_goes_on(text, whole, next_bytes)
        num_bytes, num_stable = 0, 0
        for index, token in enumerate(ids):
            num_bytes += len(self.first_texts[token] if is_first and index == 0 else self.texts[token])
            num_stable += num_bytes <= end
        return specframe.Forced(tuple(ids[:num_stable]), tuple(ids[num_stable:]))

    def _spelling(self, text: bytes, *, is_first: bool) -> Sequence[int]:
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "its target holds it"
        ids = tokenizer.encode(text.decode(), add_special_tokens=False)
        if b"".join(self._bytes_of(ids, is_first=is_first)) == text:
            return list(ids)
        # Tokenizers that put a space before a text do not put it before a later line.
        ids = tokenizer.encode("\n" + text.decode(), add_special_tokens=False)
        num_bytes = len(text)
        for start in range(len(ids) - 1, -1, -1):
            num_bytes -= len(self._text_of(ids[start]))
            if num_bytes <= 0:
                tail = list(ids[start:])
                return tail if b"".join(self._bytes_of(tail, is_first=is_first)) == text else []
        return []

    def _bytes_of(self, ids: Sequence[int], *, is_first: bool) -> list[bytes]:
        texts = [self._text_of(token) for token in ids]
        if is_first and ids and ids[0] < len(self.first_texts):
            texts[0] = self.first_texts[ids[0]]
        return texts

    def _text_of(self, token: int) -> bytes:
        return self.texts[token] if token < len(self.texts) else b""

    def _first_that_goes_on(self, text: bytes, whole: bytes, next_bytes: Sequence[int]) -> int:
        """Return the first position from which an entry reaches over the end of the text."""
        if len(whole) < len(text):
            next_bytes = text[len(whole) : len(whole) + 1]
        for start in range(len(whole)):
            tail = whole[start:]
            if self._is_begun(tail) and any(self._is_begun(tail + bytes([byte])) for byte in next_bytes):
                return start
        return len(whole)

    def _is_begun(self, prefix: bytes) -> bool:
        index = bisect.bisect_left(self._sorted_texts, prefix)
        return index < len(self._sorted_texts) and self._sorted_texts[index].startswith(prefix)

    @cached_property
    def _sorted_texts(self) -> list[bytes]:
        return sorted(filter(None, self.texts))


_lock = threading.Lock()
_known: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], Vocabulary]] = WeakKeyDictionary()
