"""The table of rules in the documentation is the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from specframe.manifest import RULES
from specframe.manifest.report import _COMPARISONS
from specframe.manifest.rules import KINDS

DOCS = Path(__file__).parents[2] / "docs" / "manifests.md"
BEGIN, END = "<!-- rules: begin -->\n", "<!-- rules: end -->"


def table():
    lines = ["| rule | field | drafters | severity | reason | remedy |", "|---|---|---|---|---|---|"]
    for rule in RULES:
        kinds = "all" if rule.kinds == KINDS.keys() else ", ".join(kind for kind in KINDS if kind in rule.kinds)
        field = rule.field if rule.field == rule.other else f"{rule.field} / {rule.other}"
        lines.append(f"| {rule.name} | {field} | {kinds} | {rule.severity} | {rule.reason} | {rule.remedy} |")
    return "\n".join(lines) + "\n"


def test_the_documented_rules_are_the_rules():
    """A refusal that is looked up must be found as it is. `python tests/manifest/test_docs.py` writes the table."""
    text = DOCS.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0] == table()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_one_sentence_and_a_way_out(rule):
    """A reason that is a paragraph is not read, and one without a remedy is a dead end."""
    assert rule.reason.endswith(".")
    assert ". " not in rule.reason
    assert rule.remedy
    assert not rule.remedy.endswith(".")
    assert rule.kinds <= KINDS.keys()
    assert rule.compare in _COMPARISONS


def test_rule_names_are_unique():
    """A verdict is found by its rule's name."""
    assert len({rule.name for rule in RULES}) == len(RULES)


if __name__ == "__main__":
    before, _, rest = DOCS.read_text(encoding="utf-8").partition(BEGIN)
    DOCS.write_text(f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}", encoding="utf-8")
