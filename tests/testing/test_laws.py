"""The laws under residual verification: each wrong verifier, round loop and drafter is caught, by the check that is for it."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
from wrong import (
    CorrectionFromTarget,
    CutsByGrammar,
    DiscardsOnFailure,
    Dropping,
    FirstUnverified,
    NotRenormalised,
    NotStrict,
    ReusedNoise,
    RowsShifted,
    SoftArgmax,
    with_rule,
)

from specframe.generation import Generation
from specframe.testing import QUICK, LogitsDrafter, random_table
from specframe.testing.laws import FAILING, control, enumerate_law, sample_law
from specframe.testing.runs import Subject


def drawing(generation=Generation, drafter=LogitsDrafter):
    """Return a drafter that draws from a table of its own, and is wrong half of the time."""

    def make(target):
        table = random_table(vocab_size=target.facts.vocab_size, order=1, seed=9, spread=2.0)
        return {"d": drafter(table.row)}

    return Subject("drawing", make, generation=generation)


POLICIES = ("temperature", "top-k", "top-p", "penalties", "mask")
WRONG = {
    "soft law for an argmax choice": (drawing(with_rule(SoftArgmax)), "temperature"),
    "<= at zero": (drawing(with_rule(NotStrict)), "top-k"),
    "missing renormalisation": (drawing(with_rule(NotRenormalised)), "temperature"),
    "noise reused": (drawing(with_rule(ReusedNoise)), "temperature"),
    "correction from q": (drawing(with_rule(CorrectionFromTarget)), "temperature"),
    "row shifted by one": (drawing(RowsShifted), "temperature"),
    "first token unverified": (drawing(FirstUnverified), "temperature"),
    "a drawn token dropped for its value": (drawing(drafter=Dropping), "temperature"),
    "a failure after a draw discards the draw": (drawing(DiscardsOnFailure), FAILING),
    "a drawn token cut by a grammar": (drawing(CutsByGrammar, partial(LogitsDrafter, num_tokens=1)), "mask"),
}


@pytest.mark.parametrize("policy", [*POLICIES, FAILING])
def test_the_shipped_loop_has_the_targets_law(policy):
    """Drawn proposals under every policy, and of a drafter that fails for what it drew."""
    found = enumerate_law(drawing(), QUICK, policy, is_deterministic=True)
    assert found.status == "passed", found
    assert found.figures["largest_deviation"] <= 1e-12


@pytest.mark.parametrize("fault", WRONG)
def test_the_enumeration_catches(fault):
    """Each of these faults is a real one; not one of them may pass."""
    subject, policy = WRONG[fault]
    found = enumerate_law(subject, QUICK, policy, is_deterministic=True)
    assert found.status == "failed", found
    assert found.figures["largest_deviation"] > 1e-4


def test_what_is_not_deterministic_is_not_enumerated():
    """There is nothing to integrate, and the finding says so."""
    found = enumerate_law(drawing(), QUICK, "temperature", is_deterministic=False)
    assert found.status == "skipped"


@pytest.mark.parametrize("policy", ["temperature", "mask"])
def test_the_shipped_loop_passes_monte_carlo(policy):
    """Five tests each with odds of 1e-6: a change of seeds raises a false alarm once in 100,000 times."""
    found = sample_law(drawing(), QUICK, policy)
    assert found.status == "passed"
    p_values = {kind: tested.p_value for kind, tested in found.tests.items() if tested.p_value is not None}
    # Of two ids that a mask leaves, what is left of q is one: such corrections have nothing to test.
    assert p_values.keys() == found.tests.keys() - ({"corrections"} if policy == "mask" else set())
    assert min(p_values.values()) > 1e-6


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("soft law for an argmax choice", "drawn tokens"),
        ("missing renormalisation", "corrections"),
        ("correction from q", "corrections"),
        ("row shifted by one", "outputs"),
        ("first token unverified", "first rejections"),
        ("a drawn token cut by a grammar", "drawn tokens"),
    ],
)
def test_monte_carlo_catches(fault, kind):
    """Negative controls of each transform: the draw or the decision that is wrong is named."""
    subject, policy = WRONG[fault]
    found = sample_law(subject, attrs.evolve(QUICK, num_outputs=500), policy)
    p_value = found.tests[kind].p_value
    assert found.status == "failed" or (p_value is not None and p_value < QUICK.alpha / 25), found.tests


def test_the_control_sees_a_wrong_verifier():
    """A certificate shows that its own tests could have failed."""
    assert control(drawing(), QUICK).status == "passed"


def test_the_control_tells_what_it_cannot_see():
    """Without rejections nothing tells right corrections from wrong ones; that is no failure, and it is told."""
    found = control(Subject("none", lambda target: {}), QUICK)
    assert found.status == "noted"
    assert found.figures["corrections"] == 0
