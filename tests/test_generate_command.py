"""``specframe generate``: what it passes on, what it prints, and how it fails."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import CommandLine, run_alone

import specframe
from specframe import DrafterUse, Strategy, stats
from specframe.errors import GenerationError
from specframe.positions import PositionStats
from specframe.records import DrafterStats, Event, Stats

SEED = 2**62 + 1


STATS = Stats(
    num_rounds=4,
    num_target_calls=4,
    num_tokens=8,
    min_margin=0.5,
    num_rounding=0,
    drafters={"lookup": DrafterStats(8, 6, 4, 0.001, (PositionStats(2, 2, 2, 1, 1),)), "idle": DrafterStats()},
    seconds={"prefill": 0.5, "verify": 1.0},
)


RESULT = SimpleNamespace(
    text="Grüße\n",
    token_ids=(5, 6, 7),
    finish_reason="stop",
    stop_match=7,
    seed=SEED,
    exactness="token-exact",
    kernel="single",
    length_policy="adaptive/1",
    log_probs=(-0.5, -0.25, -1.0),
    stats=STATS,
    events=(Event(3, "lookup", "switched off: ValueError"),),
)


class FakeStream:
    """Two pieces, then what ``then`` does."""

    def __init__(self, then: Callable[[], None]) -> None:
        self.then, self.is_closed, self.result = then, False, RESULT

    def __iter__(self) -> Iterator[Any]:
        yield SimpleNamespace(text="Grü")
        yield SimpleNamespace(text="ße\n")
        self.then()

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_closed = True


class FakeEngine:
    """Remembers how it was loaded and called; ``then`` runs before a result is handed out."""

    def __init__(self) -> None:
        self.loaded: dict[str, Any] = {}
        self.prompt: Any = None
        self.arguments: dict[str, Any] = {}
        self.then: Callable[[], None] = lambda: None
        self.streams: list[FakeStream] = []
        self.results: list[Any] = []

    def load(self, model: str, **arguments: Any) -> FakeEngine:
        self.loaded = {"model": model, **arguments}
        return self

    def take(self, prompt: Any, arguments: dict[str, Any]) -> None:
        self.prompt, self.arguments = prompt, arguments
        self.cancel = arguments.pop("cancel")

    def generate(self, prompt: Any, *, n: int, **arguments: Any) -> Any:
        self.take(prompt, arguments)
        self.then()
        return self.results or [RESULT] * n

    def stream(self, prompt: Any, **arguments: Any) -> FakeStream:
        self.take(prompt, arguments)
        self.streams.append(FakeStream(self.then))
        return self.streams[-1]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setitem(vars(specframe), "load", fake.load)
    return fake


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def sigint() -> Iterator[Any]:
    """The handler of Ctrl-C as a program in the foreground has it; where the suite runs in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_only_what_was_given_is_passed_on(run: CommandLine, engine: FakeEngine) -> None:
    """No sampling value is implied: the engine's own defaults hold."""
    run("generate", "Hello")

    assert (engine.loaded.pop("trust_remote_code"), engine.loaded.pop("prepack")) == (False, None)
    assert engine.loaded == {"model": "demo", "strategy": Strategy(), "dtype": None, "device": None}
    assert engine.prompt == "Hello"
    assert engine.arguments == {"max_new_tokens": 256, "log_probs": False}


