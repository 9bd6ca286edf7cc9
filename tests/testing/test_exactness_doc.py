"""What docs/exactness.md lists is what is run, with the figures that it tells."""

from __future__ import annotations

from pathlib import Path

from specframe.generation import Generation
from specframe.testing import FULL, QUICK, Adversary, contract, laws, parity
from specframe.testing.runs import Subject

DOC = (Path(__file__).parents[2] / "docs" / "exactness.md").read_text(encoding="utf-8")
SUBJECT = Subject("it", lambda target: {"it": Adversary(lambda context, index: None)}, generation=Generation)


def test_every_check_is_on_the_page():
    """A name in a certificate can be looked up."""
    checks = [
        *contract.checks(SUBJECT, QUICK, is_deterministic=True),
        *parity.checks(SUBJECT, QUICK),
        *laws.enumerations(SUBJECT, QUICK, is_deterministic=True),
        *laws.monte_carlo(SUBJECT, QUICK),
        *("target: kernel", "target: greedy parity", "target: coupled parity", "target: residual draws"),
    ]
    for name in checks:
        family = f"`{name.partition(':')[0]}: ...`"
        assert f"`{name}`" in DOC or family in DOC, name


def test_figures_of_the_page_are_the_plans():
    """Odds and bounds as they are in the code."""
    assert f"odds of {FULL.alpha:.0e}".replace("e-0", "e-") in DOC
    assert f"{FULL.largest_deviation:.0e}" in DOC
    assert FULL.alpha == QUICK.alpha
