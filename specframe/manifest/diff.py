"""Comparing two manifests field by field, and pinning a run to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from specframe.errors import IncompatibleManifest
from specframe.manifest.identity import Manifest
from specframe.manifest.report import shorten

# Told by another field, or no part of the identity.
_NOT_COMPARED = ("license", "tokenizer.vocabulary_blocks", "tokenizer.digest")
# A manifest that leaves these out pins none, and a manifest without weights was made before they were read.
_OPTIONAL = ("decoding.sampling", "decoding.grammar")
WEIGHED = ("weights.digest", "weights.num_tensors", "weights.num_bytes")


class Difference(NamedTuple):
    """A field by dotted path in which two manifests differ; None where one has no such field."""

    field: str
    ours: Any
    theirs: Any


def compare(ours: Manifest, theirs: Manifest) -> list[Difference]:
    """Return the fields in which two manifests differ, sorted; the licence is no part of the identity."""
    first, second = ours.flat(), theirs.flat()
    return [
        Difference(path, first.get(path), second.get(path))
        for path in sorted(first.keys() | second.keys())
        if path not in _NOT_COMPARED and first.get(path) != second.get(path)
    ]


def require_equal(pinned: Manifest, run: Manifest, *, name: str, leave_out: Sequence[str] = ()) -> None:
    """Raise ``IncompatibleManifest``, field by field, unless a run's identity is the pinned one.

    ``name`` names the pinned manifest; ``leave_out``: fields that are checked elsewhere. Weights are compared if both
    manifests have them, sampling and grammar if both state them.
    """
    skipped = {*leave_out}
    for paths in (WEIGHED, _OPTIONAL):
        first, second = pinned.flat(), run.flat()
        skipped |= {path for path in paths if path not in first or path not in second}
    differences = [difference for difference in compare(pinned, run) if difference.field not in skipped]
    if differences:
        lines = [
            f"{path}: pinned {shorten(ours) or 'none'}, this run has {shorten(theirs) or 'none'}"
            for path, ours, theirs in differences
        ]
        error = IncompatibleManifest(
            f"the run is not the one that manifest '{name}' pins: {lines[0]}; use the pinned model and settings, or make "
            "the manifest again with 'specframe manifest create'",
            findings=differences,
        )
        for line in lines[1:]:
            error.add_note(f"also {line}")
        raise error
