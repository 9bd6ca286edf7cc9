"""Gates: what a strategy must show in order to be promoted, and what speaks for deleting it. Data, and one rule over it.

Knows numbers by name only. The report's own table of gates is lost; the defaults follow from its "Minimum adoption conditions"
and "Clean deletion criteria", and each says why its number is what it is. They are to be fixed before results exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

QUIET = 0.02  # how far from 1 an A/A control may be
NOISE = 0.05  # what nobody should take for a gain
PROMOTE, KEEP, DELETE = "promote", "keep experimental", "delete"


@attrs.frozen
class Gate:
    """A bound on one metric; ``otherwise`` is the verdict where it does not hold.

    A metric that was not measured leaves the verdict open: it is no reason to delete, and none to promote. Where
    ``is_optional``, a machine that cannot measure it does without. Raises ``ValueError``.
    """

    metric: str
    otherwise: str = attrs.field(kw_only=True, validator=attrs.validators.in_((KEEP, DELETE)))
    reason: str = attrs.field(kw_only=True)
    at_least: float | None = None
    at_most: float | None = None
    is_optional: bool = False

    def __attrs_post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"'metric' must be one of {', '.join(METRICS)} (got {self.metric!r})")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"gate '{self.metric}' must have one of at_least and at_most")

    def holds(self, value: float) -> bool:
        """Tell whether a value keeps the bound; NaN never does."""
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None
        return value <= self.at_most

    @property
    def bound(self) -> str:
        """The bound as text."""
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


METRICS = {
    "matched": "share of requests whose tokens are plain decoding's",
    "distribution": "1 where the certificate of exactness passes, else 0",
    "failures": "requests that ended with an error where plain decoding's did not",
    "speed": "median of per-request times, plain decoding's over the arm's, end to end",
    "speed_low": "lower end of the 95 % confidence interval of `speed`",
    "speed_p10": "the per-request ratio that nine requests in ten exceed",
    "conversation_speed": "`speed` over the conversational strata",
    "peak_bytes": "peak resident bytes over plain decoding's",
    "energy": "energy per token over plain decoding's",
    "break_even": "least output for which the draft pays (N_min) over the median output; of gains beyond the noise alone",
    "control": "how far from 1 `speed` is for the A/A control, which is plain decoding once more",
}
"""What each metric is. Ratios are to plain decoding of the same target by the same engine."""

TIMED = frozenset(("speed", "speed_low", "speed_p10", "conversation_speed", "energy", "break_even"))
"""Metrics that mean nothing where the control is off."""

DEFAULT_GATES = (
    Gate(
        "matched",
        at_least=1.0,
        otherwise=DELETE,
        reason="greedy and coupled decoding promise plain decoding's text: zero mismatches, stop positions included",
        is_optional=True,  # sampling under residual verification gives other texts of the same law
    ),
    Gate("distribution", at_least=1.0, otherwise=DELETE, reason="a biased sampler is no accelerator"),
    Gate("failures", at_most=0.0, otherwise=DELETE, reason="rollback and cancellation must be reliable"),
    Gate(
        "speed",
        at_least=0.97,
        otherwise=DELETE,
        reason="the control of a quiet run is within 0.02 of 1, so below 0.97 in the median is a loss, not noise",
    ),
    Gate(
        "peak_bytes",
        at_most=2.0,
        otherwise=DELETE,
        reason="twice the memory of plain decoding would hold a second target: that is no draft",
    ),
    Gate(
        "energy",
        at_most=1.0,
        otherwise=DELETE,
        reason="more energy per token needs a benefit that somebody accepted for it",
        is_optional=True,
    ),
    Gate(
        "break_even",
        at_most=1.0,
        otherwise=DELETE,
        reason="loading and prefilling a draft must be paid back by an ordinary output",
        is_optional=True,
    ),
    Gate(
        "speed_low",
        at_least=1 + NOISE,
        otherwise=KEEP,
        reason="a gain that noise explains is none, and 5 % is more than twice what a control may show",
    ),
    Gate(
        "speed_p10",
        at_least=0.9,
        otherwise=KEEP,
        reason="a median hides requests that become slower; one in ten may, by a tenth",
    ),
    Gate(
        "conversation_speed",
        at_least=0.97,
        otherwise=KEEP,
        reason="gains from repetition must not be paid for in conversation",
    ),
    Gate(
        "control",
        at_most=QUIET,
        otherwise=KEEP,
        reason="an arm that differs from itself tells that the machine was not quiet; then no time decides anything",
    ),
)


def default_gates(*, is_greedy: bool) -> tuple[Gate, ...]:
    """Return the default gates for a plan; greedy decoding says nothing about the law of samples, and asks for nothing."""
    return tuple(gate for gate in DEFAULT_GATES if not (is_greedy and gate.metric == "distribution"))


@attrs.frozen
class Verdict:
    """A decision, and a reason for each gate that did not hold or could not be asked.

    ``is_quiet``: False where the A/A control is off, so that what was timed neither promotes nor deletes.
    """

    decision: str
    reasons: tuple[str, ...]
    is_quiet: bool = True


def decide(metrics: Mapping[str, float | None], gates: Sequence[Gate] = DEFAULT_GATES) -> Verdict:
    """Return the verdict over metrics by name; None, or no entry, is a metric that was not measured."""
    decision, reasons, is_quiet = PROMOTE, [], is_quiet_by(gates, metrics.get("control"))
    for gate in gates:
        value = metrics.get(gate.metric)
        if value is None:
            if not gate.is_optional:
                reasons.append(f"{gate.metric} was not measured ({gate.reason})")
                decision = KEEP if decision == PROMOTE else decision
        elif not gate.holds(value):
            reasons.append(f"{gate.metric} is {value:.4g}, must be {gate.bound} ({gate.reason})")
            otherwise = gate.otherwise if is_quiet or gate.metric not in TIMED else KEEP
            decision = DELETE if DELETE in (decision, otherwise) else KEEP
    return Verdict(decision, tuple(reasons), is_quiet)


def is_quiet_by(gates: Sequence[Gate], control: float | None) -> bool:
    """Tell whether gates let a control be so far from 1; those that do not ask for it let it be anywhere."""
    return control is None or all(gate.holds(control) for gate in gates if gate.metric == "control")


def as_data(gates: Sequence[Gate]) -> list[dict[str, Any]]:
    """Return gates as plain data, for a plan."""
    return [attrs.asdict(gate) for gate in gates]
