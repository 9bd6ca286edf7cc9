"""Small real tokenizers, made on the spot with the ``tokenizers`` library: nothing is downloaded.

Each holds the pieces that have gone wrong in public: halves of a character, two end-of-sequence ids, pieces that
contain other pieces, a real U+FFFD, visible spaces and byte fallback.
"""

from __future__ import annotations

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

BYTE_SPECIALS = ("<s>", "</s>", "<eot>")
BYTE_PIECES = (
    *(b"ab", b"abc", b"xay", b" the", b"\n\n", "\u00e9t".encode()),
    *(b"\xf0\x9f", b"\x99\x82", b"\xe4\xb8", b"\x96!", b"a\xe4"),  # parts of \U0001f642 and of \u4e16
    *("\u4e16".encode(), "\ufffd".encode()),
)
SENTENCEPIECE_SPECIALS = ("<unk>", "<s>", "</s>")
SENTENCEPIECE_PIECES = (
    *(
        "\u2581",
        "\u2581\u2581",
        "\u2581P",
        "izza",
        "P",
        "\u2581>",
        ">",
        "\u2581a",
        "\u2581the",
        "ab",
        "abc",
        "b\u2581c",
    ),
    *("\u4e16", "\u00e9t", "\ufffd", *"abcdefghijklmnopqrstuvwxyz"),
)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer: ids 0-255 are the bytes, then ``BYTE_PIECES``, then ``BYTE_SPECIALS``.

    ``</s>`` and ``<eot>`` both end a sequence; only the first is the tokenizer's ``eos_token``.
    """
    pieces = [_visible(bytes([byte])) for byte in range(256)] + [_visible(piece) for piece in BYTE_PIECES]
    merges = [(_visible(piece[:1]), _visible(piece[1:])) for piece in BYTE_PIECES if len(piece) == 2]
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in BYTE_SPECIALS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", additional_special_tokens=["<eot>"]
    )


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer built as Llama 2's: visible spaces, a dummy prefix, byte fallback, one leading space stripped.

    Ids: ``SENTENCEPIECE_SPECIALS``, the bytes ``<0x00>`` to ``<0xFF>``, then ``SENTENCEPIECE_PIECES``.
    """
    fallback = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = [*SENTENCEPIECE_SPECIALS, *fallback, *SENTENCEPIECE_PIECES]
    merges = [("\u2581", "P"), ("\u2581", "a"), ("a", "b"), ("ab", "c"), ("\u2581", ">")]
    model = models.BPE(
        vocab={piece: i for i, piece in enumerate(pieces)},
        merges=merges,
        unk_token="<unk>",
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(Regex(" "), "\u2581")]
    )
    backend.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SENTENCEPIECE_SPECIALS])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def _visible(piece: bytes) -> str:
    """Spell bytes in GPT-2's alphabet of visible characters."""
    return "".join(_ALPHABET[byte] for byte in piece)


def _alphabet() -> list[str]:
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = iter(range(256, 512))
    return [chr(byte if byte in visible else next(hidden)) for byte in range(256)]


_ALPHABET = _alphabet()
