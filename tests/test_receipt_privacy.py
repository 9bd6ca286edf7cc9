"""Nothing that was said, and nobody's name, can stand in a receipt: markers put wherever a text can come from."""

from __future__ import annotations

import base64
import getpass
import json
import platform
import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from models import engine_on, random_table

from specframe import DrafterExhausted, Engine, Strategy, machine, pure
from specframe.plugins import Plugins
from specframe.receipt_commands import _lines, _rounds
from specframe.target import Kernel
from specframe.testing import Faulty, Oracle, RecordedSession, TableTarget, byte_tokenizer

TOKENIZER = byte_tokenizer()
DIGEST = r"[a-z-]+-v\d+:sha256:[0-9a-f]{64}|none|unknown|withheld"
CLOSED = re.compile(
    rf"{DIGEST}|[0-9a-f]{{16}}|[0-9a-f]{{32}}|given-\d+|[a-z-]+|adaptive/\d|[A-Za-z]+Error|[\w .,+()-]+"
)
KEYS = re.compile(r"[a-z][a-z0-9_]*|given-\d+|(given-\d+|target) (weights|cache|other)")


class Place:
    """Makes a marker for each place that a text can come from, and remembers it."""

    def __init__(self, salt: str) -> None:
        self.salt = salt
        self.markers: dict[str, str] = {}

    def __call__(self, where: str) -> str:
        marker = self.markers[where] = f"{where}zq{self.salt}"
        return marker


class Noted(TableTarget):
    """A table target whose kernel has a note."""

    note = ""

    def kernel(self, wanted: str) -> Kernel:
        return Kernel(note=self.note)


class Exhausted(Oracle):
    """A drafter that is at its end at once."""

    message = ""

    def open(self, request: Any) -> RecordedSession:
        raise DrafterExhausted(self.message)


def speaking(place: Place, prompt: str) -> Noted:
    """Return a target that answers with a marker, and whose tokenizer and note hold others."""
    num_prompt = len(TOKENIZER(prompt).input_ids)
    answer = TOKENIZER(place("output") + " " * 20).input_ids

    def row(ids: tuple[int, ...]) -> list[float]:
        return [60.0 * (token == answer[len(ids) - num_prompt]) for token in range(len(TOKENIZER))]

    target = Noted(row, vocab_size=len(TOKENIZER), order=1000, tokenizer=TOKENIZER)
    target.note = place("note")
    return target


def leaves(data: Any) -> Iterator[Any]:
    """Give every value of plain data, lists of numbers as one."""
    if isinstance(data, dict):
        for value in data.values():
            yield from leaves(value)
    elif isinstance(data, list) and not all(isinstance(item, int) for item in data):
        for value in data:
            yield from leaves(value)
    else:
        yield data


def keys(data: Any) -> Iterator[str]:
    """Give every key of plain data."""
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from keys(value)
    if isinstance(data, dict):
        yield from data


def spellings(marker: str) -> Iterator[str]:
    """Give a marker as it is and as it might be encoded."""
    raw = marker.encode()
    yield from (marker, marker[::-1], raw.hex(), base64.b64encode(raw).decode().rstrip("=")[:-1])
    yield json.dumps(TOKENIZER(marker).input_ids)[1:-1]
    yield json.dumps(TOKENIZER(marker).input_ids, separators=(",", ":"))[1:-1]


def assert_silent(told: str, place: Place) -> None:
    """Assert that no marker stands in a text, in any spelling."""
    for where, marker in place.markers.items():
        for spelling in spellings(marker):
            assert spelling.lower() not in told.lower(), where


