"""Case J3, where the engine streams: deltas that are corrupt, repeated or taken back."""

from __future__ import annotations

import random

import pytest
from models import engine_on

from specframe import text as text_module
from specframe.testing import Oracle, TableTarget, byte_tokenizer, sentencepiece_tokenizer

TOKENIZER = byte_tokenizer()
SENTENCEPIECE = sentencepiece_tokenizer()
FFFD = TOKENIZER.convert_tokens_to_ids("ï¿½")  # U+FFFD in the byte alphabet
assert TOKENIZER.decode([FFFD]) == "\ufffd"
TEXTS = {
    "split characters": (TOKENIZER, list("A 世🙂ď".encode())),
    "pieces": (TOKENIZER, TOKENIZER("A 世🙂ď the été")["input_ids"]),
    "200 real replacement characters": (TOKENIZER, [FFFD] * 200),
    "an unfinished character": (TOKENIZER, [65, *"世".encode()[:2]]),
    "special ids inside": (TOKENIZER, [72, TOKENIZER.bos_token_id, 105, 0xE4, TOKENIZER.bos_token_id, 0xB8, 0x96, 33]),
    "sentencepiece": (SENTENCEPIECE, SENTENCEPIECE("P ab > 世 the 🙂 été")["input_ids"]),
}


def scripted_target(tokenizer, ids):
    """Return a target that says these ids after a one-token prompt."""
    vocab_size = len(tokenizer)

    def row(context):
        return [30.0 * (token == ids[min(len(context), len(ids)) - 1]) for token in range(vocab_size)]

    return TableTarget(row, vocab_size=vocab_size, order=400, tokenizer=tokenizer)


class Chunks(Oracle):
    """Offer a known text in blocks of random sizes."""

    def __init__(self, ids, seed):
        super().__init__(ids)
        self.source = random.Random(seed)

    def _proposer(self, request):
        def propose(round):
            start = len(round.context) - 1
            for token in self.continuation[start : start + self.source.randint(0, round.room)]:
                round.offer(token)

        return propose


def full_text(tokenizer, ids):
    kept = [token for token in ids if token not in tokenizer.all_special_ids]
    return tokenizer.decode(kept, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize(("tokenizer", "ids"), TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("seed", range(4))
def test_j3_joined_deltas_are_the_full_decode_for_every_chunking(tokenizer, ids, seed, monkeypatch):
    """A delta that is decoded on its own tears characters; one that is cut from a longer text moves back."""
    pushed = []
    push = text_module.TextDecoder.push
    monkeypatch.setattr(text_module.TextDecoder, "push", lambda self, token: pushed.append(token) or push(self, token))
    drafter = None if seed == 0 else Chunks(ids, seed)
    engine = engine_on(scripted_target(tokenizer, ids), *filter(None, [drafter]), length=7)
    stream = engine.stream([0], max_new_tokens=len(ids))
    shown, emitted, sizes = "", [], set()
    expected = full_text(tokenizer, ids)
    for piece in stream:
        shown += piece.text
        emitted += piece.token_ids
        sizes.add(len(piece.token_ids))
        assert expected.startswith(shown)  # nothing shown is ever taken back
    assert shown == stream.result.text == expected
    assert emitted == ids
    assert sizes == {1} if seed == 0 else max(sizes) > 1 or len(ids) < 4
    assert pushed == ids  # each id is decoded once: no window that is read again and again


def test_j3_the_first_token_comes_once():
    """The token that prefill gives must not come again with the first block."""
    ids = list(b"hello")
    pieces = list(engine_on(scripted_target(TOKENIZER, ids), Oracle(ids)).stream([0], max_new_tokens=5))
    assert [piece.text for piece in pieces] == ["h", "ello"]


def test_j3_text_is_held_only_while_it_may_become_a_stop_string():
    """Held text that never comes out is lost, and text that comes out too early would have to be taken back."""
    ids = list(b"xabxaby")
    stream = engine_on(scripted_target(TOKENIZER, ids)).stream([0], max_new_tokens=7, stop=["abz"])
    assert [piece.text for piece in stream] == ["x", "", "", "abx", "", "", "aby"]
    stream = engine_on(scripted_target(TOKENIZER, ids), Oracle(ids)).stream([0], max_new_tokens=7, stop=["aby"])
    assert "".join(piece.text for piece in stream) == "xabx"
    assert stream.result.token_ids == tuple(ids)
