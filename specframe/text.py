"""From token ids to text, one token at a time.

Every id has bytes; text is the UTF-8 decoding of the joined bytes. So a delta costs what its token costs, a character that
is split over tokens is held until it is whole, and any chunking of the ids gives the same text. Knows tokenizers, and
nothing about models or rounds.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Sequence
from typing import Any

from specframe.errors import TargetError, described

_SPACE_MARK = "\u2581"  # sentencepiece's visible space


class TokenBytes:
    """The bytes that each id adds to the text; special ids add none. Made on demand and kept.

    The first id of a text may add other bytes (``first``): sentencepiece models drop the space of their dummy prefix. Raises
    ``TargetError`` where the tokenizer fails.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special_ids = _special_ids(tokenizer)
        self._table: dict[int, bytes] = {}
        decoders = {decoder["type"]: decoder for decoder in _decoders(tokenizer)}
        strip = decoders.get("Strip", {"content": "", "start": 0})
        self.strips_space = strip["content"] == " " and strip["start"] > 0
        self._drops_first_marks = decoders.get("Metaspace", {"prepend_scheme": "never"})["prepend_scheme"] != "never"
        self._convert: Callable[[int, str], bytes]
        if "ByteLevel" in decoders:
            self._convert = _byte_level
        elif "Metaspace" in decoders or _replaces_space_mark(decoders.get("Replace")):
            self._convert = _sentencepiece
        else:
            self._convert = self._by_decoding

    def __getitem__(self, token: int) -> bytes:
        found = self._table.get(token)
        if found is None:
            found = self._table[token] = self._asked(self._make, token)
        return found

    def is_special(self, token: int) -> bool:
        """Whether an id adds no text and does not count as the first of one."""
        return token in self._special_ids

    def first(self, token: int) -> bytes:
        """Return the bytes of an id that begins a text."""
        if self._drops_first_marks and not self.is_special(token):
            return self[token].replace(b" ", b"")
        if self._convert == self._by_decoding and not self.is_special(token):
            return self._asked(self._alone, token)
        return self[token]

    def _asked(self, ask: Callable[[int], bytes], token: int) -> bytes:
        """Ask the tokenizer; its failure is the target's."""
        try:
            return ask(token)
        except Exception as error:
            raise TargetError(f"the tokenizer failed on id {token} ({described(error)})") from error

    def _alone(self, token: int) -> bytes:
        return str(self._tokenizer.decode([token], clean_up_tokenization_spaces=False)).encode()

    def _make(self, token: int) -> bytes:
        if token in self._special_ids:
            return b""
        piece = self._tokenizer.convert_ids_to_tokens(token)
        return b"" if piece is None else self._convert(token, piece)  # padded ids beyond the tokenizer have no piece

    def _by_decoding(self, token: int, piece: str) -> bytes:
        # Without a byte alphabet a token is read behind another one, whose text is taken off again.
        anchor = self._anchor
        both = self._tokenizer.decode([anchor, token], clean_up_tokenization_spaces=False)
        alone = self._tokenizer.decode([anchor], clean_up_tokenization_spaces=False)
        return str(both[len(alone) :]).encode()

    @property
    def _anchor(self) -> int:
        return next(token for token in range(len(self._tokenizer)) if token not in self._special_ids)


def _special_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids that decoding skips: added tokens may be special without being named by an attribute."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    added = backend.get_added_tokens_decoder() if backend is not None else {}
    return frozenset(tokenizer.all_special_ids) | {token for token, entry in added.items() if entry.special}


def _decoders(tokenizer: Any) -> list[dict[str, Any]]:
    """Return the tokenizer's decoder steps as data; none for one that is not of the tokenizers library."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    state = json.loads(backend.decoder.__getstate__()) if backend is not None and backend.decoder else None
    if state is None:
        return []
    return list(state["decoders"]) if state["type"] == "Sequence" else [state]


def _replaces_space_mark(decoder: dict[str, Any] | None) -> bool:
    return decoder is not None and decoder["pattern"].get("String") == _SPACE_MARK


def _byte_level_alphabet() -> dict[str, int]:
    """Return GPT-2's map of visible characters to bytes."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_ALPHABET = _byte_level_alphabet()


def _byte_level(token: int, piece: str) -> bytes:
    mapped = [_ALPHABET.get(character) for character in piece]
    # Added tokens stand for themselves; the library tells them by a character outside the alphabet.
    return piece.encode() if None in mapped else bytes(byte for byte in mapped if byte is not None)


def _sentencepiece(token: int, piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace(_SPACE_MARK, " ").encode()


class TextDecoder:
    """The text of a growing list of ids."""

    def __init__(self, table: TokenBytes) -> None:
        self._table = table
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._is_first, self._strips_next = True, table.strips_space

    def push(self, token: int) -> str:
        """Return the text that an id completes; a character whose bytes are not all there is held."""
        added = self._table.first(token) if self._is_first else self._table[token]
        self._is_first = self._is_first and self._table.is_special(token)
        return self._strip(self._decoder.decode(added))

    def flush(self) -> str:
        """Return what is held, as replacement characters; no more ids follow."""
        return self._strip(self._decoder.decode(b"", final=True))

    def _strip(self, text: str) -> str:
        if self._strips_next and text:
            self._strips_next = False
            return text.removeprefix(" ")
        return text


def decode(table: TokenBytes, ids: Sequence[int]) -> str:
    """Return the full text of ids."""
    decoder = TextDecoder(table)
    return "".join(map(decoder.push, ids)) + decoder.flush()
