"""A static phrasebook: given texts as token ids, searched for what followed the end of a context.

Knows nothing about rounds or requests; built once per drafter and never changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specframe import InvalidStrategy
from specframe_prompt_lookup.index import MAX_AGREEMENT, Match, count_agreeing

if TYPE_CHECKING:
    import ahocorasick

    from specframe import TargetFacts
    from specframe_prompt_lookup.options import PromptLookupOptions


class Phrasebook:
    """Find the end of a context in phrases.

    A trie of reversed n-grams, of every size between ``min_ngram`` and ``max_ngram``, each with the position after its
    last occurrence: the longest known suffix of a context is then the trie's longest prefix of that context reversed.
    Ids are spelled as characters, which pyahocorasick handles better than integer sequences.
    """

    def __init__(self, phrases: Sequence[Sequence[int]], min_ngram: int, max_ngram: int) -> None:
        import ahocorasick  # only here: a drafter without phrases does without it

        self._min_ngram, self._max_ngram = min_ngram, max_ngram
        self._phrases = tuple(map(tuple, phrases))
        self._trie: ahocorasick.Automaton = ahocorasick.Automaton(ahocorasick.STORE_ANY, ahocorasick.KEY_STRING)
        for index, phrase in enumerate(self._phrases):
            text = _spell(phrase)
            # An n-gram counts only with something after it, so the last id ends none.
            for end in range(min_ngram, len(text)):
                for n in range(min_ngram, min(max_ngram, end) + 1):
                    self._trie.add_word(text[end - n : end][::-1], (index, end))

    @classmethod
    def from_options(cls, options: PromptLookupOptions, facts: TargetFacts) -> Phrasebook | None:
        """Tokenise the phrases of the options; None without any.

        Ids outside the target's vocabulary split a phrase. Raises ``InvalidStrategy`` for a target without a tokenizer
        and for a file that cannot be read.
        """
        if not options.phrases and not options.phrase_files:
            return None
        if facts.tokenizer is None:
            field = "phrases" if options.phrases else "phrase_files"
            raise InvalidStrategy(f"'{field}' must be tokenised, and this target has no tokenizer; leave '{field}' out")
        texts = [*options.phrases, *map(_read, options.phrase_files)]
        phrases: list[list[int]] = []
        for text in texts:
            ids = facts.tokenizer.encode(text, add_special_tokens=False)
            runs = itertools.groupby(ids, key=lambda token: 0 <= token < facts.vocab_size)
            phrases += [list(run) for is_valid, run in runs if is_valid]
        return cls(phrases, options.min_ngram, options.max_ngram)

    def find(self, tail: Sequence[int]) -> tuple[Match, Iterator[int]] | None:
        """Return the longest match of a context's end and what follows it in its phrase; None without a match.

        ``tail``: the context's last ids. Of equally long matches the last one given wins.
        """
        if not self._trie:
            return None  # pyahocorasick 2.3.1 ends the process in longest_prefix of an empty trie
        suffix = _spell(tail[-self._max_ngram :])[::-1]
        num_ids = self._trie.longest_prefix(suffix)
        if num_ids < self._min_ngram:
            return None
        index, next_pos = self._trie.get(suffix[:num_ids])
        phrase = self._phrases[index]
        agreeing = count_agreeing(phrase[max(0, next_pos - MAX_AGREEMENT) : next_pos], tail)
        return Match(max(num_ids, agreeing), next_pos), iter(phrase[next_pos:])


def _spell(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidStrategy(f"phrase file '{name}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidStrategy(f"phrase file '{name}' must be UTF-8 text: {error}") from error
