"""What docs/exactness.md shows works as it stands, and what it lists is what is run."""

from __future__ import annotations

import re
from pathlib import Path

import attrs

from specframe.generation import Generation
from specframe.testing import FULL, QUICK, Adversary, contract, laws, parity
from specframe.testing.runs import Subject

DOC = (Path(__file__).parents[2] / "docs" / "exactness.md").read_text(encoding="utf-8")
SUBJECT = Subject("it", lambda target: {"it": Adversary(lambda context, index: None)}, generation=Generation)


def test_the_code_of_the_page_runs(monkeypatch, capsys):
    """From the first block to the last, as a reader would paste them."""
    quick = attrs.evolve(QUICK, num_outputs=200, policies=("temperature",))
    monkeypatch.setattr("specframe.testing.QUICK", quick)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert names["certificate"].is_certified, names["certificate"].failures
    assert "follower is certified" in capsys.readouterr().out
    asked = []
    names["test_my_drafter_is_exact"](asked.append)  # the fixture is tested with its plugin
    assert asked == [names["make_drafter"]]


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
