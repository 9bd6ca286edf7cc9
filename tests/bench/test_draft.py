"""The draft model's benchmark: its figures are totals."""

from __future__ import annotations

from specframe.bench.draft import Share


def test_a_share_is_a_total_over_prompts():
    """The best of three prompts hides the other two."""
    share = Share()
    for part_s, whole_s in ((9.0, 10.0), (1.0, 10.0)):
        share.add(part_s, whole_s)
    assert share.value == 0.5
