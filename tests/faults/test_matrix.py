"""The whole fault matrix: whatever breaks, what was emitted is a prefix, the cause is named, and the next request is as new."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matrix import CASES, Case
from scenes import EARLY, SAMPLINGS, Row, Scene, Seen, emitted, names_its_cause, sees

from specframe import (
    GenerationError,
    IncompatibleManifest,
    Receipt,
    Result,
    SpecframeError,
    StreamNotFinished,
    TargetError,
    TransformersTarget,
)

STORED = Path(__file__).parents[2] / "docs" / "results" / "failures.json"


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[dict[str, dict[str, Any]]]:
    """Collect what cases gave, by part and fault; stored where results are."""
    found: dict[str, dict[str, Any]] = {}
    yield found
    path = request.config.getoption("--results")
    if path is not None and sum(map(len, found.values())) == len(CASES):
        path.with_name(STORED.name).write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def stored() -> dict[str, dict[str, Any]]:
    return json.loads(STORED.read_text(encoding="utf-8")) if STORED.is_file() else {}


@pytest.fixture(autouse=True)
def cache_folder(tmp_path, monkeypatch):
    """Keep what is computed once out of the user's cache."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path))


@pytest.fixture(autouse=True)
def equal_machines(monkeypatch):
    """Let adaptive lengths begin with the same costs on every engine; measured on a busy machine they differ."""
    monkeypatch.setattr(TransformersTarget, "row_costs", lambda target: (1.0, 1.1, 1.2))


@pytest.fixture(autouse=True)
def ctrl_c():
    """Listen to Ctrl-C as a program at a terminal does; one that was started in the background is told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_whatever_breaks_output_is_a_prefix_and_the_next_request_is_as_new(case, rows, stored, request):
    """Prevents lost, repeated and different text, and what one request's failure leaves for the next."""
    found = [
        [happen(case, Scene(kind, sampling), place) for place in case.places]
        for kind in case.kinds
        for sampling in list(SAMPLINGS.values())[: 1 if kind == "transformers" else 2]  # the target knows no sampling
    ]
    row = {name: " or ".join(dict.fromkeys(getattr(one, name) for one in found[0])) for name in Row._fields}
    rows.setdefault(case.part, {})[case.fault] = row
    if request.config.getoption("--results") is None:
        assert row == stored[case.part][case.fault], "not what is documented; store it with --results"


def happen(case: Case, scene: Scene, place: Any) -> Row:
    """Let a fault happen, and return what came of it. Every rule of the matrix is asserted here."""
    with scene.closing:
        case.put(scene, place)
        engine = scene.engine()
        seen, full = scene.observe(engine), scene.full
        assert all(fault.num_calls > fault.at_call for fault in scene.faults), "the fault did not happen"
        assert seen.ids == full.token_ids[: len(seen.ids)]
        if seen.error is not None:
            assert_told(seen, full, case.cause)
        elif seen.result is not None:
            assert_result(seen, full, case.cause)
        assert_receipt(scene, seen)
        if scene.is_spoilt:
            with pytest.raises(TargetError, match=case.cause):
                scene.again(engine)
            return Row(sees(seen), emitted(seen, full), "fails too")
        scene.settle(engine)
        assert scene.again(engine) == scene.again(scene.afresh())
        return Row(sees(seen), emitted(seen, full), "as new")


def assert_told(seen: Seen, full: Result, cause: str) -> None:
    """Assert that an error names its cause, and carries what was emitted if it is specframe's own."""
    assert names_its_cause(seen.error, cause), seen.error
    if seen.ids and isinstance(seen.error, SpecframeError) and not seen.is_beside:
        assert isinstance(seen.error, GenerationError)
        assert seen.error.token_ids == seen.ids
        assert full.text.startswith(seen.error.text)


def assert_receipt(scene: Scene, seen: Seen) -> None:
    """Assert that a run has a receipt however it ended, of as many tokens as its reader got."""
    if scene.stream is None:  # nobody holds it any more
        return
    try:
        receipt = scene.stream.receipt
    except StreamNotFinished:
        assert not seen.ids  # nothing was begun
        return
    except IncompatibleManifest:  # the files that it would tell of are other ones now
        return
    assert Receipt.from_json(receipt.to_json()) == receipt
    assert receipt.stats.num_tokens == len(seen.ids) or seen.is_beside
    has_failed = seen.error is not None and not seen.is_beside
    assert (receipt.failure is not None) == (receipt.finish_reason == "failed") == has_failed


def assert_result(seen: Seen, full: Result, cause: str | None) -> None:
    """Assert that a result is the fault-free one, or its beginning if it was cancelled, and that events name the cause."""
    result = seen.result
    assert result.token_ids == seen.ids
    assert result.text.startswith(seen.text)
    if result.finish_reason in EARLY:
        assert full.text.startswith(result.text)
    else:
        found, expected = ((one.token_ids, one.text, one.finish_reason, one.stop_match) for one in (result, full))
        assert found == expected
    assert cause not in ("KeyboardInterrupt", "SystemExit")  # which are the user's, and end the request
    messages = [event.message for event in result.events]
    assert any(cause in message for message in messages) if cause is not None else not messages, messages
