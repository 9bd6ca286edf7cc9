"""A certificate: what was run on a drafter, what came of each check, and what that shows. Plain data; runs nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs

SCHEMA, VERSION = "specframe.certificate", 1
Status = Literal["passed", "failed", "noted", "skipped"]


@attrs.frozen
class Check:
    """One check and what came of it.

    ``status``: ``passed``; ``failed``; ``noted``, for what is reported and not demanded; or ``skipped``, with the reason in
    ``told``, a sentence. ``figures``: sizes, counts and deviations by name; ``p_values``: of each statistical test its
    p-value, the one adjusted over all tests of the certificate, and the number of values; ``seconds``: what it took.
    """

    name: str
    status: Status
    told: str
    figures: Mapping[str, Any] = attrs.field(factory=dict)
    p_values: Mapping[str, Mapping[str, float]] = attrs.field(factory=dict)
    seconds: float = 0.0


@attrs.frozen
class Certificate:
    """What is known of a drafter or a strategy after its certification.

    ``about``: what was certified (strategy, plugins, target, kernel); ``plan``: what was to be run, stated before; ``versions``
    by library; ``manifests``: digests of the models that took part; ``classes``: the exactness class of each way to verify
    that was shown; ``made``: the time in UTC.
    """

    subject: str
    about: Mapping[str, Any]
    plan: Mapping[str, Any]
    versions: Mapping[str, str]
    manifests: Mapping[str, str]
    classes: Mapping[str, str]
    checks: tuple[Check, ...]
    made: str
    seconds: float

    @property
    def is_certified(self) -> bool:
        """Whether something was shown and nothing failed."""
        statuses = {check.status for check in self.checks}
        return "passed" in statuses and "failed" not in statuses

    @property
    def verdict(self) -> str:
        """``certified`` or ``not certified``."""
        return "certified" if self.is_certified else "not certified"

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def missing(self) -> tuple[str, ...]:
        """What was not shown, and why."""
        return tuple(f"{check.name}: {check.told}" for check in self.checks if check.status == "skipped")

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        counts = {
            status: sum(check.status == status for check in self.checks) for status in ("passed", "failed", "skipped")
        }
        if self.failures:
            names = ", ".join(check.name for check in self.failures)
            return f"{self.subject} is not certified: {counts['failed']} of {len(self.checks)} checks failed ({names})."
        if not self.is_certified:
            return f"{self.subject} is not certified: nothing could be shown ({'; '.join(self.missing) or 'nothing was run'})."
        classes = "; ".join(f"{name}: {kind}" for name, kind in self.classes.items())
        rest = f" {counts['skipped']} could not be run." if counts["skipped"] else ""
        return f"{self.subject} is certified ({classes}). {counts['passed']} checks passed.{rest}"

    def to_plain(self) -> dict[str, Any]:
        """Return plain data that JSON can hold; a number that is not finite is spelled as text."""
        record = {"schema": SCHEMA, "version": VERSION, "verdict": self.verdict, "sentence": self.sentence}
        fields = attrs.asdict(self, recurse=True)
        told: dict[str, Any] = plain({**record, **fields, "missing": self.missing})
        return told

    def to_json(self) -> str:
        """Return the certificate as JSON text."""
        return json.dumps(self.to_plain(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """Return plain data that JSON can hold; a number that is not finite is spelled as text."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
