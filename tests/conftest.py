"""The suite's options, markers and surroundings."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import hypothesis
import pytest

# A busy machine is slow, not wrong.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# Before anything imports transformers: no test may wait for a network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SPECFRAME_DISABLE_PLUGINS", None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run whole exactness runs and tests marked slow")
    parser.addoption(
        "--results", type=Path, metavar="PATH", help="store the numbers of exactness runs in this JSON file"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    skip = pytest.mark.skip(reason="a long run: only with --full")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give torch one thread, but all of them where the real model runs: tiny models only lose by waiting for threads."""
    if torch := sys.modules.get("torch"):
        is_real = item.get_closest_marker("real_model") is not None
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)) if is_real else 1)
