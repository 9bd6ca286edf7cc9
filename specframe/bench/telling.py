"""How a benchmark tells what it does and what it found: on standard error, and as JSON on the output and in a file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specframe.files import write_whole


def teller() -> Callable[[str], None]:
    """Return what tells progress, a line with the seconds since now."""
    started = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - started:6.0f} s] {text}", file=sys.stderr, flush=True)

    return say


def tell(results: dict[str, Any], output: Path | None) -> None:
    """Print results, and store them if a file is given, whose folder is made if it is not there."""
    text = json.dumps(results, indent=2) + "\n"
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_whole(output, text)
    print(text)