def test_every_option_reaches_the_engine(run: CommandLine, engine: FakeEngine, tmp_path: Path) -> None:
    """Options carry the names of the Python API."""
    (tmp_path / "mine.toml").write_text('kernel = "single"\n[[drafters]]\nuse = "prompt_lookup"\n')
    sampling: dict[str, int | float] = {
        "temperature": 0.7,
        "top_k": 40,
        "top_p": 0.9,
        "min_p": 0.05,
        "typical_p": 0.95,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 2,
        "seed": 7,
    }
    words = [word for name, value in sampling.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    strategy = (
        "--strategy",
        str(tmp_path / "mine.toml"),
        "--option",
        "prompt_lookup.max_ngram=3",
        "--kernel",
        "block:8",
    )
    where = ("--target", "some/folder", "--dtype", "bfloat16", "--no-prepack", *strategy)
    rest = ("--max-new-tokens", "16", "--stop", "END", "--stop", "\n\n", "--json", "--log-probs", "--trust-remote-code")

    assert run("generate", "Hello", *words, *where, *rest).code == 0
    expected = Strategy("mine", kernel="block:8", drafters=(DrafterUse("prompt_lookup", {"max_ngram": 3}),))
    assert (engine.loaded.pop("trust_remote_code"), engine.loaded.pop("prepack")) == (True, False)
    assert engine.loaded == {"model": "some/folder", "strategy": expected, "dtype": "bfloat16", "device": None}
    assert engine.arguments == {**sampling, "stop": ["END", "\n\n"], "max_new_tokens": 16, "log_probs": True}


def test_chat_makes_messages(run: CommandLine, engine: FakeEngine) -> None:
    """The system message comes first."""
    run("generate", "Hi", "--chat", "--system", "Be brief.")

    assert engine.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


def test_a_dash_reads_standard_input(run: CommandLine, engine: FakeEngine) -> None:
    """One final newline, which echo and editors add, is not part of the prompt."""
    run("generate", "-", stdin="first\n\nsecond \n\n")

    assert engine.prompt == "first\n\nsecond \n"


def test_text_goes_to_stdout_and_the_note_to_stderr(run: CommandLine, engine: FakeEngine) -> None:
    """A pipe gets the text and nothing else."""
    outcome = run("generate", "Hi")

    assert outcome.out == "Grüße\n\n"
    assert outcome.err.splitlines() == [
        "[8 tokens in 1.5 s, 2.00 per target call, lookup: 67% of 6 accepted, idle: no proposals, "
        f"token-exact, seed {SEED}]",
        "[round 3: lookup: switched off: ValueError]",
    ]
    assert not engine.streams


def test_a_terminal_gets_the_pieces(run: CommandLine, engine: FakeEngine) -> None:
    """Streamed and complete text are the same."""
    streamed = run("generate", "Hi", terminal=True)
    complete = run("generate", "Hi", "--no-stream", terminal=True)

    assert streamed == complete
    assert [stream.is_closed for stream in engine.streams] == [True]


def test_json_is_one_object(run: CommandLine, engine: FakeEngine) -> None:
    """Everything of the result is in it, and nothing else is printed."""
    outcome = run("generate", "Hi", "--json", terminal=True)
    record = json.loads(outcome.out)

    assert outcome.err == ""
    assert record["text"] == "Grüße\n"
    assert record["token_ids"] == [5, 6, 7]
    assert (record["finish_reason"], record["stop_match"]) == ("stop", 7)
    assert (record["seed"], record["exactness"]) == (SEED, "token-exact")
    assert record["log_probs"] == [-0.5, -0.25, -1.0]
    assert record["events"] == [
        {"round_id": 3, "drafter": "lookup", "message": "switched off: ValueError", "code": "other"}
    ]
    assert record["length_policy"] == "adaptive/1"
    assert record["stats"] == stats.plain(STATS)
    assert record["stats"]["drafters"]["lookup"]["positions"][0]["num_rejected"] == 1
    assert record["stats"]["tokens_per_call"] == 2.0
    assert record["stats"]["drafters"]["lookup"]["acceptance"] == 4 / 6
    assert record["stats"]["drafters"]["idle"]["acceptance"] is None


def test_several_generations_are_a_list(run: CommandLine, engine: FakeEngine) -> None:
    """JSON holds them under 'results'; text shows them one after another, never streamed."""
    record = json.loads(run("generate", "Hi", "--n", "3", "--json").out)
    text = run("generate", "Hi", "--n", "3", terminal=True)

    assert [result["text"] for result in record["results"]] == ["Grüße\n"] * 3
    assert text.out == "Grüße\n\n" * 3
    assert "--- 3 of 3" in text.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--system", "x"), "'system' needs a chat template (got 'x'); add --chat"),
        (("--log-probs",), "'log_probs' are part of the JSON output (got True); add --json"),
        (("--top-p", "1.5"), "'top_p' must be > 0 and <= 1 (got 1.5)"),
        (("--max-new-tokens", "-1"), "'max_new_tokens' must be an integer >= 0 (got -1)"),
        (("--n", "0"), "'n' must be an integer >= 1 (got 0)"),
        (("--stop", ""), "'stop' must hold non-empty strings (got ('',))"),
        (("--dtype", "int8"), "'dtype' must be one of float32, float64, bfloat16, float16 (got 'int8')"),
        (("--kernel", "blok"), "'kernel' must be auto, single, block, or block:W with 2 to 64 rows (got 'blok')"),
        (
            ("--strategy", "promt_lookup"),
            "unknown strategy 'promt_lookup'; did you mean 'prompt_lookup'? installed: draft_model, grammar, none, "
            "prompt_lookup, prompt_lookup_block",
        ),
        (
            ("--strategy", "prompt_lookup", "--option", "prompt_lookup.max_ngram=many"),
            "options of drafter 'prompt_lookup': 'max_ngram' must be of type int (got 'many')",
        ),
    ],
)
def test_a_slip_is_told_before_loading(
    run: CommandLine, engine: FakeEngine, arguments: tuple[str, ...], message: str
) -> None:
    """Such a mistake costs no load."""
    assert run("generate", "Hi", *arguments) == (2, "", f"error: {message}\n")
    assert engine.loaded == {}


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "Hi", "--strategy", "prompt_lookup", "--top-p", "1.5"),
        ("generate", "Hi", "--strategy", "grammar", "--option", "prompt_lookup.max_ngram=x"),
        ("certify", "prompt_lookup", "--option", "prompt_lookup.max_ngram=x"),
    ],
)
def test_a_slip_costs_no_imports(arguments: tuple[str, ...]) -> None:
    """Torch and transformers take seconds to import, and none of their code is needed to see a slip."""
    code, _, modules = run_alone(*arguments)
    assert code == 2
    assert {"torch", "transformers"}.isdisjoint(modules)
    assert "specframe" in modules


