"""The file of results: what is written is read, and what is no such file is refused."""

from __future__ import annotations

import errno
import json
import resource
import signal

import attrs
import pytest
from comparisons import made_rounds

from specframe import InvalidResults, ResultsNotWritten
from specframe.bench.lines import FORMAT, ArmRecord, ByteCounts, Header, Origin, RequestRecord, Rounds
from specframe.bench.results import ResultWriter, is_unbegun, read_results
from specframe.positions import PositionStats
from specframe.records import DrafterStats

HEADER = Header(
    "plan-v1:sha256:0", {"arms": {"a": {"strategy": None}}}, {"cores": "2"}, {"torch": "2"}, "not available"
)
ARM = ArmRecord("a", 1.5, 0, ByteCounts(1, {"target weights": 2}, 3, 4, 5, ("lookup",)))
PHASES = {
    "prefill": 0.9, "draft": 0.1, "verify": 0.1, "sync": 0.01, "decide": 0.02, "commit": 0.05, "emit": 0.03, "other": 0.04
}  # fmt: skip
SECONDS = {
    "draft_s": (0.0, 0.1),
    "forward_s": (0.9, 0.1),
    "sync_s": (0.01, 0.0),
    "decide_s": (0.01, 0.01),
    "commit_s": (0.0, 0.05),
    "emit_s": (0.03, 0.0),
}
POSITIONS = (PositionStats(1, 1, 1, 1, 1), PositionStats(1, 1, 1, 0, 0), PositionStats(1, 1, 0, 0, 0))
REQUEST = RequestRecord(
    arm="a",
    index=0,
    kind="chat",
    name="Grüße\u2028",
    repeat=0,
    session=1,
    order=2,
    num_prompt=7,
    seed=2**63,
    token_ids=(5, 6),
    pieces=("é", ""),
    text="é",
    finish_reason="stop",
    origins=("plain", "accepted:lookup"),
    judged=True,
    end_to_end_s=1.25,
    first_token_s=1,
    num_first=1,
    decode_s=0.25,
    phases=PHASES,
    num_target_calls=2,
    num_rounds=2,
    positions=POSITIONS,
    drafters={"lookup": DrafterStats(3, 2, 1, 0.5, POSITIONS, ((0.5, True), (0.25, False)))},
    rounds=Rounds((0, 3), (0, 1), (1, 1), **SECONDS),
    exactness="token-exact",
    kernel="single",
    length_policy="fixed",
    events=("drafter-failed: round 1, lookup: off",),
    peak_resident_bytes=2**33,
    energy_j=0.5,
)
FAILED = attrs.evolve(REQUEST, index=1, error="TargetError: no", end_to_end_s=None, phases={}, judged=None)


def written(path, *records):
    with ResultWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def test_results_are_read_as_they_were_written(tmp_path):
    """Prevents a field from being lost, or read as something else."""
    path = written(tmp_path / "r.jsonl", HEADER, ARM, REQUEST, FAILED)
    read = read_results(path)
    assert read.header == HEADER
    assert read.arms == {"a": ARM}
    assert read.requests == (REQUEST, FAILED)
    assert read.num_bytes == path.stat().st_size
    assert [json.loads(line)["line"] for line in path.read_text(encoding="utf-8").split("\n")[:-1]] == [
        "header",
        "arm",
        "request",
        "request",
    ]


def test_a_line_that_was_not_finished_is_left_out_and_then_cut_off(tmp_path):
    """Prevents half a line from being read, or from being glued to the next."""
    path = written(tmp_path / "r.jsonl", HEADER, REQUEST)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"line": "request", "arm"')
    read = read_results(path)
    assert read.requests == (REQUEST,)
    assert read.num_bytes == len(whole)
    with ResultWriter(path, num_bytes=read.num_bytes) as writer:
        writer.write(FAILED)
    assert read_results(path).requests == (REQUEST, FAILED)


