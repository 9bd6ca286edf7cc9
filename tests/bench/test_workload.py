"""Workloads: the shipped strata, other people's formats, and lines that are none."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from specframe import InvalidWorkload
from specframe.bench.judges import Judge
from specframe.bench.workload import STRATA, Corpus, WorkItem, core_workload, read_workload, stratum

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("kind", STRATA)
def test_a_stratum_has_prompts_to_test_and_others_to_tune(kind):
    """Prevents settings from being chosen on the prompts that they are measured on, and a stratum of a few examples."""
    test, tune = stratum(kind, "test"), stratum(kind, "tune")
    assert len(test) >= 8
    assert len(tune) >= 4
    assert stratum(kind) == sorted(test + tune, key=stratum(kind).index)
    assert {item.kind for item in test + tune} == {kind}


def test_no_prompt_is_there_twice():
    """Prevents a prompt from counting twice, or from standing in both splits."""
    items = [item for kind in STRATA for item in stratum(kind)] + core_workload("test") + core_workload("tune")
    assert len({item.prompt for item in items}) == len(items)
    for kind in STRATA:
        assert len({item.name for item in stratum(kind)}) == len(stratum(kind))


def test_the_multilingual_stratum_has_the_unicode_that_tokenizers_trip_over():
    """Prevents the stratum from being a few umlauts: each of the report's cases is there by its characters."""
    text = "".join(item.prompt for item in stratum("multilingual"))
    directions = {unicodedata.bidirectional(character) for character in text}
    assert any(unicodedata.combining(character) for character in text)
    assert "caf\u00e9" in text
    assert "cafe\u0301" in text
    assert "\u200d" in text  # joined emoji
    assert "\U0001f1f3" in text  # flags are pairs of letters
    assert {"R", "AL"} <= directions
    assert any("CJK UNIFIED" in unicodedata.name(character, "") for character in text)
    assert any(ord(character) > 0x10000 for character in text)  # beyond the basic plane: byte fallback
    assert unicodedata.normalize("NFKC", text) != unicodedata.normalize("NFC", text) != text


def test_the_long_texts_cross_buffers_windows_and_contexts():
    """Prevents a long stratum that fits where short ones fit; a word is at least one token."""
    sizes = [len(item.prompt.split()) for item in stratum("long_context")]
    for edge in (64, 512, 1024, 2048):
        assert any(size < edge for size in sizes)
        assert any(size > edge for size in sizes)
    needles = [item for item in stratum("long_context") if item.judge is not None]
    assert len(needles) >= 6
    for item in needles:
        assert item.judge(item.prompt)


def test_most_strata_with_a_right_answer_have_judges():
    """Prevents quality from being claimed where nothing judges it."""
    for kind in ("json", "extraction"):
        assert sum(item.judge is not None for item in stratum(kind)) >= 8


def test_spec_bench():
    """Prevents a category from being lost, or a later turn from being asked without the answer before it."""
    items = read_workload(DATA / "spec_bench" / "mt_bench.jsonl")
    first = json.loads((DATA / "spec_bench" / "mt_bench.jsonl").read_text(encoding="utf-8").partition("\n")[0])
    assert items[0] == WorkItem("test", "writing", str(first["question_id"]), first["turns"][0])
    assert {"writing", "coding", "math"} <= {item.kind for item in items}


def test_human_eval():
    """Prevents the test or the solution of a problem from getting into its prompt."""
    items = read_workload(DATA / "humaneval" / "humaneval.jsonl")
    assert [(item.kind, item.name) for item in items] == [("code", f"HumanEval/{index}") for index in (0, 1, 3)]
    assert all(item.prompt.rstrip().endswith('"""') for item in items)


