"""``specframe receipt show`` and ``replay``.

Thin: reads a receipt, calls the package and formats. What a command needs is imported inside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specframe.commands import AsJson

if TYPE_CHECKING:
    from specframe.errors import SpecframeError
    from specframe.receipt import Receipt
    from specframe.replay import Difference, Replay
    from specframe.stream import Result, Stream

app = typer.Typer(no_args_is_help=True, help="Show what a generation did, or repeat it, from its receipt.")

File = Annotated[Path, typer.Argument(metavar="FILE", help="A receipt, as 'generate --receipt' writes it.")]


class Keeper:
    """Where the receipt of a generation goes: into ``file``, or nowhere. A file that cannot be written is told at once."""

    def __init__(self, file: Path | None, *, is_coarse: bool) -> None:
        from specframe.errors import InvalidRequest
        from specframe.files import check_writable

        self._file, self._is_coarse = file, is_coarse
        if is_coarse and file is None:
            raise InvalidRequest("coarse", "is about a receipt", is_coarse, "give --receipt FILE")
        if file is not None:
            check_writable(file, field="receipt")

    @property
    def is_wanted(self) -> bool:
        """Whether a receipt is to be written."""
        return self._file is not None

    def keep(self, run: Result | Stream) -> None:
        """Write the receipt of a run."""
        if self._file is not None:
            receipt = run.receipt
            (receipt.coarse() if self._is_coarse else receipt).write(self._file)

    def keep_failed(self, run: Stream, failure: SpecframeError) -> None:
        """Write the receipt of a run that failed; where it cannot be written, the failure says so."""
        from specframe.errors import SpecframeError

        try:
            self.keep(run)
        except SpecframeError as error:
            failure.add_note(f"there is no receipt of it: {error}")


def read(file: Path) -> Receipt:
    """Read a receipt that is to be replayed; one that cannot be costs no load."""
    from specframe.receipt import Receipt
    from specframe.replay import replayed_seed

    receipt = Receipt.read(file)
    replayed_seed(receipt)
    return receipt


@app.command()
def show(
    file: File,
    coarse: Annotated[
        bool, typer.Option("--coarse", help="Show the variant for sharing; with --json it is a receipt too.")
    ] = False,
    rounds: Annotated[bool, typer.Option("--rounds", help="Show every round.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a receipt. The file is checked as a whole."""
    from specframe.receipt import Receipt

    receipt = Receipt.read(file)
    receipt = receipt.coarse() if coarse else receipt
    if as_json:
        typer.echo(receipt.to_json(), nl=False)
        return
    for line in _lines(receipt):
        typer.echo(line)
    for line in _rounds(receipt) if rounds else ():
        typer.echo(line)


@app.command(context_settings={"allow_extra_args": True, "allow_interspersed_args": False})
def replay(context: typer.Context, file: File) -> None:
    """Repeat a run from its receipt: FILE, then the text and options that 'specframe generate' was given.

    Says whether the run repeats itself round by round, or where it first differs. Exit status: 0 if it does, 1 if it
    differs, 2 for an error. --json among the options prints one JSON object.
    """
    commands: Any = context.find_root().command
    generate = commands.get_command(context, "generate")
    arguments = [*context.args, "--replay", str(file)]
    with generate.make_context("specframe receipt replay FILE", arguments, parent=context) as asked:
        generate.invoke(asked)


def show_replay(found: Replay, *, as_json: bool) -> None:
    """Print what came of a replay; exits with 1 where the run differs."""
    if as_json:
        typer.echo(json.dumps(_replay_record(found), indent=2))
    elif found.is_same:
        typer.echo(f"the run repeats itself: {_count(len(found.receipt.rounds), 'round')}, and the output is the same")
    else:
        for name, difference in _told(found):
            typer.echo(f"{name}: {_sentence(difference)}")
    for difference in found.circumstances if not as_json else ():
        typer.secho(f"[{_sentence(difference)}]", err=True, dim=True)
    if not found.is_same:
        raise typer.Exit(1)


def _told(found: Replay) -> Iterator[tuple[str, Difference]]:
    yield from (("inputs", difference) for difference in found.inputs)
    if found.rounds is not None:
        yield f"first difference, in round {found.rounds.round_id}", found.rounds
    yield from (("outcome", difference) for difference in found.outcome)


def _sentence(difference: Difference) -> str:
    from specframe.manifest.report import shorten

    return f"{difference.field} was {shorten(difference.then)}, now it is {shorten(difference.now)}"


