"""Ids to text: joined bytes against the tokenizer's own decode, and streaming in any chunking (cases J1 and J3)."""

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models

from specframe.testing import byte_tokenizer, sentencepiece_tokenizer
from specframe.testing.tokenizers import BYTE_PIECES
from specframe.text import TextDecoder, TokenBytes, decode

BYTES, PIECES = byte_tokenizer(), sentencepiece_tokenizer()
TOKENIZERS = {"bytes": BYTES, "pieces": PIECES}
TEXT = "A 世🙂ď"


def tokenizer_of(model, pieces, decoder=None):
    """Return a tokenizer of a few whole pieces, without an alphabet of bytes."""
    backend = Tokenizer(model({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>"))
    if decoder is not None:
        backend.decoder = decoder
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


MARKED = ("<unk>", "\u2581", "\u2581P", "izza", "P", "\u2581>", ">", "a\u2581b", "\u2581\u2581", "世", ".", "'s")
OTHERS = {
    "marks": tokenizer_of(models.WordLevel, MARKED, decoders.Metaspace()),
    "marks that stay": tokenizer_of(models.WordLevel, MARKED, decoders.Metaspace(prepend_scheme="never")),
    "words": tokenizer_of(models.WordLevel, ("<unk>", "one", "two", "世", ".", "'s")),
    "word pieces": tokenizer_of(
        models.WordPiece, ("<unk>", "one", "##s", "two", "##世", ".", "##."), decoders.WordPiece(cleanup=False)
    ),
}


def library_decode(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def joined(tokenizer, ids):
    table = TokenBytes(tokenizer)
    return b"".join(table[token] for token in ids)


def is_valid(raw):
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def streamed(table, ids):
    decoder = TextDecoder(table)
    return [decoder.push(token) for token in ids] + [decoder.flush()]


ids_of = {name: st.lists(st.integers(0, len(tokenizer) - 1), max_size=12) for name, tokenizer in TOKENIZERS.items()}
# Random bytes are seldom UTF-8; text cut at random byte borders always is, and uses the same ids.
texts = st.text(st.characters(codec="utf-8"), max_size=12)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_random_ids_give_the_librarys_text(name, data):
    """Prevents a lost or invented space, byte or special token: joined bytes of any ids equal the full decode."""
    tokenizer, ids = TOKENIZERS[name], data.draw(ids_of[name])
    if is_valid(joined(tokenizer, ids)):
        assert decode(TokenBytes(tokenizer), ids) == library_decode(tokenizer, ids)


@pytest.mark.parametrize("name", OTHERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_random_ids_of_other_tokenizers_give_the_librarys_text(name, data):
    """Prevents case J1 where a first piece drops its marks, and where pieces are read by decoding, behind another one."""
    tokenizer = OTHERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=8))
    assert "".join(streamed(TokenBytes(tokenizer), ids)) == library_decode(tokenizer, ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=texts, data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_spelling_of_a_text_gives_the_librarys_text(name, text, data):
    """Prevents a spelling that the tokenizer itself would not choose (bytes of a character as single ids) from breaking."""
    tokenizer = TOKENIZERS[name]
    offset = tokenizer.convert_tokens_to_ids("<0x00>") if name == "pieces" else 0
    ids = []
    for character in text:
        if data.draw(st.booleans()):
            ids += tokenizer.encode(character, add_special_tokens=False)
        else:
            ids += [offset + byte for byte in character.encode()]
    assert decode(TokenBytes(tokenizer), ids) == library_decode(tokenizer, ids)


@given(ids=ids_of["bytes"])
@settings(max_examples=100, deadline=None)
def test_invalid_bytes_of_a_byte_tokenizer_equal_the_library(ids):
    """Prevents another number of replacement characters than the library's for byte-level tokenizers."""
    assert decode(TokenBytes(BYTES), ids) == library_decode(BYTES, ids)


@given(ids=ids_of["pieces"])
@settings(max_examples=100, deadline=None)
def test_invalid_bytes_of_byte_fallback_differ_only_in_their_count(ids):
    """Pins the documented difference: byte fallback gives one U+FFFD per byte of a bad run, UTF-8 one per bad sequence.

    With the library's runs merged nothing else may differ outside such runs.
    """
    raw = joined(PIECES, ids)
    found, expected = decode(TokenBytes(PIECES), ids), library_decode(PIECES, ids)
    if is_valid(raw):
        assert found == expected
    else:
        assert found == raw.removeprefix(b" ").decode(errors="replace")
        assert "\ufffd" in found
        assert "\ufffd" in expected


def test_the_documented_difference():
    """Pins one case of it: two bytes of a three-byte character, then a letter."""
    ids = [PIECES.convert_tokens_to_ids(piece) for piece in ("<0xE4>", "<0xB8>", "a")]
    assert library_decode(PIECES, ids) == "\ufffd\ufffda"
    assert decode(TokenBytes(PIECES), ids) == "\ufffda"


def test_leading_space_pieces():
    """Prevents case J1: a piece read by decoding it alone loses its space."""
    table = TokenBytes(PIECES)
    ids = {piece: PIECES.convert_tokens_to_ids(piece) for piece in ("\u2581P", "izza", "P", "\u2581", "\u2581>", ">")}
    assert {piece: table[token] for piece, token in ids.items()} == {
        "\u2581P": b" P", "izza": b"izza", "P": b"P", "\u2581": b" ", "\u2581>": b" >", ">": b">",
    }  # fmt: skip
    assert decode(table, [ids["\u2581P"], ids["izza"], ids["\u2581>"]]) == "Pizza >"
    assert decode(table, [ids["P"], ids["izza"], ids["\u2581"], ids[">"]]) == "Pizza >"
    assert decode(table, [ids["\u2581"], ids["\u2581P"]]) == " P"  # one leading space is dropped, not two
    assert table.strips_space
    assert not TokenBytes(BYTES).strips_space


def test_spaces_before_punctuation_stay():
    """Prevents a clean-up of spaces, which changes text that was already streamed."""
    assert decode(TokenBytes(BYTES), BYTES.encode("a . b , 's")) == "a . b , 's"


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_every_chunking_gives_the_full_decode(name, data):
    """Prevents case J3: replacement characters, repeats or retractions when characters are split over tokens."""
    tokenizer = TOKENIZERS[name]
    pieces = TEXT if name == "bytes" else f" {TEXT}"
    raw = list(pieces.encode())
    offset = 0 if name == "bytes" else tokenizer.convert_tokens_to_ids("<0x00>")
    ids = data.draw(
        st.just([offset + byte for byte in raw]) | st.just(tokenizer.encode(TEXT, add_special_tokens=False))
    )
    deltas = streamed(TokenBytes(tokenizer), ids)
    assert "".join(deltas) == TEXT == library_decode(tokenizer, ids)
    for n in range(len(deltas)):
        assert TEXT.startswith("".join(deltas[:n]))  # what was told is never taken back


def test_a_character_is_told_once_it_is_whole():
    """Prevents a character from being held longer than needed, or told in parts."""
    deltas = streamed(TokenBytes(BYTES), list("世a".encode()))
    assert deltas == ["", "", "世", "a", ""]


def test_real_replacement_tokens():
    """Prevents real U+FFFD tokens from being taken for unfinished characters and held for ever (case J3)."""
    token = 256 + BYTE_PIECES.index("\ufffd".encode())
    deltas = streamed(TokenBytes(BYTES), [token] * 200)
    assert deltas == ["\ufffd"] * 200 + [""]
    piece = PIECES.convert_tokens_to_ids("\ufffd")
    assert streamed(TokenBytes(PIECES), [piece] * 200) == ["\ufffd"] * 200 + [""]


def test_an_unfinished_character_is_told_at_the_end():
    """Prevents bytes from being lost when the output ends inside a character, and being told twice."""
    decoder = TextDecoder(TokenBytes(BYTES))
    assert [decoder.push(token) for token in "🙂".encode()[:3]] == ["", "", ""]
    assert decoder.flush() == "\ufffd"
    assert decoder.flush() == ""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_special_ids_add_nothing(name):
    """Prevents special tokens from being shown, or from cutting a character that goes on after them."""
    tokenizer = TOKENIZERS[name]
    table = TokenBytes(tokenizer)
    assert {table[token] for token in tokenizer.all_special_ids} == {b""}
    assert len(tokenizer.all_special_ids) == 3
    ids = list("世".encode()) if name == "bytes" else tokenizer.encode("世", add_special_tokens=False)
    assert decode(table, [ids[0], tokenizer.eos_token_id, *ids[1:]]) == "世"


def test_padded_ids_add_nothing():
    """Prevents an id beyond the tokenizer (padded embeddings) from an error in the middle of an output."""
    assert TokenBytes(BYTES)[len(BYTES) + 7] == b""


def test_added_tokens_that_are_no_specials_stand_for_themselves():
    """Prevents an added word with characters outside the byte alphabet from losing them."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<tool call>", "日本"])
    ids = [*tokenizer.encode("a<tool call>日本b"), tokenizer.eos_token_id]
    assert len(ids) == 5
    assert decode(TokenBytes(tokenizer), ids) == library_decode(tokenizer, ids) == "a<tool call>日本b"


def test_added_special_tokens_are_special_wherever_they_were_declared():
    """Prevents tokens that the library skips as special from being shown because no attribute names them."""
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens([transformers.AddedToken("<|hidden|>", special=True)])
    ids = tokenizer.encode("a<|hidden|>b")
    assert len(ids) == 3
    assert decode(TokenBytes(tokenizer), ids) == library_decode(tokenizer, ids)


@pytest.mark.real_model
@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_demo_tokenizer(data):
    """Prevents a real tokenizer's pieces from falling through the tables above."""
    tokenizer = demo_tokenizer()
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=12))
    text = data.draw(texts)
    assert decode(TokenBytes(tokenizer), ids) == library_decode(tokenizer, ids)
    encoded = tokenizer.encode(text, add_special_tokens=False)
    assert decode(TokenBytes(tokenizer), encoded) == library_decode(tokenizer, encoded)


_demo = []


def demo_tokenizer():
    if not _demo:
        pytest.importorskip("specframe.demo")
        from specframe.demo import convert_gguf, demo_file

        _demo.append(transformers.AutoTokenizer.from_pretrained(convert_gguf(demo_file())))
    return _demo[0]