def test_another_format_is_told(tmp_path):
    """Prevents a file of an older or newer specframe from being read by guess."""
    path = written(tmp_path / "r.jsonl", attrs.evolve(HEADER, format=FORMAT + 1))
    with pytest.raises(
        InvalidResults, match=r"'r.jsonl', line 1: has format 3; this specframe reads and writes 2; read"
    ):
        read_results(path)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 3: is not JSON"),
        ("[]", "line 3: must be an object whose 'line' is one of header, arm, request"),
        ('{"line": "end"}', "line 3: must be an object"),
        ('{"line": "arm"}', "line 3: key 'arm' is missing"),
        ('{"line": "arm", "arm": "b", "speed": 2}', "line 3: unknown key 'speed'"),
        ('{"line": "arm", "arm": "b", "target_load_s": "1"}', "must be of type float"),
        ('{"line": "arm", "arm": "a"}', "line 3: says again"),
        ('{"line": "header", "format": 2, "plan_digest": "", "plan": {}, "machine": {}, "versions": {}, "energy": ""}',
         "line 3: says again"),
    ],
)  # fmt: skip
def test_a_bad_line_is_told_with_its_number(tmp_path, line, told):
    """Prevents a damaged file from giving figures."""
    path = written(tmp_path / "r.jsonl", HEADER, ARM)
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(InvalidResults, match="results 'r.jsonl'.*" + told.replace("'", ".")):
        read_results(path)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"end_to_end_s": -1.0}, "'end_to_end_s' must be a number of seconds >= 0 (got -1.0)"),
        ({"decode_s": None}, "a request without an error must have its seconds"),
        ({"num_first": 3}, "'num_first' must be 0 to the number of tokens, 2 (got 3)"),
        ({"pieces": ("é",)}, "'pieces' must have an entry for each of 2 tokens, or none"),
        ({"text": "e"}, "'pieces' must make up 'text'"),
        ({"origins": ("plain",)}, "'origins' must have an entry for each of 2 tokens, or none"),
        ({"origins": ("plain", "stolen:lookup")}, "'origins' must hold plain, accepted, correction or extra"),
        ({"origins": ("plain", "extra")}, "'origins' must hold as many accepted tokens as 'positions' kept"),
        ({"rounds": made_rounds((0,), (0,), (1, 1))}, "the columns of 'rounds' must be equally long"),
        ({"rounds": made_rounds((3,), (1,), (2,), forward_s=(-1.0,))}, "'rounds' must hold numbers of seconds >= 0"),
        (
            {"token_ids": (5,), "num_first": 1, "pieces": (), "text": "", "origins": ()},
            "the rounds must have emitted all tokens",
        ),
        ({"rounds": Rounds((0, 4), (0, 1), (1, 1), **SECONDS)}, "the rounds must have proposed what"),
        ({"rounds": Rounds((0, 3), (0, 2), (1, 1), **SECONDS)}, "the rounds must have accepted what"),
        ({"end_to_end_s": 1.3}, "'phases' must make up 'end_to_end_s', 1.3 (got "),
        (
            {"phases": {**PHASES, "draft": 0.0, "verify": 0.2}},
            "'draft' of 'phases' must be the sum over the rounds, 0.1 (got 0.0)",
        ),
        ({"phases": {"prefill": 1.0}}, "'phases' must have prefill, draft, verify, sync, decide, commit, emit, other"),
        ({"positions": (PositionStats(1, 1, 1, 2, 2),)}, "the counts of 'positions[0]' must not exceed one another"),
        ({"positions": (*POSITIONS[:2], PositionStats(1, 1, 1, 0, 0))}, "the counts of 'positions[2]' must not exceed"),
        ({"drafters": {"lookup": DrafterStats(3, 3, 1, 0.5)}}, "'num_evaluated' of the drafters must make up that of"),
    ],
)
def test_a_line_whose_counters_contradict_one_another_is_refused(tmp_path, change, told):
    """Prevents a file that no run has written from giving figures (case L1: counters that break their identities)."""
    path = written(tmp_path / "r.jsonl", HEADER, attrs.evolve(REQUEST, **change))
    with pytest.raises(InvalidResults) as caught:
        read_results(path)
    assert str(caught.value).startswith(f"results 'r.jsonl', line 2: {told}")


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "1e999"])
def test_a_number_that_is_none_is_refused(tmp_path, constant):
    """Prevents a mean of nothing."""
    path = written(tmp_path / "r.jsonl", HEADER, REQUEST)
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"end_to_end_s": 1.25', f'"end_to_end_s": {constant}'), encoding="utf-8")
    with pytest.raises(InvalidResults, match=r"line 2: (is not JSON|'end_to_end_s' must be a number)"):
        read_results(path)
    path = written(tmp_path / "arm.jsonl", HEADER, attrs.evolve(ARM, bytes=ByteCounts(1, {}, 1, 0, 0)))
    with pytest.raises(InvalidResults, match=r"'bytes\.peak_resident' must be >= 1"):
        read_results(path)


