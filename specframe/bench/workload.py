"""The prompts that benchmarks and exactness runs use. Written for specframe; Apache-2.0, as the code."""

from __future__ import annotations

import json
from importlib.resources import files

import attrs


@attrs.frozen
class WorkItem:
    """One prompt: ``split`` is ``test`` or ``tune`` (settings are chosen on ``tune`` only)."""

    split: str
    kind: str
    name: str
    prompt: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat of one user message."""
        return [{"role": "user", "content": self.prompt}]


def core_workload(split: str = "test") -> list[WorkItem]:
    """Return the prompts of the core: edit, quote, json and chat; 12 to test and 8 to tune."""
    lines = files("specframe.bench").joinpath("core.jsonl").read_text(encoding="utf-8").splitlines()
    return [item for item in (WorkItem(**json.loads(line)) for line in lines) if item.split == split]
