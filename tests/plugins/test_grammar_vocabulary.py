"""A tokenizer as bytes: what is no text, spellings, and which pieces could merge with what follows."""

import gc
import weakref

import pytest
from grammars import FACTS, TOKENIZER

from specframe import Forced, TargetFacts
from specframe.testing import byte_tokenizer, sentencepiece_tokenizer
from specframe_grammar.vocabulary import Vocabulary

SENTENCEPIECE = sentencepiece_tokenizer()


def test_special_stop_and_padded_ids_have_no_text():
    facts = TargetFacts(vocab_size=len(TOKENIZER) + 3, stop_ids=frozenset({65}), tokenizer=TOKENIZER)
    vocabulary = Vocabulary(facts)
    assert vocabulary.texts[65] == b""
    assert vocabulary.texts[66] == b"B"
    assert not any(vocabulary.texts[len(TOKENIZER) - 3 :])
    assert len(vocabulary.texts) == facts.vocab_size


def test_a_vocabulary_is_shared_as_long_as_its_tokenizer_lives():
    """And no longer: the cache does not keep it."""
    tokenizer = byte_tokenizer()
    facts = TargetFacts(vocab_size=len(tokenizer), tokenizer=tokenizer)
    vocabulary = Vocabulary.of(facts)
    assert vocabulary is Vocabulary.of(facts)
    assert vocabulary is not Vocabulary.of(TargetFacts(vocab_size=len(tokenizer) + 1, tokenizer=tokenizer))
    gone = weakref.ref(vocabulary)
    del vocabulary, tokenizer, facts
    gc.collect()
    assert gone() is None


def test_few_vocabularies_of_a_tokenizer_are_kept():
    """Prevents requests that each have stop ids of their own from filling the memory."""
    tokenizer = byte_tokenizer()

    def made(stop_id):
        return Vocabulary.of(TargetFacts(vocab_size=300, stop_ids=frozenset({stop_id}), tokenizer=tokenizer))

    first = weakref.ref(made(0))
    assert made(0) is first()
    last = [made(stop_id) for stop_id in range(1, 20)][-1]
    gc.collect()
    assert first() is None
    assert made(19) is last


@pytest.mark.parametrize(
    ("text", "next_bytes", "ids", "held"),
    [
        (b"xyz", b"", [b"x", b"y", b"z"], []),
        (b"ab", b"", [b"ab"], []),
        (b"ab", b"d", [b"ab"], []),
        (b"ab", b"c", [], [b"ab"]),  # abc is an entry
        (b"xa", b"y", [], [b"x", b"a"]),  # xay is
        (b"zz th", b"e", [b"z", b"z"], [b" ", b"t", b"h"]),
        (b"", b"a", [], []),
        ("é".encode()[1:], b"a", [], []),
        (b"a" + "é".encode()[:1], b"\xa9", [b"a"], []),  # a cut character is left out
    ],
)
def test_pieces_that_could_merge_are_held(text, next_bytes, ids, held):
    vocabulary = Vocabulary.of(FACTS)
    forced = vocabulary.tokenise(text, list(next_bytes), is_first=False)
    assert [vocabulary.texts[token] for token in forced.ids] == ids
    assert [vocabulary.texts[token] for token in forced.held] == held


@pytest.mark.parametrize("is_first", [True, False])
def test_spellings_are_the_tokenizers(is_first):
    """A dummy prefix belongs to the first id of an output alone."""
    facts = TargetFacts(vocab_size=len(SENTENCEPIECE), stop_ids=frozenset({2}), tokenizer=SENTENCEPIECE)
    vocabulary = Vocabulary.of(facts)
    for text in ("Pizza", "abc", " Pizza", "a > b"):
        forced = vocabulary.tokenise(text.encode(), [], is_first=is_first)
        ids = (*forced.ids, *forced.held)
        texts = [vocabulary.texts[token] for token in ids]
        if is_first and ids:
            texts[0] = vocabulary.first_texts[ids[0]]
        assert b"".join(texts) in (text.encode(), b"")
        assert ids or text.startswith(" ")


def test_text_that_spells_special_tokens_is_not_proposed():
    """Prevents the text of a special token from being proposed as that token."""
    assert Vocabulary.of(FACTS).tokenise(b"a</s>b", [], is_first=False) == Forced()