def test_a_disk_that_fails_twice_is_one_readable_error(tmp_path):
    """Prevents the repair of a failed write from hiding why it failed."""

    class Failing:
        def __getattr__(self, name):
            def fail(*arguments):
                raise OSError(errno.EIO, "Input/output error")

            return fail

    with ResultWriter(tmp_path / "r.jsonl") as writer:
        file, writer._file = writer._file, Failing()
        with pytest.raises(ResultsNotWritten, match="cannot be written: Input/output error"):
            writer.write(HEADER)
        writer._file = file


def test_a_request_that_stands_twice_is_refused(tmp_path):
    """Prevents a request from being counted twice."""
    path = written(tmp_path / "r.jsonl", HEADER, REQUEST, attrs.evolve(REQUEST, session=2))
    with pytest.raises(InvalidResults, match="line 3: says again what an earlier line says"):
        read_results(path)


def test_what_is_no_file_of_results_is_told(tmp_path):
    """Prevents a traceback for a wrong path."""
    with pytest.raises(InvalidResults, match="'nothing' cannot be read: No such file"):
        read_results(tmp_path / "nothing")
    (tmp_path / "r").write_text('{"line": "arm", "arm": "a"}\n')
    with pytest.raises(InvalidResults, match="must begin with a line of the kind 'header'"):
        read_results(tmp_path / "r")


def test_only_what_is_left_of_a_header_counts_as_unbegun(tmp_path):
    """Prevents a file that is something else from being overwritten."""
    path = tmp_path / "r"
    line = written(tmp_path / "whole", HEADER).read_bytes()
    for content, expected in {b"": True, line[:5]: True, line[:-1]: True, line: False, b"notes": False}.items():
        path.write_bytes(content)
        assert is_unbegun(path) is expected


def test_a_full_disk_keeps_what_was_written(tmp_path):
    """Prevents half a line from staying, and says how to go on."""
    path = written(tmp_path / "r.jsonl", HEADER)
    size = path.stat().st_size
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ResultWriter(path, num_bytes=size) as writer:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limit[1]))
        try:
            with pytest.raises(ResultsNotWritten, match="cannot be written: File too large; what is finished"):
                writer.write(REQUEST)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, handler)
        assert path.stat().st_size == size
        writer.write(REQUEST)
    assert read_results(path).requests == (REQUEST,)
    with pytest.raises(ResultsNotWritten, match="cannot be written: Is a directory"):
        ResultWriter(tmp_path)


def test_an_origin_is_spelled_and_read():
    """Prevents a drafter's name from being lost."""
    for origin in (Origin("plain"), Origin("accepted", "draft_model#2"), Origin("correction", "a:b")):
        assert Origin.parse(str(origin)) == origin