@pytest.fixture
def write(tmp_path):
    def write(content, name="mine.jsonl"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_plain_lines(write):
    """Prevents a default from standing for what a line says, and line numbers that leave out empty lines."""
    lines = [
        '{"prompt": "Hi"}',
        "",
        '{"prompt": "Wie?", "split": "tune", "kind": "x", "name": "n", "judge": {"contains": ["so"]}}',
        '{"prompt": "a\\u2028b"}',
        '{"prompt": "{text} End.", "text": {"words": 3, "seed": 0}}',
    ]
    first, second, third, fourth = read_workload(write("\ufeff" + "\r\n".join(lines)))
    assert first == WorkItem("test", "mine", "line 1", "Hi")
    assert second == WorkItem("tune", "x", "n", "Wie?", Judge(contains=["so"]))
    assert (third.name, third.prompt) == ("line 4", "a\u2028b")
    assert len(fourth.prompt.split()) == 4
    assert first.messages == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("prompt: Hi", "is not JSON"),
        ('{"prompt": "Hi"', "is not JSON"),
        ("[1]", "must be a JSON object (got list)"),
        ('{"question": "Hi"}', "has no 'prompt' (got the keys 'question')"),
        ("{}", "has no 'prompt' (got the keys none)"),
        ('{"prompt": ""}', "'prompt' must be a text that is not empty (got '')"),
        ('{"prompt": ["Hi"]}', "'prompt' must be a text that is not empty"),
        ('{"prompt": "Hi", "promt": "Hi"}', "unknown key 'promt'; allowed: judge, kind"),
        ('{"prompt": "Hi", "split": "train"}', "'split' must be one of test, tune (got 'train')"),
        ('{"prompt": "Hi", "judge": "yes"}', "'judge' must be an object"),
        ('{"prompt": "Hi", "judge": {}}', "exactly one of equals, contains, schema"),
        ('{"prompt": "Hi", "judge": {"like": "x"}}', "'like'"),
        ('{"prompt": "Hi", "judge": {"contains": "x"}}', "must be a list of texts"),
        ('{"prompt": "Hi", "text": {"words": 3, "seed": 0}}', "'prompt' must hold {text}"),
        ('{"prompt": "{text}", "text": {"words": 0, "seed": 0}}', "'words' must be an integer from 1 to"),
        ('{"prompt": "{text}", "text": {"words": 1000000000, "seed": 0}}', "'words' must be an integer from 1 to"),
        ('{"prompt": "a\\ud800"}', r"'prompt' must be Unicode text (got the unpaired surrogate '\ud800')"),
        ('{"prompt": "a", "name": "\\udc00"}', "'name' must be Unicode text"),
        ('{"question_id": "\\udc00", "category": "x", "turns": ["a"]}', "'question_id' must be Unicode text"),
        ('{"prompt": "a", "kind": "all strata"}', "'kind' must not be 'all strata'"),
        ('{"question_id": 1, "category": "all strata", "turns": ["a"]}', "'category' must not be 'all strata'"),
        ('{"prompt": "a", "judge": {"schema": {"type": "strin"}}}', "'judge': judge 'schema' is no JSON Schema: "),
        ('{"question_id": 1, "category": "x", "turns": []}', "'turns' must be a list of texts"),
        ('{"question_id": 1, "category": "x", "turns": [3]}', "'turns[0]' must be a text"),
        ('{"task_id": "x", "prompt": 3}', "'prompt' must be a text"),
    ],
)
def test_a_bad_line_is_told_with_its_place_and_rule(write, line, message):
    """Prevents a prompt from being dropped silently, and a search for the line that is meant."""
    with pytest.raises(InvalidWorkload) as caught:
        read_workload(write('{"prompt": "good"}\n\n' + line))
    assert str(caught.value).startswith("mine.jsonl, line 3: ")
    assert message in str(caught.value)


def test_a_prompt_that_stands_twice_is_told(write):
    """Prevents twins from passing for evidence: an interval over twice the same is too narrow."""
    path = str(write('{"prompt": "a"}\n{"prompt": "b"}\n{"prompt": "a", "kind": "x", "name": "again"}\n'))
    with pytest.raises(InvalidWorkload, match=r"^x 'again' has the prompt of mine 'line 1'; twice the same"):
        Corpus((path,)).items()
    with pytest.raises(InvalidWorkload, match="has the prompt of"):
        Corpus(("chat", "chat")).items()
    assert len(Corpus(("chat", "core"), None).items()) == len(Corpus(("core", "chat"), None).items()) > 20


def test_a_bad_file_is_told(write, tmp_path):
    """Prevents a traceback, or an empty run, for a file that is not there, not text, or empty."""
    for path, message in (
        (tmp_path / "nowhere.jsonl", "'nowhere.jsonl' cannot be read: No such file"),
        (tmp_path, "cannot be read"),
        (write(b"\xff\xfe\x00", "bad.jsonl"), "'bad.jsonl' is not UTF-8 text"),
        (write("\n \n"), "'mine.jsonl' holds no prompt"),
    ):
        with pytest.raises(InvalidWorkload, match=message):
            read_workload(path)
