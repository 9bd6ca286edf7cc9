"""Tiny models on disk, to be changed one property at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import CHAT_TEMPLATE, tiny_model

from specframe.testing import byte_tokenizer


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Keep what is computed once out of the user's cache, and out of the next test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(folder))
    return folder


def save_model(folder: Path, **options: Any) -> Path:
    """Save a tiny model with the byte tokenizer, a chat template and two end-of-sequence ids."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    arguments = {"vocab_size": len(tokenizer), "dtype": torch.float32, **ids, **options}
    tiny_model(**arguments).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def _original(tmp_path_factory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "original")


@pytest.fixture
def copy_of(tmp_path, _original) -> Callable[[str], Path]:
    """Return what makes a folder with a copy of the tiny model."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(_original, tmp_path / name))

    return copy


def edit(file: Path, change: Callable[[Any], Any]) -> None:
    """Change a JSON file in place; ``change`` may return a new value."""
    data = json.loads(file.read_text(encoding="utf-8"))
    changed = change(data)
    file.write_text(json.dumps(data if changed is None else changed), encoding="utf-8")
