"""From text, ids and chat messages to checked prompt ids."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import CHAT_TEMPLATE

from specframe import InvalidRequest, TargetFacts
from specframe.prompt import encode
from specframe.testing import byte_tokenizer, sentencepiece_tokenizer


@pytest.fixture(scope="module")
def facts():
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    return TargetFacts(vocab_size=len(tokenizer), context_limit=40, tokenizer=tokenizer)


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 3],
        (1, 2, 3),
        range(1, 4),
        torch.tensor([1, 2, 3]),
        torch.tensor([[1, 2, 3]]),
        np.array([1, 2, 3]),
        [[1, 2, 3]],
    ],
)
def test_every_form_of_ids_is_the_same_prompt(facts, prompt):
    """A form that keeps tensor items or a batch axis fails far from where it was passed."""
    ids = encode(prompt, facts)
    assert ids == (1, 2, 3)
    assert all(type(token) is int for token in ids)


def test_text_is_encoded_as_the_tokenizer_does(facts):
    """A prompt without its special ids is not what the model was trained on."""
    assert encode("the cat", facts) == tuple(facts.tokenizer("the cat")["input_ids"])
    sentencepiece = sentencepiece_tokenizer()
    other = TargetFacts(vocab_size=len(sentencepiece), tokenizer=sentencepiece)
    assert encode("P ab", other) == tuple(sentencepiece("P ab")["input_ids"])


def test_chat_messages_are_rendered_by_the_models_template(facts):
    """A template that is applied without its generation prompt makes the model answer for the user."""
    messages = [{"role": "user", "content": "hi"}]
    assert bytes(encode(messages, facts)).decode() == "<user>hi\n<assistant>"
    two = [*messages, {"role": "assistant", "content": "yo"}]
    assert bytes(encode(two, facts)).decode() == "<user>hi\n<assistant>yo\n<assistant>"


def test_special_ids_of_a_template_are_not_added_twice():
    """A tokenizer that adds its begin id to text must not add it to a template that already wrote it."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "<s>" + CHAT_TEMPLATE
    facts = TargetFacts(vocab_size=len(tokenizer), tokenizer=tokenizer)
    ids = encode([{"role": "user", "content": "a"}], facts)
    assert ids.count(tokenizer.bos_token_id) == 1
    assert ids[0] == tokenizer.bos_token_id


@pytest.mark.parametrize(
    ("prompt", "rule"),
    [
        ("", "at least one token"),
        ([], "at least one token"),
        (torch.zeros(1, 0, dtype=torch.int64), "at least one token"),
        ([[]], "at least one token"),
        ([0, 10_000], "see position 1"),
        ([-1], "see position 0"),
        (["a"], "as ids must hold integers"),
        ([0.0], "as ids must hold integers"),
        ([False], "see position 0 of 1"),
        (torch.tensor([0.5]), "as ids must hold integers"),
        (7, "a text, token ids or chat messages"),
        ({"role": "user"}, "a text, token ids or chat messages"),
        ([[1], [2]], "a batch of 2"),
        ([{"role": "user"}], "'role' and 'content'"),
        ([{"role": "user", "content": "x"}, "y"], "'role' and 'content'"),
        ([1] * 41, "context of 40 tokens"),
        ("word " * 30, "context of 40 tokens"),
    ],
)
def test_what_is_no_prompt_is_told(facts, prompt, rule):
    """A prompt that is half understood would be answered as another one."""
    with pytest.raises(InvalidRequest) as caught:
        encode(prompt, facts)
    assert caught.value.field == "prompt"
    assert rule in str(caught.value)


def test_a_prompt_as_long_as_the_context_is_taken(facts):
    """The limit itself is no error."""
    assert len(encode([1] * 40, facts)) == 40


def test_chat_without_a_template_is_told(facts):
    """A chat that is joined in some made-up form is out of the model's distribution."""
    plain = TargetFacts(vocab_size=len(facts.tokenizer), tokenizer=byte_tokenizer())
    with pytest.raises(InvalidRequest, match="chat template"):
        encode([{"role": "user", "content": "x"}], plain)