def test_wrong_usage_is_status_2(run: CommandLine, engine: FakeEngine) -> None:
    """A value of the wrong type never reaches the engine."""
    outcome = run("generate", "Hi", "--top-k", "many")

    assert outcome.code == 2
    assert "--top-k" in outcome.err
    assert engine.loaded == {}


@pytest.mark.parametrize(
    ("arguments", "is_terminal", "shown"),
    [((), True, "Grüße\n\n"), ((), False, "Grüße\n\n"), (("--json",), False, '"text": "Grüße\\n"')],
    ids=["streamed", "text", "json"],
)
def test_what_was_emitted_before_a_failure_is_shown(
    run: CommandLine, engine: FakeEngine, arguments: tuple[str, ...], is_terminal: bool, shown: str
) -> None:
    """The error comes after the text, never instead of it."""

    def fail() -> None:
        raise GenerationError("generation ended early: no memory", token_ids=(5, 6), text="Grüße\n")

    engine.then = fail
    outcome = run("generate", "Hi", *arguments, terminal=is_terminal)

    assert outcome.code == 2
    assert shown in outcome.out
    assert outcome.err.startswith("error: generation ended early: no memory (2 tokens were emitted before")


def test_ctrl_c_ends_cleanly(run: CommandLine, engine: FakeEngine) -> None:
    """The stream is closed, the line is ended, the status is 130."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    engine.then = interrupt

    assert run("generate", "Hi", terminal=True) == (130, "Grüße\n\n", "")
    assert engine.streams[0].is_closed


@pytest.mark.parametrize(
    ("arguments", "is_terminal", "shown"),
    [((), True, "Grüße\n\n"), ((), False, "Grüße\n\n"), (("--json",), False, '"text": "Grüße\\n"')],
    ids=["streamed", "text", "json"],
)
def test_ctrl_c_shows_the_text_so_far(
    run: CommandLine,
    engine: FakeEngine,
    sigint: Any,
    arguments: tuple[str, ...],
    is_terminal: bool,
    shown: str,
) -> None:
    """The signal cancels the generation, whose result is printed; the status says that somebody interrupted it."""
    engine.then = lambda: signal.raise_signal(signal.SIGINT)
    outcome = run("generate", "Hi", *arguments, terminal=is_terminal)

    assert outcome.code == 130
    assert shown in outcome.out
    assert engine.cancel.is_cancelled
    assert signal.getsignal(signal.SIGINT) is sigint


def test_a_second_ctrl_c_does_not_wait_for_the_round(run: CommandLine, engine: FakeEngine, sigint: Any) -> None:
    """A target that hangs must not keep a person from leaving."""

    def press_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    engine.then = press_twice

    assert run("generate", "Hi") == (130, "", "")


def test_ctrl_c_that_is_ignored_stays_so(run: CommandLine, engine: FakeEngine, sigint: Any) -> None:
    """A program in the background of a script ignores the terminal's signals, and must go on doing so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    engine.then = lambda: signal.raise_signal(signal.SIGINT)

    assert run("generate", "Hi").code == 0
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_generations_that_ctrl_c_left_out_are_not_shown(run: CommandLine, engine: FakeEngine) -> None:
    """Of several generations the text shows those that began, the JSON all."""
    begun = SimpleNamespace(**{**vars(RESULT), "finish_reason": "cancelled"})
    unbegun = SimpleNamespace(**{**vars(begun), "text": "", "token_ids": ()})
    engine.results = [RESULT, begun, unbegun]
    outcome = run("generate", "Hi", "--n", "3")

    assert outcome.out == "Grüße\n\n" * 2
    assert "cancelled]" in outcome.err
    assert len(json.loads(run("generate", "Hi", "--n", "3", "--json").out)["results"]) == 3


