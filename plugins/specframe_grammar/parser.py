"""Grammars of JSON Schema and Lark, through llguidance; an optional package, imported when one is compiled.

llguidance's matcher moves and keeps its errors. Here a state is a node of the tree of ids fed so far, and the one matcher
of a grammar is moved to the node that is asked for; so states are pure and no id is fed that a mask has not allowed.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np
import numpy.typing as npt

import specframe
from specframe_grammar import lark, schema
from specframe_grammar.masks import Mask, most_masks
from specframe_grammar.vocabulary import Vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

# Where text is forced llguidance allows its canonical token only, unless told not to: here that is a matter of the
# declared tokenisation, not of the language.
_HEADER = '%llguidance {"no_forcing": true}\n'
_PLACE = re.compile(r"(?:at )?(?P<line>\d+)\((?P<column>\d+)\): (?:failed to compile JSON schema: )?")
_QUOTATION = re.compile(r"\n *(?:\d+ \||<)")
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Without \u a name has one spelling; with it, a property that a schema names could be spelled as another one. The parser
# drops characters that have no spelling then.
_JSON_ESCAPES = {"json_allowed_escapes": 'nrbtf\\"'}
_CONTROL = re.compile("\\\\u00|\x7f")
_EVERY_BYTE = range(256)


class Node:
    """A state: the ids fed since the start. ``fed`` are those that the matcher takes for the last of them."""

    __slots__ = ("__weakref__", "children", "depth", "fed", "forced", "is_final", "is_stopped", "packed", "parent")

    def __init__(self, parent: Node | None = None, fed: tuple[int, ...] = (), *, is_stopped: bool = False) -> None:
        self.parent, self.fed, self.is_stopped = parent, fed, is_stopped
        self.depth: int = parent.depth + 1 if parent is not None else 0
        # A request's nodes go when it ends: parents do not keep their children.
        self.children: WeakValueDictionary[int, Node] = WeakValueDictionary()
        self.is_final: bool | None = None
        self.forced: specframe.Forced | None = None
        self.packed: npt.NDArray[np.uint8] | None = None  # the mask; it goes with the node


class ParserGrammar:
    """A grammar of llguidance over a vocabulary. Raises ``InvalidGrammar`` for a source that it refuses."""

    def __init__(self, language: str, source: str, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._matcher = _matcher(language, source, _tokenizer(vocabulary, vocabulary.texts))
        self._fresh = self._matcher.deep_copy()
        self._masked: deque[ref[Node]] = deque()
        self._most_masked = most_masks(len(vocabulary.texts))
        self.start_inside = self._at = Node()
        self.start = Node() if vocabulary.has_first else self.start_inside
        try:
            if vocabulary.has_first:
                first = _tokenizer(vocabulary, vocabulary.first_texts)
                self._first_mask = _unpacked(_matcher(language, source, first), len(vocabulary.texts))
            is_possible = bool(self.mask(self.start).any()) or self.is_final(self.start)
        except specframe.GrammarError:  # llguidance tells it at the first mask
            is_possible = False
        if not is_possible:
            raise specframe.InvalidGrammar(language, "no text of this tokenizer's tokens satisfies it")

    def mask(self, state: Node) -> Mask:
        """Return which ids may come next."""
        if state.packed is None:
            state.packed = np.packbits(self._made_mask(state))
            self._masked.append(ref(state))
            if len(self._masked) > self._most_masked:
                oldest = self._masked.popleft()()
                if oldest is not None:
                    oldest.packed = None
        return np.unpackbits(state.packed, count=len(self._vocabulary.texts)).view(np.bool_)

    def advance(self, state: Node, token: int) -> Node:
        """Return the state after an id."""
        child = state.children.get(token)
        if child is None:
            child = state.children[token] = self._made_child(state, token)
        return child

    def is_final(self, state: Node) -> bool:
        """Tell whether the text may end."""
        if state.is_final is None:
            state.is_final = state.is_stopped or self._moved(state).is_accepting()
        return state.is_final

    def forced(self, state: Node) -> specframe.Forced:
        """Return the text that must come next, as ids."""
        if state.forced is None:
            state.forced = specframe.Forced()
            if not self.is_final(state):
                text = self._moved(state).compute_ff_bytes()
                is_first = state is self.start and self._vocabulary.has_first
                state.forced = self._vocabulary.tokenise(text, _EVERY_BYTE, is_first=is_first)
        return state.forced

    def _made_mask(self, state: Node) -> Mask:
        vocabulary = self._vocabulary
        num_ids = len(vocabulary.texts)
        if state.is_stopped:
            return np.zeros(num_ids, dtype=np.bool_)
        if state is self.start and vocabulary.has_first:
            mask = self._first_mask.copy()
        else:
            mask = _unpacked(self._moved(state), num_ids)
        mask[vocabulary.stop_ids] = self.is_final(state)
        return mask

    def _made_child(self, state: Node, token: int) -> Node:
        if not state.is_stopped and token in self._vocabulary.stop_ids and self.is_final(state):
            return Node(state, is_stopped=True)
        fed: tuple[int, ...] = (token,)
        if state is self.start and self._vocabulary.has_first:
            fed = tuple(len(self._vocabulary.texts) + byte for byte in self._vocabulary.first_texts[token])
        if not state.is_stopped and fed:
            matcher = self._moved(state)
            num_fed = matcher.try_consume_tokens(list(fed))
            if num_fed == len(fed):
                self._at = Node(state, fed)
                return self._at
            if matcher.is_error():
                raise _failed(matcher)
            if num_fed:
                matcher.rollback(num_fed)
        raise specframe.GrammarError(f"id {token} is not allowed here; the grammar was advanced past its mask")

    def _moved(self, state: Node) -> LLMatcher:
        """Return the matcher, moved to a state: back to where the two paths part, and forward."""
        if self._matcher.is_error():  # it stays so, and another text may have what this one was too much for
            self._matcher, self._at = self._fresh.deep_copy(), self.start_inside
        here, there, num_back = self._at, state, 0
        forward: list[tuple[int, ...]] = []
        while here is not there:
            if here.parent is not None and here.depth >= there.depth:
                num_back += len(here.fed)
                here = here.parent
            elif there.parent is not None:
                forward.append(there.fed)
                there = there.parent
            else:  # two roots: the start of an output, and that inside one
                break
        ids = [token for fed in reversed(forward) for token in fed]
        if (num_back and not self._matcher.rollback(num_back)) or self._matcher.try_consume_tokens(ids) < len(ids):
            raise _failed(self._matcher)
        self._at = state
        return self._matcher


def compile_json_schema(source: str, facts: specframe.TargetFacts) -> ParserGrammar:
    """Return the grammar of JSON texts that a schema allows, in the style of ``json.dumps``. Raises ``InvalidGrammar``.

    The schema's own ``x-guidance`` may set ``whitespace_flexible``, ``item_separator`` and ``key_separator``.
    """
    try:
        parsed = json.loads(source)
    except ValueError as error:
        raise specframe.InvalidGrammar("json_schema", f"the source must be JSON: {error}") from error
    schema.check(parsed)
    if _CONTROL.search(json.dumps(parsed, ensure_ascii=False).replace("\\\\", "")):
        problem = "control characters other than \\b, \\f, \\n, \\r and \\t cannot be written"
        raise specframe.InvalidGrammar("json_schema", problem, way_out="leave them out")
    if parsed is False:
        raise specframe.InvalidGrammar("json_schema", "no JSON satisfies it")
    styled = {} if parsed is True else dict(parsed)
    style = styled.get("x-guidance", {})
    styled["x-guidance"] = {**_JSON_ESCAPES, **({} if style.get("whitespace_flexible") else _JSON_STYLE), **style}
    return ParserGrammar("json_schema", f"start: %json {json.dumps(styled)}", Vocabulary.of(facts))


def compile_lark(source: str, facts: specframe.TargetFacts) -> ParserGrammar:
    """Return the grammar of a Lark grammar as llguidance reads it. Raises ``InvalidGrammar``."""
    lark.check(source)
    return ParserGrammar("lark", source, Vocabulary.of(facts))


def _matcher(language: str, source: str, tokenizer: LLTokenizer) -> LLMatcher:
    llguidance = _llguidance()
    matcher: LLMatcher = llguidance.LLMatcher(
        tokenizer, llguidance.LLMatcher.grammar_from_lark(_HEADER + source), log_level=0
    )
    if matcher.is_error():
        raise _invalid(language, source, matcher.get_error())
    return matcher


def _invalid(language: str, source: str, message: str) -> specframe.InvalidGrammar:
    """Return llguidance's message as an error, without what it quotes, its place as an offset in a Lark source."""
    message = _QUOTATION.split(message)[0]
    place = _PLACE.match(message)
    problem = " ".join(message[place.end() if place is not None else 0 :].split())
    if place is None or language != "lark":
        return specframe.InvalidGrammar(language, problem)
    lines = source.split("\n")
    number = int(place["line"]) - 1 - _HEADER.count("\n")
    before = "".join(lines[number : number + 1]).encode()[: int(place["column"]) - 1]  # columns are of bytes
    offset = sum(len(line) + 1 for line in lines[:number]) + len(before.decode(errors="ignore"))
    return specframe.InvalidGrammar(language, problem, offset=offset)


