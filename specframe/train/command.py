"""``specframe train-draft``. Thin: reads options, calls ``train_draft`` and shows how far it is."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specframe.commands import AsJson

if TYPE_CHECKING:
    from specframe.train.run import Stage


def train_draft(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A folder, a GGUF file, a model id or 'demo'.")],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Where the draft goes; a run that ended goes on there."),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="First prompts, one a line or JSON lines with 'prompt'; synthetic if not given."
        ),
    ] = None,
    sealed: Annotated[
        Path | None, typer.Option(metavar="FILE", help="SHA-256 digests of prompts that are kept for evaluation.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="A draft of the same target, with these columns and no more layers, that training begins with.",
        ),
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers of the draft.")] = 2,
    columns: Annotated[int, typer.Option(help="Output ids of the draft; the commonest are chosen.")] = 8192,
    shards: Annotated[int, typer.Option(help="How much text the target writes: shards of 128 x 256 tokens.")] = 12,
    steps: Annotated[
        int | None, typer.Option(help="Training steps of 4 conversations; 4000 if neither these nor minutes are given.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training ends after so long, text not counted, or after the steps.")
    ] = None,
    rate: Annotated[float, typer.Option(help="The highest learning rate; take a lower one with --start.")] = 1.5e-3,
    dtype: Annotated[
        str,
        typer.Option(help="float32, or bfloat16 where the machine is faster in it; the draft is stored in bfloat16."),
    ] = "float32",
    seed: Annotated[int, typer.Option(help="Of the text and of the order of training.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Make a draft model for a target: the target writes text, and a small copy of it learns from that.

    Takes from minutes to hours and can be killed and run again. With --json, one JSON object a line, the receipt last.
    """
    from specframe.train.corpus import CorpusSettings
    from specframe.train.distil import DistilSettings
    from specframe.train.prompts import read_prompts, read_sealed, synthetic_prompts
    from specframe.train.run import TrainSettings
    from specframe.train.run import train_draft as run

    settings = TrainSettings(
        layers=layers,
        columns=columns,
        shards=shards,
        corpus=CorpusSettings(seed=seed, dtype=dtype),
        distil=DistilSettings(
            steps=DistilSettings().steps if steps is None and minutes is None else steps,
            minutes=minutes,
            rate=rate,
            seed=seed,
            dtype=dtype,
        ),
    )
    receipt = run(
        target,
        output,
        read_prompts(prompts) if prompts is not None else list(synthetic_prompts(seed)),
        settings,
        start=start,
        sealed=read_sealed(sealed) if sealed is not None else frozenset(),
        say=_Teller(as_json=as_json),
    )
    if as_json:
        typer.echo(json.dumps(receipt))
    else:
        result = receipt["result"]
        typer.echo(
            f"wrote {output}: held-out acceptance {result['held_out_acceptance']}, "
            f"on greedy answers {result['held_out_acceptance_greedy']}"
        )


class _Teller:
    """Says how far a run is, at most every ten seconds while text is written."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._told = as_json, 0.0

    def __call__(self, stage: Stage) -> None:
        now = time.monotonic()
        if stage.stage == "write" and now - self._told < 10:
            return
        self._told = now
        if self._as_json:
            typer.echo(
                json.dumps({"stage": stage.stage, "part": round(stage.part, 4), "told": stage.told, **stage.facts})
            )
        else:
            typer.secho(stage.told if stage.stage == "notice" else f"[{stage.part:4.0%}] {stage.told}", err=True)
