"""Every rule can be read: one sentence, a way out, and a name of its own."""

from __future__ import annotations

import pytest

from specframe.manifest import RULES
from specframe.manifest.report import _COMPARISONS
from specframe.manifest.rules import KINDS


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
