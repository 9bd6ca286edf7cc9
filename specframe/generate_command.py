"""``specframe generate``.

Thin: reads options, checks them before a model loads, and prints what the engine says. What it needs is imported inside it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specframe import receipt_commands
from specframe.commands import DrafterOptions, fail, json_option, print_json
from specframe.errors import GenerationError, InvalidRequest, SpecframeError

if TYPE_CHECKING:
    from specframe import CancelToken, Engine, Result
    from specframe.receipt_commands import Keeper

SAMPLING = "Sampling (every one is off unless given; without a temperature, greedy)"
GRAMMAR = "Grammar (at most one of the first four)"
OUTPUT = "Output"
INTERRUPTED = 130


def generate(
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The prompt; - reads standard input, less one final newline.")
    ],
    target: Annotated[str, typer.Option(help="The model: 'demo', a folder, a GGUF file or a model id.")] = "demo",
    strategy: Annotated[
        str, typer.Option(help="A shipped strategy or a drafter by name, or a TOML file; 'none' is plain decoding.")
    ] = "none",
    option: DrafterOptions = None,
    chat: Annotated[
        bool,
        typer.Option("--chat/--raw", help="Put the prompt through the model's chat template, or take it as it is."),
    ] = False,
    system: Annotated[str | None, typer.Option(help="A system message; needs --chat.")] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens to generate.")] = 256,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text; may be given more than once.", show_default=False)
    ] = None,
    n: Annotated[int, typer.Option("--n", help="How many generations of the prompt.")] = 1,
    dtype: Annotated[
        str | None, typer.Option(help="float32, bfloat16 or float16; the model's own if not given.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; where the model loads if not given.")] = None,
    kernel: Annotated[
        str | None,
        typer.Option(help="auto, single, block or block:W instead of the strategy's; see docs/kernels.md."),
    ] = None,
    no_prepack: Annotated[
        bool,
        typer.Option("--no-prepack", help="Run on torch's own products, not on packed weights; see docs/kernels.md."),
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let code that comes with the model run.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(rich_help_panel=SAMPLING, help="0 is greedy.")] = None,
    top_k: Annotated[int | None, typer.Option(rich_help_panel=SAMPLING, help="Keep the k likeliest ids.")] = None,
    top_p: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Keep the likeliest ids that reach this probability.")
    ] = None,
    min_p: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Drop ids below this part of the best probability.")
    ] = None,
    typical_p: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Keep typical ids that reach this probability.")
    ] = None,
    repetition_penalty: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Divide scores of ids seen, prompt included.")
    ] = None,
    presence_penalty: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Subtract from ids generated before.")
    ] = None,
    frequency_penalty: Annotated[
        float | None, typer.Option(rich_help_panel=SAMPLING, help="Subtract for each time an id was generated.")
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(rich_help_panel=SAMPLING, help="Let no run of so many ids occur twice.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=SAMPLING, help="Forbid the model's own end before so many tokens.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(rich_help_panel=SAMPLING, help="Repeats a run; a fresh one is drawn and shown.")
    ] = None,
    regex: Annotated[
        str | None, typer.Option(rich_help_panel=GRAMMAR, help="The output matches this regular expression.")
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=GRAMMAR, help="It is JSON of the schema in this file."),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel=GRAMMAR, help="It is this text; give it for each allowed one.", show_default=False
        ),
    ] = None,
    lark: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=GRAMMAR, help="It is of the Lark grammar in this file."),
    ] = None,
    grammar_tokenization: Annotated[
        str | None,
        typer.Option(rich_help_panel=GRAMMAR, help="Forced text in 'any' spelling, or only in its 'canonical' one."),
    ] = None,
    grammar_after: Annotated[
        str | None, typer.Option(rich_help_panel=GRAMMAR, help="The output is free up to this text.")
    ] = None,
    as_json: Annotated[bool, json_option(rich_help_panel=OUTPUT)] = False,
    log_probs: Annotated[
        bool, typer.Option("--log-probs", rich_help_panel=OUTPUT, help="Add each token's log-probability to the JSON.")
    ] = False,
    no_stream: Annotated[
        bool, typer.Option("--no-stream", rich_help_panel=OUTPUT, help="Print the text when it is complete.")
    ] = False,
    receipt: Annotated[
        Path | None,
        typer.Option(metavar="FILE", rich_help_panel=OUTPUT, help="Write what the run did here; no text is in it."),
    ] = None,
    coarse: Annotated[
        bool, typer.Option("--coarse", rich_help_panel=OUTPUT, help="Write the receipt's variant for sharing.")
    ] = False,
    replay: Annotated[
        Path | None, typer.Option(hidden=True, help="Repeat this receipt's run; by 'receipt replay'.")
    ] = None,
) -> None:
    """Generate text, with or without speculation; the text is the same.

    On a terminal the text comes as it is made. A line of statistics follows on standard error. Ctrl-C ends the text where it
    is, with status 130.
    """
    if system is not None and not chat:
        raise InvalidRequest("system", "needs a chat template", system, "add --chat")
    if log_probs and not as_json:
        raise InvalidRequest("log_probs", "are part of the JSON output", log_probs, "add --json")
    given = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical_p": typical_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "min_new_tokens": min_new_tokens,
        "seed": seed,
        "stop": stop or None,
        "regex": regex,
        "json_schema": _file("json_schema", json_schema),
        "choice": choice or None,
        "lark": _file("lark", lark),
        "grammar_tokenization": grammar_tokenization,
        "grammar_after": grammar_after,
    }
    arguments: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    arguments |= {"max_new_tokens": max_new_tokens, "log_probs": log_probs}

    # Whatever needs no model is checked before the libraries load that take seconds.
    from specframe.manifest.collector import check_dtype
    from specframe.request import integer, read_arguments
    from specframe.resolve import resolve_checked

    read_arguments(arguments)
    integer("n", n, 1)
    check_dtype(dtype)
    chosen, _ = resolve_checked(strategy, kernel=kernel, settings=option or ())
    keeper = receipt_commands.Keeper(receipt, is_coarse=coarse)
    if n != 1 and (keeper.is_wanted or replay is not None):
        raise InvalidRequest("n", "must be 1 with a receipt, which is of one generation", n, "leave --n out")
    first_run = receipt_commands.read(replay) if replay is not None else None
    prompt = _prompt(sys.stdin.read().removesuffix("\n") if text == "-" else text, system, is_chat=chat)

    import specframe

    engine = specframe.load(
        target,
        strategy=chosen,
        dtype=dtype,
        device=device,
        prepack=False if no_prepack else None,
        trust_remote_code=trust_remote_code,
    )
    if first_run is not None:
        receipt_commands.show_replay(engine.replay(first_run, prompt, **arguments), as_json=as_json)
        return
    with _ctrl_c_cancels() as token:
        arguments["cancel"] = token
        if as_json:
            _generate_json(engine, prompt, n, arguments, keeper)
        elif n == 1 and sys.stdout is not None and sys.stdout.isatty() and not no_stream:
            result = _stream_text(engine, prompt, arguments, keeper)
            _print_note(result)
            keeper.keep(result)
        else:
            _generate_text(engine, prompt, n, arguments, keeper)
    if token.is_cancelled:
        raise typer.Exit(INTERRUPTED)


def _prompt(text: str, system: str | None, *, is_chat: bool) -> str | list[dict[str, str]]:
    if not is_chat:
        return text
    opening = [{"role": "system", "content": system}] if system is not None else []
    return [*opening, {"role": "user", "content": text}]


def _file(name: str, path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InvalidRequest(name, f"must be a file that can be read ({error.strerror})", path.name) from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(name, f"must be a UTF-8 file ({error.reason})", path.name) from error


@contextmanager
def _ctrl_c_cancels() -> Iterator[CancelToken]:
    """Let the first Ctrl-C end the generation, so that what there is of it is shown, and another one the program."""
    from specframe import CancelToken

    token, before = CancelToken(), signal.getsignal(signal.SIGINT)
    if before in (None, signal.SIG_IGN):  # nobody of ours listens to it
        yield token
        return

    def cancel(*_: object) -> None:
        token.cancel()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, cancel)
    try:
        yield token
    finally:
        signal.signal(signal.SIGINT, before)


def _stream_text(engine: Engine, prompt: Any, arguments: Mapping[str, Any], keeper: Keeper) -> Result:
    try:
        return _read(engine, prompt, arguments, keeper, lambda text: typer.echo(text, nl=False))
    finally:
        typer.echo()  # whatever happens, what follows begins on a line of its own


def _read(
    engine: Engine, prompt: Any, arguments: Mapping[str, Any], keeper: Keeper, show: Callable[[str], None]
) -> Result:
    with engine.stream(prompt, **arguments) as stream:
        try:
            for piece in stream:
                show(piece.text)
        except SpecframeError as error:
            keeper.keep_failed(stream, error)
            raise
        return stream.result


def _results(engine: Engine, prompt: Any, n: int, arguments: Mapping[str, Any], keeper: Keeper) -> Sequence[Result]:
    if keeper.is_wanted:  # a stream has a receipt if it fails, too
        return [_read(engine, prompt, arguments, keeper, lambda text: None)]
    return engine.generate(prompt, n=n, **arguments)


def _generate_text(engine: Engine, prompt: Any, n: int, arguments: Mapping[str, Any], keeper: Keeper) -> None:
    try:
        results = _results(engine, prompt, n, arguments, keeper)
    except GenerationError as error:
        typer.echo(error.text)  # what was emitted is not lost
        raise
    for index, result in enumerate(results):
        if index and result.finish_reason == "cancelled" and not result.token_ids:
            break  # it and those after it had not begun
        if n > 1:
            typer.echo(f"--- {index + 1} of {n}", err=True)
        typer.echo(result.text)
        _print_note(result)
        keeper.keep(result)


def _generate_json(engine: Engine, prompt: Any, n: int, arguments: Mapping[str, Any], keeper: Keeper) -> None:
    results = _results(engine, prompt, n, arguments, keeper)
    records = [_result_record(result) for result in results]
    if n == 1:
        try:
            keeper.keep(results[0])
        except SpecframeError as error:
            fail(error, as_json=True, emitted=records[0])
    print_json({"results": records} if n > 1 else records[0])


def _result_record(result: Result) -> dict[str, Any]:
    from specframe import stats

    return {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop_match": result.stop_match,
        "seed": result.seed,
        "exactness": result.exactness,
        "kernel": result.kernel,
        "length_policy": result.length_policy,
        "log_probs": result.log_probs,
        "events": [event._asdict() for event in result.events],
        "stats": stats.plain(result.stats),
    }


def _print_note(result: Result) -> None:
    """Say on standard error what a reader of the text may want to know, in one line, and the events below it."""
    stats = result.stats
    parts = [f"{stats.num_tokens} tokens in {stats.total_s:.1f} s", f"{stats.tokens_per_call:.2f} per target call"]
    for name, drafter in stats.drafters.items():
        rate = drafter.acceptance
        parts.append(
            f"{name}: " + (f"{rate:.0%} of {drafter.num_evaluated} accepted" if rate is not None else "no proposals")
        )
    parts.append(result.exactness if result.kernel == "single" else f"{result.exactness} ({result.kernel})")
    if result.seed is not None:
        parts.append(f"seed {result.seed}")
    if result.finish_reason == "cancelled":
        parts.append("cancelled")
    typer.secho(f"[{', '.join(parts)}]", err=True, dim=True)
    for event in result.events:
        who = f"{event.drafter}: " if event.drafter else ""
        typer.secho(f"[round {event.round_id}: {who}{event.message}]", err=True, dim=True)
