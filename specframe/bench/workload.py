"""The prompts that benchmarks and exactness runs use, and readers for the formats that others use.

The shipped prompts were written for specframe; Apache-2.0, as the code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import attrs

from specframe.bench.judges import Judge
from specframe.bench.texts import make_text
from specframe.errors import InvalidWorkload

STRATA = (
    "chat",
    "ambiguous",
    "source_conflict",
    "current_preference",
    "memory_distrust",
    "summary",
    "rewrite",
    "json",
    "extraction",
    "code",
    "repetitive",
    "multilingual",
    "long_context",
    "adversarial",
)
"""The workload strata of the report; each has prompts to test and to tune."""

CONVERSATIONAL = ("chat", "ambiguous", "source_conflict", "current_preference", "memory_distrust")
"""The strata in which somebody talks; what is gained by copying must not be paid for there."""

CORE, ALL = "core", "all strata"
"""The name of the core's prompts as a source, and what all strata together are called, so that none of them may be."""

SPLITS = ("test", "tune")

_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")


@attrs.frozen
class WorkItem:
    """One prompt: ``split`` is ``test`` or ``tune`` (settings are chosen on ``tune`` only).

    ``judge`` tells whether an answer is right, where that can be told at all; else an answer is as good as plain decoding's
    if it is the same.
    """

    split: str
    kind: str
    name: str
    prompt: str
    judge: Judge | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat of one user message."""
        return [{"role": "user", "content": self.prompt}]


@attrs.frozen
class Corpus:
    """Which prompts a comparison takes: of each source, in order, those of one ``split``, or of both where it is None.

    ``sources``: strata by name, ``core`` for the prompts of the core, and files; ``limit``: at most so many of a kind, None
    for all.
    """

    sources: tuple[str, ...] = STRATA
    split: str | None = "test"
    limit: int | None = None

    def items(self) -> list[WorkItem]:
        """Return the prompts.

        Raises ``InvalidWorkload`` for an unknown source, a bad file, a prompt that stands twice, or where none is left.
        """
        found: dict[str, WorkItem] = {}
        num_of_kind: Counter[str] = Counter()
        for item in (item for source in self.sources for item in _source(source)):
            if self.split not in (None, item.split) or num_of_kind[item.kind] == self.limit:
                continue
            if (twin := found.get(item.prompt)) is not None:
                raise InvalidWorkload(
                    f"{item.kind} '{item.name}' has the prompt of {twin.kind} '{twin.name}'; twice the same is no further "
                    "evidence: leave one out, and measure more often by repeats"
                )
            num_of_kind[item.kind] += 1
            found[item.prompt] = item
        if not found:
            raise InvalidWorkload(f"no prompt of the split '{self.split}' is in {', '.join(self.sources) or 'nothing'}")
        return list(found.values())


def is_shipped(source: str) -> bool:
    """Whether a source of a corpus is one of the core's own, and no file."""
    return source in STRATA or source == CORE


def _source(source: str) -> list[WorkItem]:
    if source in STRATA:
        return stratum(source)
    if source == CORE:
        return _shipped("core.jsonl", CORE)
    if not Path(source).exists():
        raise InvalidWorkload(
            f"workload '{source}' is neither a stratum nor a file; the strata are {', '.join(STRATA)}, and {CORE}"
        )
    return read_workload(source)


def core_workload(split: str = "test") -> list[WorkItem]:
    """Return the prompts of the core: edit, quote, json and chat; 12 to test and 8 to tune."""
    return [item for item in _shipped("core.jsonl", CORE) if item.split == split]


def stratum(kind: str, split: str | None = None) -> list[WorkItem]:
    """Return the shipped prompts of a stratum, at least eight to test and four to tune."""
    items = _shipped(f"workloads/{kind}.jsonl", kind)
    return [item for item in items if split in (None, item.split)]


