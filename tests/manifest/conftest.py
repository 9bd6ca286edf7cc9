"""Copies of a tiny model on disk, to be changed one property at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from folders import save_model


@pytest.fixture(autouse=True)
def cache_folder(tmp_path_factory, monkeypatch):
    """Keep what is computed once out of the user's cache, and out of the next test."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(folder))
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
