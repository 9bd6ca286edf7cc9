"""Tiny models on disk, and what changes their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from models import CHAT_TEMPLATE, tiny_model

from specframe.testing import byte_tokenizer


def save_model(folder: Path, **options: Any) -> Path:
    """Save a tiny model with the byte tokenizer, a chat template and two end-of-sequence ids."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    arguments = {"vocab_size": len(tokenizer), "dtype": torch.float32, **ids, **options}
    tiny_model(**arguments).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file in place; ``change`` may return a new value."""
    data = json.loads(file.read_text(encoding="utf-8"))
    changed = change(data)
    file.write_text(json.dumps(data if changed is None else changed), encoding="utf-8")
