"""Running the rules: a target's manifest against what a drafter is and needs.

Pure, but for the strings of ids, which are asked for only to explain a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import attrs

from specframe.errors import IncompatibleManifest
from specframe.manifest.identity import Manifest
from specframe.manifest.rules import KINDS, RULES, Rule

Verdict = Literal["fits", "refuse", "slower", "note"]
Strings = Callable[[], Sequence[str | None] | None]
_NUM_LISTED = 3  # fields of a table that are shown
# What two tokenizers say; where one is missing, its absence is the only reason to tell.
_OF_TOKENIZERS = ("tokenizer.", "template.", "boundaries.prefix_ids", "boundaries.suffix_ids")
ORDER: tuple[Verdict, ...] = ("fits", "note", "slower", "refuse")


@attrs.frozen
class Finding:
    """What one rule found. ``target`` and ``draft``: the values, shortened; None where there is none."""

    rule: str
    verdict: Verdict
    target: str | None
    draft: str | None
    reason: str = ""
    remedy: str = ""


@attrs.frozen
class Report:
    """What all rules for a kind of drafter found, in the order of the rules."""

    kind: str
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict."""
        return max((finding.verdict for finding in self.findings), key=ORDER.index, default="fits")

    def of(self, verdict: Verdict) -> tuple[Finding, ...]:
        """Return the findings with a verdict."""
        return tuple(finding for finding in self.findings if finding.verdict == verdict)

    def require(self, who: str) -> None:
        """Raise ``IncompatibleManifest`` if a rule refuses; ``who`` names the drafter."""
        refusals = self.of("refuse")
        if refusals:
            first = refusals[0]
            error = IncompatibleManifest(
                f"{who} does not fit the target ({first.rule}): {first.reason} "
                f"target: {first.target}, draft: {first.draft}; {first.remedy}",
                findings=refusals,
            )
            for finding in refusals[1:]:
                error.add_note(f"also {finding.rule}: {finding.reason}")
            raise error


def check(
    target: Manifest,
    draft: Manifest | None,
    kind: str = "same",
    *,
    declared: Mapping[str, Any] | None = None,
    target_strings: Strings = lambda: None,
    draft_strings: Strings = lambda: None,
) -> Report:
    """Compare a target with a drafter of a kind.

    ``draft``: the manifest of the drafter's own model; ``declared``: further fields of the drafter, such as
    ``features.hidden_size``. The strings of ids are read only if vocabularies differ.
    """
    if kind not in KINDS:
        raise ValueError(f"'kind' must be one of {', '.join(KINDS)} (got {kind!r})")
    ours = target.flat()
    theirs = {**(draft.flat() if draft is not None else {}), **(declared or {})}
    findings = []
    is_known = True
    for rule in RULES:
        if kind in rule.kinds and (is_known or not rule.field.startswith(_OF_TOKENIZERS)):
            finding = _run(rule, ours, theirs)
            if finding.verdict != "fits" and rule.detail == "first_id":
                finding = _with_first_id(finding, ours, theirs, target_strings(), draft_strings())
            findings.append(finding)
            is_known = is_known and not (rule.name == "tokenizer-known" and finding.verdict == "refuse")
    return Report(kind, tuple(findings))


def _run(rule: Rule, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Finding:
    target, draft = _under(ours, rule.field), _under(theirs, rule.other)
    shown: list[str | None]
    if isinstance(target, dict) and isinstance(draft, dict):
        parted = [path for path in sorted(target.keys() | draft.keys()) if target.get(path) != draft.get(path)]
        shown = [_listed(side, parted) for side in (target, draft)]
    else:
        shown = [shorten(target), shorten(draft)]
    if _COMPARISONS[rule.compare](target, draft):
        return Finding(rule.name, "fits", _counted(target), _counted(draft))
    return Finding(rule.name, rule.severity, shown[0], shown[1], rule.reason, rule.remedy)


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "equal": lambda target, draft: target == draft,
    "alike": lambda target, draft: draft is None or target is None or target == draft,
    "differs": lambda target, draft: target is None or target != draft,
    "common": lambda target, draft: all(target[path] == draft[path] for path in {*(target or ())} & {*(draft or ())}),
    "known": lambda target, draft: draft is not None and target is not None,
    "has": lambda target, draft: draft is not None or target is None,
    "at_least": lambda target, draft: draft is None or target is None or draft >= target,
    "at_most": lambda target, draft: draft is None or target is None or draft <= target,
    "below": lambda target, draft: draft is None or target is None or draft < target,
    "absent": lambda target, draft: target is None,
    "lacks": lambda target, draft: draft is None,
    "true": lambda target, draft: draft is not False,
}


def _counted(value: Any) -> str | None:
    return f"{len(value)} fields" if isinstance(value, dict) and len(value) > _NUM_LISTED else shorten(value)


def _listed(table: Mapping[str, Any], paths: Sequence[str]) -> str:
    told = [f"{path} {shorten(table.get(path)) or '-'}" for path in paths[:_NUM_LISTED]]
    return ", ".join(told) + (f" and {len(paths) - _NUM_LISTED} more" if len(paths) > _NUM_LISTED else "")


def _under(fields: Mapping[str, Any], path: str) -> Any:
    """Return a field's value, the fields of a table, or None."""
    if path in fields:
        return fields[path]
    table = {key.removeprefix(f"{path}."): value for key, value in fields.items() if key.startswith(f"{path}.")}
    return table or None


def _with_first_id(
    finding: Finding,
    ours: Mapping[str, Any],
    theirs: Mapping[str, Any],
    target_strings: Sequence[str | None] | None,
    draft_strings: Sequence[str | None] | None,
) -> Finding:
    from specframe.manifest.tokens import first_block, first_difference

    sizes = [fields["tokenizer.size"] for fields in (ours, theirs)]
    if target_strings is not None and draft_strings is not None:
        token, target, draft = first_difference(target_strings, draft_strings)
        told = [
            f"id {token} is {_quoted(string)}, {size} ids" for string, size in zip((target, draft), sizes, strict=True)
        ]
    else:
        names = "tokenizer.vocabulary_blocks"
        block = first_block(ours[names], theirs[names])
        where = f"; the first difference is in ids {block[0]} to {block[1]}" if block is not None else ""
        told = [f"{size} ids{where}" for size in sizes]
    return attrs.evolve(finding, target=told[0], draft=told[1])


def _quoted(string: str | None) -> str:
    return "nothing" if string is None else repr(string)


def shorten(value: Any) -> str | None:
    """Return a value as a short text; of a digest the first hex digits."""
    if value is None:
        return None
    if isinstance(value, dict):
        return _listed(value, sorted(value))
    if isinstance(value, str):
        scheme, mark, digits = value.partition(":sha256:")
        return f"{scheme}:{digits[:12]}" if mark else value
    return str(value)