def read_workload(path: str | Path) -> list[WorkItem]:
    """Read prompts from JSON lines, one object a line; lines of different forms may stand in one file.

    - Spec-Bench: ``question_id``, ``category``, ``turns``, of which the first is taken, for the others depend on its answer.
    - HumanEval: ``task_id``, ``prompt``, which is code to go on with.
    - Plain: ``prompt``, and optionally ``split``, ``kind``, ``name``, ``judge`` (see ``judges.py``) and ``text`` (see
      ``texts.py``).

    Raises ``InvalidWorkload`` naming file, line and rule.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidWorkload(f"workload file '{path.name}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidWorkload(f"workload file '{path.name}' is not UTF-8 text") from error
    items = read_lines(text.split("\n"), path.name, path.stem)
    if not items:
        raise InvalidWorkload(f"workload file '{path.name}' holds no prompt")
    return items


def read_lines(lines: Iterable[str], where: str, kind: str) -> list[WorkItem]:
    """Return the prompts of JSON lines; empty lines count, but hold nothing. ``kind``: of plain lines that name none."""
    items = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            items.append(_read_line(line, number, kind))
        except _BadLine as error:
            raise InvalidWorkload(f"{where}, line {number}: {error}") from error
    return items


class _BadLine(ValueError):
    """What is wrong with a line."""


def _shipped(name: str, kind: str) -> list[WorkItem]:
    text = files("specframe.bench").joinpath(name).read_text(encoding="utf-8")
    return read_lines(text.split("\n"), name, kind)


def _read_line(line: str, number: int, kind: str) -> WorkItem:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadLine(f"is not JSON ({error})") from None
    if not isinstance(record, dict):
        raise _BadLine(f"must be a JSON object (got {type(record).__name__})")
    for marks, read in _FORMATS:
        if marks <= record.keys():
            return read(record, number, kind)
    raise _BadLine(f"has no 'prompt' (got the keys {', '.join(map(repr, record)) or 'none'})")


def _read_spec_bench(record: Mapping[str, Any], number: int, kind: str) -> WorkItem:
    turns = record["turns"]
    if not isinstance(turns, list) or not turns:
        raise _BadLine(f"'turns' must be a list of texts with at least one (got {turns!r})")
    name = _checked(str(record["question_id"]), "question_id")
    return WorkItem("test", _kind(record, "category"), name, _checked(turns[0], "turns[0]"))


def _read_human_eval(record: Mapping[str, Any], number: int, kind: str) -> WorkItem:
    return WorkItem("test", "code", _text(record, "task_id"), _text(record, "prompt"))


def _read_plain(record: Mapping[str, Any], number: int, kind: str) -> WorkItem:
    known = {"split", "kind", "name", "prompt", "judge", "text"}
    if unknown := record.keys() - known:
        raise _BadLine(f"unknown key '{min(unknown)}'; allowed: {', '.join(sorted(known))}")
    values = {"split": "test", "kind": kind, "name": f"line {number}", **record}
    split = _text(values, "split")
    if split not in SPLITS:
        raise _BadLine(f"'split' must be one of {', '.join(SPLITS)} (got {split!r})")
    prompt = _text(values, "prompt")
    long_text = _made(make_text, record, "text")
    if long_text is not None:
        if "{text}" not in prompt:
            raise _BadLine("'prompt' must hold {text}, where the text goes")
        prompt = prompt.replace("{text}", long_text)
    return WorkItem(split, _kind(values, "kind"), _text(values, "name"), prompt, _made(Judge, record, "judge"))


def _made(make: Callable[..., T], record: Mapping[str, Any], key: str) -> T | None:
    """Return what ``make`` makes of the object at a key, None where there is none."""
    arguments = record.get(key)
    if arguments is None:
        return None
    if not isinstance(arguments, dict):
        raise _BadLine(f"'{key}' must be an object (got {arguments!r})")
    try:
        return make(**arguments)
    except (TypeError, ValueError) as error:
        raise _BadLine(f"'{key}': {error}") from error


_FORMATS: tuple[tuple[frozenset[str], Callable[[Mapping[str, Any], int, str], WorkItem]], ...] = (
    (frozenset({"question_id", "category", "turns"}), _read_spec_bench),
    (frozenset({"task_id", "prompt"}), _read_human_eval),
    (frozenset({"prompt"}), _read_plain),
)


def _text(record: Mapping[str, Any], key: str) -> str:
    return _checked(record[key], key)


def _kind(record: Mapping[str, Any], key: str) -> str:
    kind = _text(record, key)
    if kind == ALL:
        raise _BadLine(f"'{key}' must not be '{ALL}', which is what all of them together are called")
    return kind


def _checked(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _BadLine(f"'{key}' must be a text that is not empty (got {value!r})")
    if surrogate := _SURROGATE.search(value):
        raise _BadLine(f"'{key}' must be Unicode text (got the unpaired surrogate {surrogate[0]!r})")
    return value
