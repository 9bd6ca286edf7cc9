"""Tiny models on disk, and what changes their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import save_model as save_model  # the folders that are changed here


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file in place; ``change`` may return a new value."""
    data = json.loads(file.read_text(encoding="utf-8"))
    changed = change(data)
    file.write_text(json.dumps(data if changed is None else changed), encoding="utf-8")
