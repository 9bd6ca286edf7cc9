"""Long texts: as long as asked for, the same for the same seed, and no copy of themselves."""

from __future__ import annotations

import pytest

from specframe.bench.texts import make_text


def test_a_text_is_as_long_as_asked_for_and_repeatable():
    """Prevents a prompt that differs between two runs of a comparison."""
    for words in (1, 40, 700, 3000):
        text = make_text(words, seed=3)
        assert len(text.split()) == words
        assert text == make_text(words, seed=3)
        assert words == 1 or text != make_text(words, seed=4)
    assert "{" not in make_text(3000, seed=1)


def test_a_text_does_not_repeat_itself():
    """Prevents a long context whose second half is a copy of its first, which every lookup drafts perfectly."""
    words = make_text(3000, seed=5).split()
    grams = [tuple(words[index : index + 24]) for index in range(len(words) - 24)]
    assert len(set(grams)) > 0.7 * len(grams)
    paragraphs = make_text(3000, seed=5).split("\n\n")
    assert len(set(paragraphs)) == len(paragraphs)


def test_an_insertion_stands_where_it_is_wanted():
    """Prevents a needle that is always at the same place."""
    for at in (0.0, 0.5, 1.0):
        paragraphs = make_text(1000, seed=1, insert="NEEDLE", at=at).split("\n\n")
        assert paragraphs.index("NEEDLE") == round(at * (len(paragraphs) - 1))


@pytest.mark.parametrize("arguments", [{"words": 0}, {"words": True}, {"words": "9"}, {"words": 9, "at": 2}])
def test_bad_arguments(arguments):
    """Prevents a prompt without its text."""
    with pytest.raises(ValueError, match="must be"):
        make_text(**arguments, seed=0)