def _replay_record(found: Replay) -> dict[str, Any]:
    def plain(difference: Difference) -> dict[str, Any]:
        return {**difference._asdict(), "then": _plain(difference.then), "now": _plain(difference.now)}

    return {
        "is_same": found.is_same,
        "first": plain(found.first) if found.first is not None else None,
        "inputs": [plain(difference) for difference in found.inputs],
        "rounds": plain(found.rounds) if found.rounds is not None else None,
        "outcome": [plain(difference) for difference in found.outcome],
        "circumstances": [plain(difference) for difference in found.circumstances],
        "num_rounds": len(found.receipt.rounds),
    }


def _lines(receipt: Receipt) -> Iterator[str]:
    """Give a receipt as lines: what ran, what was asked, how it went."""
    from specframe.manifest.report import shorten

    stats, timing = receipt.stats, receipt.timing
    kind = "coarse receipt" if receipt.is_coarse else "receipt"
    yield f"{kind}, version {receipt.receipt_version}, nonce {receipt.request_nonce}"
    yield from _table("digests", {name: shorten(text) for name, text in _plain(receipt.hashes).items()})
    yield from _table("drafters", {name: shorten(text) for name, text in receipt.drafters.items()})
    yield from _table("machine", {**receipt.hardware, **receipt.runtime})
    yield from _table(
        "run",
        {
            "seed": _seed(receipt),
            "prompt": _count(receipt.num_prompt, "token"),
            "most": _count(receipt.max_new_tokens, "token"),
            "output": f"{_count(stats.num_tokens, 'token')}, {receipt.finish_reason}",
            **({"failure": receipt.failure} if receipt.failure is not None else {}),
            "exactness": f"{receipt.exactness} ({receipt.kernel})",
            "lengths": receipt.length_policy,
            "least margin": stats.min_margin if stats.min_margin is not None else "none",
            "rounded corrections": stats.num_rounding,
        },
    )
    yield from _table(
        "calls",
        {
            "target": stats.num_target_calls,
            "drafters": receipt.num_draft_calls,
            "proposals": f"{receipt.num_proposals} of {_count(stats.num_rounds, 'round')}",
            "proposed": f"{stats.num_proposed} tokens, {stats.num_accepted} accepted",
            "accepted in a proposal": _histogram(receipt.accepted_counts, 0),
            "rejected at token": _histogram(receipt.rejection_positions, 1),
        },
    )
    yield from _table(
        "seconds",
        {
            "cold": f"prefill {timing.prefill_s:.4g}, first round {_number(timing.first_round_s)}",
            f"warm ({_count(timing.num_warm, 'round')})": f"mean {_number(timing.warm_mean_s)}, median "
            f"{_number(timing.warm_median_s)}, 90 % below {_number(timing.warm_p90_s)}",
            "phases": ", ".join(f"{name} {seconds:.4g}" for name, seconds in stats.seconds.items()),
        },
    )
    memory = receipt.memory
    sizes = {
        **memory.parts,
        "once each": memory.deduplicated,
        "of drafters": memory.incremental,
        "process": memory.process,
    }
    told = {name: f"{size / 2**20:,.1f} MiB" for name, size in sizes.items()}
    yield from _table("memory", {**told, **dict.fromkeys(memory.unknown, "not told")})
    events = [
        f"round {event.round_id}: {event.code}" + (f" ({event.drafter})" if event.drafter else "")
        for event in receipt.events
    ]
    yield from _table("events", dict.fromkeys(events, "") or {"none": ""})


def _rounds(receipt: Receipt) -> Iterator[str]:
    """Give a line for each round: what each drafter was allowed, proposed and saw accepted, and the seconds."""
    yield "rounds"
    for round in receipt.rounds:
        shares = ", ".join(
            f"{share.drafter} {share.num_accepted} of {share.num_proposed} (k {share.limit})" for share in round.shares
        )
        seconds = sum((round.draft_s, round.forward_s, round.sync_s, round.decide_s, round.commit_s, round.emit_s))
        yield f"  {round.round_id:4}  {round.num_emitted:3} emitted  {seconds:.4g} s  {shares}".rstrip()


def _table(title: str, rows: Mapping[str, Any]) -> Iterator[str]:
    yield title
    width = max(map(len, rows), default=0)
    yield from (f"  {name:{width}}  {value}".rstrip() for name, value in rows.items())


def _seed(receipt: Receipt) -> str:
    from specframe.manifest.report import shorten

    seed = receipt.seed
    told = str(seed.value) if seed.value is not None else shorten(seed.commitment) or "none (greedy)"
    return told if not seed.sample else f"{told}, generation {seed.sample + 1} of it"


def _histogram(counts: Sequence[int], first: int) -> str:
    return ", ".join(f"{index}: {count}" for index, count in enumerate(counts, start=first)) or "none"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _plain(value: Any) -> Any:
    import attrs

    return attrs.asdict(value) if attrs.has(type(value)) else value
