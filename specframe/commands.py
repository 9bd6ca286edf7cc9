"""What commands share: the options that several have, JSON and tables on the output, and how an error ends a command.

Knows no command. What needs a library is imported inside, so that ``--help`` waits for none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from specframe.errors import GenerationError, SpecframeError

if TYPE_CHECKING:
    from rich.console import Console

_JSON_ASKED = "specframe.json"
_WIDTH = 160  # of tables where nobody looks at a terminal


def _note_json(context: typer.Context, is_asked: bool) -> bool:
    context.meta[_JSON_ASKED] = is_asked  # an error is JSON too then
    return is_asked


def json_option(**facts: Any) -> Any:
    """Return the option ``--json`` of a command, whose errors are JSON too where it is given; ``facts`` as typer takes them."""
    return typer.Option("--json", help="Print one JSON object.", callback=_note_json, **facts)


AsJson = Annotated[bool, json_option()]

DrafterOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="D.NAME=VALUE",
        help="Set an option of drafter D, as prompt_lookup.max_ngram=4; may be given more than once.",
        show_default=False,
    ),
]


def is_json_asked(context: Any) -> bool:
    """Whether the command that runs was given ``--json``."""
    return bool(context.meta.get(_JSON_ASKED))


def print_json(record: Mapping[str, Any]) -> None:
    """Print a record as one JSON object; what JSON has no form for, such as a plugin's own values, as its text."""
    typer.echo(json.dumps(record, indent=2, ensure_ascii=False, default=str))


def table_console() -> Console:
    """Return the standard output for rich's tables, wide enough where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH
    return console


def fail(error: SpecframeError, *, as_json: bool, emitted: Mapping[str, Any] | None = None) -> NoReturn:
    """Tell an error and its notes, a line each, and exit with 2. ``emitted``: what was made before it, which is not lost."""
    notes = getattr(error, "__notes__", ())
    if as_json:
        if emitted is None and isinstance(error, GenerationError):
            emitted = {"text": error.text, "token_ids": error.token_ids}
        print_json({"error": str(error), "notes": list(notes), **(emitted or {})})
    for line in (f"error: {error}", *notes):
        typer.secho(line, err=True, fg=typer.colors.RED)
    raise typer.Exit(2)
