"""The core's benchmark: which runs are none."""

from __future__ import annotations

from specframe.bench import __main__ as core


def results(control=1.0, **matched):
    given = {"library plain again": "12/12", "plain": "12/12", **matched}
    return {"control_a_a": {"total_over_total": control}, "matched_plain_of_its_products": given}


def test_a_run_is_none_where_the_machine_was_not_quiet_or_an_arm_gave_another_text():
    assert core.complaints(results()) == []
    (told,) = core.complaints(results(control=1.1))
    assert "the machine was not quiet" in told
    (told,) = core.complaints(results(lookup="11/12"))
    assert told == "arm 'lookup' gave other tokens than plain decoding: matched 11/12"