def _unpacked(matcher: LLMatcher, num_ids: int) -> Mask:
    if matcher.is_stopped() and not matcher.is_error():  # complete, and nothing may follow
        return np.zeros(num_ids, dtype=np.bool_)
    packed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    if matcher.is_error():
        raise _failed(matcher)
    return np.unpackbits(packed, count=num_ids, bitorder="little").view(np.bool_)


def _failed(matcher: LLMatcher) -> specframe.GrammarError:
    return specframe.GrammarError(f"the parser failed: {matcher.get_error().partition(chr(10))[0]}")


class _Texts:
    """What llguidance asks of a tokenizer: the vocabulary's texts, every byte, and an end-of-sequence id that is never used.

    Bytes are what the first id of an output is fed as, where it adds another text than later.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        self.tokens = [*texts, *(bytes([byte]) for byte in range(256)), b""]
        self.eos_token_id = len(self.tokens) - 1
        self.bos_token_id = None
        self.special_token_ids = [self.eos_token_id]

    def __call__(self, text: bytes) -> list[int]:
        return []  # only for spellings, which are the vocabulary's


def _tokenizer(vocabulary: Vocabulary, texts: Sequence[bytes]) -> LLTokenizer:
    known = _tokenizers.setdefault(vocabulary, {})
    is_first = texts is vocabulary.first_texts
    if is_first not in known:
        llguidance = _llguidance()
        known[is_first] = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Texts(texts)))
    return known[is_first]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise specframe.MissingPackage(
            "grammars of JSON Schema and Lark need the package llguidance: pip install 'specframe[grammar]'"
        ) from error
    return llguidance


_tokenizers: WeakKeyDictionary[Vocabulary, dict[bool, LLTokenizer]] = WeakKeyDictionary()