@pytest.mark.real_model
def test_the_demo_target_says_the_same_with_a_drafter(run: CommandLine) -> None:
    """The whole way, twice: plain, and with prompt lookup from standard input."""
    prompt = "one two three four one two three four one two"
    plain = json.loads(run("generate", prompt, "--json", "--max-new-tokens", "24").out)
    drafted = json.loads(
        run("generate", "-", "--strategy", "prompt_lookup", "--json", "--max-new-tokens", "24", stdin=prompt).out
    )

    assert plain["text"] == drafted["text"]
    assert plain["token_ids"] == drafted["token_ids"]
    assert drafted["stats"]["drafters"]["prompt_lookup"]["num_accepted"] > 0


def test_grammars_reach_the_engine(run: CommandLine, engine: FakeEngine, tmp_path: Path) -> None:
    """Sources from the line and from files; what is not given is not passed."""
    (tmp_path / "schema.json").write_text('{"type": "integer"}', encoding="utf-8-sig")
    (tmp_path / "rules.lark").write_text("start: /é/", encoding="utf-8")
    cases = {
        ("--regex", r"\d+", "--grammar-tokenization", "canonical"): {
            "regex": r"\d+",
            "grammar_tokenization": "canonical",
        },
        ("--json-schema", str(tmp_path / "schema.json")): {"json_schema": '{"type": "integer"}'},
        ("--lark", str(tmp_path / "rules.lark")): {"lark": "start: /é/"},
        ("--choice", "yes", "--choice", "no", "--grammar-after", "So:"): {
            "choice": ["yes", "no"],
            "grammar_after": "So:",
        },
    }
    for arguments, expected in cases.items():
        assert run("generate", "Hi", *arguments).code == 0
        assert engine.arguments == {"max_new_tokens": 256, "log_probs": False, **expected}


@pytest.mark.parametrize(
    ("content", "message"), [(None, "must be a file that can be read"), (b"\xff", "must be a UTF-8 file")]
)
def test_grammar_files_that_cannot_be_read_are_told(
    run: CommandLine, engine: FakeEngine, tmp_path: Path, content: bytes | None, message: str
) -> None:
    """One line, before any model is loaded."""
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    outcome = run("generate", "Hi", "--json-schema", str(path))
    assert outcome.code == 2
    assert engine.loaded == {}
    assert f"error: 'json_schema' {message}" in outcome.err
