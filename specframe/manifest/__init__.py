"""Identity and compatibility: which target, under which decoding identity, and which drafters fit it.

Re-exports only, each on first use: importing this package loads no model library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specframe.manifest.collector import collect, of_target
    from specframe.manifest.diff import Difference, compare, require_equal
    from specframe.manifest.digest import COVERS, grammar_digest, sampling_digest
    from specframe.manifest.file import dumps, loads, read, write
    from specframe.manifest.identity import Manifest
    from specframe.manifest.report import Finding, Report, check
    from specframe.manifest.rules import RULES, Rule
    from specframe.manifest.source import Source, open_source

_LAZY = {
    "COVERS": "digest",
    "Difference": "diff",
    "Finding": "report",
    "Manifest": "identity",
    "RULES": "rules",
    "Report": "report",
    "Rule": "rules",
    "Source": "source",
    "check": "report",
    "collect": "collector",
    "compare": "diff",
    "dumps": "file",
    "grammar_digest": "digest",
    "loads": "file",
    "of_target": "collector",
    "open_source": "source",
    "read": "file",
    "require_equal": "diff",
    "sampling_digest": "digest",
    "write": "file",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'specframe.manifest' has no attribute '{name}'")
    value = getattr(import_module(f"specframe.manifest.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


__all__ = [
    "COVERS",
    "RULES",
    "Difference",
    "Finding",
    "Manifest",
    "Report",
    "Rule",
    "Source",
    "check",
    "collect",
    "compare",
    "dumps",
    "grammar_digest",
    "loads",
    "of_target",
    "open_source",
    "read",
    "require_equal",
    "sampling_digest",
    "write",
]
