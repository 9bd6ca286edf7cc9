"""Gates: which figures promote, which delete, and what is left open."""

from __future__ import annotations

import math

import pytest

from specframe.bench.gates import DEFAULT_GATES, DELETE, KEEP, METRICS, PROMOTE, TIMED, Gate, decide

GOOD = {
    "matched": 1.0,
    "distribution": 1.0,
    "failures": 0.0,
    "speed": 1.4,
    "speed_low": 1.3,
    "speed_p10": 1.0,
    "conversation_speed": 1.0,
    "peak_bytes": 1.2,
    "energy": 0.9,
    "break_even": 0.2,
    "control": 0.01,
}


def test_good_figures_promote():
    """Prevents a gate that nothing can pass."""
    assert decide(GOOD) == decide({**GOOD, "speed": 9.0})
    assert decide(GOOD).decision == PROMOTE
    assert decide(GOOD).reasons == ()
    assert GOOD.keys() == METRICS.keys() == {gate.metric for gate in DEFAULT_GATES}


@pytest.mark.parametrize(
    ("metric", "bad", "decision"),
    [
        ("matched", 0.999, DELETE),
        ("distribution", 0.0, DELETE),
        ("failures", 1.0, DELETE),
        ("speed", 0.96, DELETE),
        ("peak_bytes", 2.1, DELETE),
        ("energy", 1.01, DELETE),
        ("break_even", math.inf, DELETE),
        ("speed_low", 1.04, KEEP),
        ("speed_p10", 0.89, KEEP),
        ("conversation_speed", 0.96, KEEP),
        ("speed_low", math.nan, KEEP),
        ("matched", math.nan, DELETE),
        ("control", 0.021, KEEP),
    ],
)
def test_one_bad_figure_decides_and_is_named(metric, bad, decision):
    """Prevents a good mean from outweighing what must not happen, and a verdict without its reason."""
    verdict = decide({**GOOD, metric: bad})
    assert verdict.decision == decision
    (reason,) = verdict.reasons
    assert reason.startswith(f"{metric} is ")
    assert "must be" in reason


def test_reasons_to_delete_outweigh_reasons_to_wait():
    """Prevents the last gate from deciding."""
    for order in (DEFAULT_GATES, tuple(reversed(DEFAULT_GATES))):
        verdict = decide({**GOOD, "speed": 0.5, "speed_low": 0.4, "speed_p10": 0.1}, order)
        assert verdict.decision == DELETE
        assert len(verdict.reasons) == 3


def test_what_was_not_measured_promotes_nothing_and_deletes_nothing():
    """Prevents a machine without an energy counter from failing, and one without a measurement from passing."""
    assert decide({**GOOD, "energy": None, "break_even": None}).decision == PROMOTE
    for metric in ("failures", "speed", "speed_low"):
        verdict = decide({**GOOD, metric: None})
        assert verdict.decision == KEEP
        assert verdict.reasons[0].startswith(f"{metric} was not measured")
    assert decide({}).decision == KEEP
    assert decide({"speed": 0.5}).decision == DELETE


@pytest.mark.parametrize("metric", sorted(TIMED))
def test_a_machine_that_was_not_quiet_promotes_nothing_and_deletes_nothing(metric):
    """Times of a disturbed machine: a gain or a loss that plain decoding shows against itself says nothing of an arm."""
    bad = 9.0 if metric in ("energy", "break_even") else 0.5
    verdict = decide({**GOOD, "control": 0.1, metric: bad})
    assert (verdict.decision, verdict.is_quiet) == (KEEP, False)
    assert [reason.split()[0] for reason in verdict.reasons] == [metric, "control"]
    assert decide({**GOOD, "control": 0.1}).decision == KEEP
    assert decide({**GOOD, "control": -math.inf, metric: bad}) == decide({**GOOD, metric: bad})


def test_what_needs_no_clock_is_decided_on_any_machine():
    """Another text is another text, however busy the machine was."""
    for metric, bad in (("matched", 0.9), ("distribution", 0.0), ("failures", 1.0), ("peak_bytes", 3.0)):
        assert decide({**GOOD, "control": 0.1, metric: bad}).decision == DELETE
    assert decide({**GOOD, "control": 0.02}).is_quiet
    assert decide({**GOOD, "control": None}).decision == KEEP
    own = [gate for gate in DEFAULT_GATES if gate.metric != "control"]
    assert decide({**GOOD, "control": 0.1}, own).decision == PROMOTE


def test_a_gate_has_one_bound():
    """Prevents a gate that holds for everything."""
    with pytest.raises(ValueError, match="must have one of at_least and at_most"):
        Gate("speed", otherwise=KEEP, reason="x")
    with pytest.raises(ValueError, match="must have one of at_least and at_most"):
        Gate("speed", otherwise=KEEP, reason="x", at_least=1.0, at_most=2.0)
    with pytest.raises(ValueError, match="'otherwise'"):
        Gate("speed", otherwise="maybe", reason="x", at_least=1.0)
