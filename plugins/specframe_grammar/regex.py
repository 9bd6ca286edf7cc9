"""The grammar of a regular expression: a byte machine over a vocabulary. Choice lists are its sugar.

States are integers: of the byte machine, or one of two below 0. Nothing is computed for a state before it is asked for.
"""

from __future__ import annotations

import json
from collections import deque
from functools import cached_property

import numpy as np

import specframe
from specframe_grammar import pattern
from specframe_grammar.characters import matching_literal
from specframe_grammar.machine import DEAD, ByteMachine, make_machine
from specframe_grammar.masks import Mask, Masks
from specframe_grammar.trie import Walk
from specframe_grammar.vocabulary import MOST_TEXT, Vocabulary

START, STOPPED = -1, -2
"""Before the first id of an output, where the tokenizer treats that one differently; after a stop id."""

MOST_CHECKED = 1_000
"""States that are looked at for dead ends, nearest first."""
MOST_KNOWN = 10_000
"""States whose forced text is kept."""


class RegexGrammar:
    """Which ids continue a text of a pattern. Raises ``InvalidGrammar`` if no text of the vocabulary matches it."""

    def __init__(self, machine: ByteMachine, vocabulary: Vocabulary, language: str = "regex") -> None:
        self._machine, self._vocabulary = machine, vocabulary
        if machine.start == DEAD:
            raise specframe.InvalidGrammar(language, "no text matches it")
        self.start_inside = machine.start
        self.start = START if vocabulary.has_first else machine.start
        self._masks = Masks(len(vocabulary.texts))
        self._only: dict[int, tuple[bytes, int]] = {}
        self._forced: dict[int, specframe.Forced] = {}
        self._require_ways_out(language)

    def mask(self, state: int) -> Mask:
        """Return which ids may come next."""
        return self._masks.get(state, lambda: self._made_mask(state))

    def advance(self, state: int, token: int) -> int:
        """Return the state after an id."""
        reached = self._reached(state, token)
        if reached == DEAD:
            raise specframe.GrammarError(f"id {token} is not allowed here; the grammar was advanced past its mask")
        return reached

    def is_final(self, state: int) -> bool:
        """Tell whether the text may end."""
        return state == STOPPED or self._machine.is_final(self._of_machine(state))

    def forced(self, state: int) -> specframe.Forced:
        """Return the text that must come next, as ids."""
        if state == STOPPED:
            return specframe.Forced()
        found = self._forced.get(state)
        if found is None:
            if len(self._forced) >= MOST_KNOWN:
                self._forced.clear()
            found = self._forced[state] = self._made_forced(state)
        return found

    def _made_mask(self, state: int) -> Mask:
        vocabulary = self._vocabulary
        if state == STOPPED:
            return np.zeros(len(vocabulary.texts), dtype=np.bool_)
        mask = self._walk(state).allowed(self._of_machine(state))
        if self.is_final(state):
            mask[vocabulary.stop_ids] = True
        return mask

    def _reached(self, state: int, token: int) -> int:
        if state == STOPPED:
            return DEAD
        if token in self._vocabulary.stop_ids:
            return STOPPED if self.is_final(state) else DEAD
        texts = self._vocabulary.first_texts if state == START else self._vocabulary.texts
        return self._machine.advance(self._of_machine(state), texts[token]) if texts[token] else DEAD

    def _made_forced(self, state: int) -> specframe.Forced:
        current, text = self._of_machine(state), b""
        while len(text) <= MOST_TEXT:
            byte, following = self._only_byte(current)
            if not byte:
                break
            text, current = text + byte, following
        next_bytes = self._machine.next_bytes(current)
        return self._vocabulary.tokenise(text, next_bytes, is_first=state == START)

    def _only_byte(self, state: int) -> tuple[bytes, int]:
        """Return the one byte that may follow and the state after it; no byte where the text may end or go on in two ways."""
        found = self._only.get(state)
        if found is None:
            found = b"", state
            if not self._machine.is_final(state):
                following = bytes(self._machine.next_bytes(state))
                if len(following) == 1:
                    found = following, self._machine.advance(state, following)
            if len(self._only) >= MOST_KNOWN:
                self._only.clear()
            self._only[state] = found
        return found

    def _walk(self, state: int) -> Walk:
        return self._first_walk if state == START else self._later_walk

    @cached_property
    def _first_walk(self) -> Walk:
        return Walk(self._vocabulary.first_trie, self._machine)

    @cached_property
    def _later_walk(self) -> Walk:
        return Walk(self._vocabulary.trie, self._machine)

    def _of_machine(self, state: int) -> int:
        return self.start_inside if state == START else state

    def _require_ways_out(self, language: str) -> None:
        """Refuse a pattern some of whose texts can be begun with this vocabulary, and not completed.

        Where the ids of single bytes complete any text there is none. Otherwise the states that ids lead to are looked at, up
        to a bound; what lies beyond is told when a generation runs into it.
        """
        single = frozenset(text[0] for text in self._vocabulary.texts if len(text) == 1)
        num_checked = 1 if self._machine.is_completed_by(single) else MOST_CHECKED
        seen, queue = {self.start}, deque([self.start])
        for _ in range(num_checked):
            if not queue:
                return
            state = queue.popleft()
            reached = self._walk(state).reached(self._of_machine(state))
            if not reached and not self.is_final(state):
                raise specframe.InvalidGrammar(
                    language,
                    "some text that it allows cannot be completed with the tokens of this tokenizer",
                    way_out="leave out the characters that the tokenizer cannot spell",
                )
            queue.extend(sorted(reached - seen))
            seen |= reached


def compile_regex(source: str, facts: specframe.TargetFacts) -> RegexGrammar:
    """Return the grammar of the texts that ``re.fullmatch(source, text)`` matches. Raises ``InvalidGrammar``."""
    return RegexGrammar(make_machine(pattern.parse(source)), Vocabulary.of(facts))


def compile_choice(source: str, facts: specframe.TargetFacts) -> RegexGrammar:
    """Return the grammar of a JSON list of texts. Raises ``InvalidGrammar``."""
    try:
        branches = [
            pattern.Sequence(tuple(pattern.Characters(matching_literal(character, 0)) for character in text))
            for text in json.loads(source)
        ]
        tree = pattern.Alternatives(tuple(branches))
    except (TypeError, ValueError) as error:
        raise specframe.InvalidGrammar("choice", f"the source must be a JSON list of texts: {error}") from error
    try:
        machine = make_machine(tree)
    except specframe.InvalidGrammar as error:
        raise specframe.InvalidGrammar("choice", error.problem, way_out="give fewer or shorter texts") from error
    return RegexGrammar(machine, Vocabulary.of(facts), "choice")