SALTS = st.text("abcdefghijklmnopqrstuvwxyz", min_size=10, max_size=10)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(salt=SALTS, temperature=st.sampled_from([None, 0.5]), fails=st.booleans(), is_stateful=st.booleans())
def test_no_text_and_no_name_is_in_a_receipt(salt, temperature, fails, is_stateful, monkeypatch, tmp_path):
    """Prompt, output, stops, names, messages, classes, notes, paths, users and hosts, in a run that goes wrong in many ways."""
    place = Place(salt)
    for name in ("USER", "LOGNAME", "HOME", "HOSTNAME", "USERNAME", "COMPUTERNAME"):
        monkeypatch.setenv(name, place(name))
    monkeypatch.setattr(platform, "node", lambda: place("node"))
    monkeypatch.setattr(socket, "gethostname", lambda: place("hostname"))
    monkeypatch.setattr(getpass, "getuser", lambda: place("getuser"))
    monkeypatch.setattr(machine, "version", lambda name: f"1.2.3+{place('build')}")
    prompt = place("prompt")
    target = speaking(place, prompt)
    error = type(place("class"), (ValueError,), {})(place("message"))
    exhausted = Exhausted([])
    exhausted.message = place("exhausted")
    drafters = {
        place("drafter"): Faulty("propose", 1, Oracle(TOKENIZER(place.markers["output"]).input_ids), error),
        place("other"): exhausted,
    }
    engine = Engine(target, drafters, strategy=Strategy(name=place("strategy")), plugins=Plugins([]))
    processor = type(place("processor"), (), {"__call__": lambda self, ids, scores: scores})()
    arguments: dict[str, Any] = {
        "max_new_tokens": 24,
        "temperature": temperature,
        "stop": [place("stop"), place.markers["output"][5:8]] if fails else [place("stop")],
        "processors": [processor if is_stateful else pure(processor)],
        "bad_words_ids": [TOKENIZER(place("badword")).input_ids],
        "logit_bias": {5: 1.25},
    }
    result = engine.generate(prompt, **arguments)
    # The markers are where they should be: the test sees what it looks for.
    assert (place.markers["output"] in result.text) != fails
    assert place.markers["note"] in result.events[0].message
    if not (is_stateful or fails):
        assert any(place.markers["class"] in event.message for event in result.events)

    path = tmp_path / f"{place('file')}.json"
    for receipt in (result.receipt, result.receipt.coarse()):
        receipt.write(path)
        written = path.read_text()
        shown = "\n".join([*_lines(receipt), *_rounds(receipt)])
        for told in (written, shown, repr(receipt)):
            assert_silent(told, place)
        data = json.loads(written)
        for leaf in leaves(data):
            if isinstance(leaf, str):
                assert CLOSED.fullmatch(leaf), leaf
            if isinstance(leaf, list):  # a histogram, whose entries count rounds
                assert sum(leaf) <= result.stats.num_rounds
        assert all(map(KEYS.fullmatch, keys(data)))


def test_a_leak_would_be_seen():
    """The negative control: each spelling of a marker is found where it stands."""
    place = Place("abcdefghij")
    place("prompt")
    for spelling in spellings("promptzqabcdefghij"):
        with pytest.raises(AssertionError):
            assert_silent(f'{{"x": "{spelling}"}}', place)


def test_tokens_cannot_be_tried_out_without_the_prompt():
    """With one nonce and the same tokens behind another prompt every check is another: it takes the prompt to try one."""

    def row(ids):
        return [float(token == (ids[-1] + 1) % 12) for token in range(12)]

    engine = engine_on(TableTarget(row, vocab_size=12), Oracle([4, 5, 6, 7]))
    first = engine.generate([1, 3], max_new_tokens=6)
    replay = engine.replay(first.receipt, [2, 3], max_new_tokens=6)
    assert replay.result.token_ids == first.token_ids
    assert replay.receipt.request_nonce == first.receipt.request_nonce
    pairs = zip(first.receipt.rounds, replay.receipt.rounds, strict=True)
    assert all(one.check != other.check for one, other in pairs)
    assert first.receipt.hashes.output != replay.receipt.hashes.output


def test_equal_prompts_of_two_runs_cannot_be_told():
    """Digests of prompts have a nonce, so that a pile of receipts does not tell who asked the same."""
    engine = engine_on(random_table())
    one, other = (engine.generate([1, 2], max_new_tokens=2).receipt for _ in range(2))
    for field in ("prompt", "output", "stops"):
        assert getattr(one.hashes, field) != getattr(other.hashes, field)
