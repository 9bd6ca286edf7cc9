"""Statistics as plain data: every figure, the rates beside it, and back."""

from __future__ import annotations

import json
import math

import attrs
from models import engine_on, random_table

from specframe.records import Stats
from specframe.stats import finite, plain, without_rates
from specframe.strategy import structure
from specframe.testing import Oracle, RandomOffers

PROMPT = [1, 2]


def stats_of_a_run():
    text = random_table().greedy(PROMPT, 40)
    return engine_on(random_table(), Oracle(text, wrong_at=2), RandomOffers(1), length=6).generate(PROMPT).stats


def test_every_field_and_every_rate_is_there():
    """A figure that Python has and JSON lacks sends its readers to another place."""
    stats = stats_of_a_run()
    told = plain(stats)
    assert told.keys() >= {field.name for field in attrs.fields(Stats)}
    for name in ("tokens_per_call", "total_s", "num_proposed", "num_accepted"):
        assert told[name] == getattr(stats, name)
    for name, drafter in stats.drafters.items():
        assert told["drafters"][name]["acceptance"] == drafter.acceptance
        assert len(drafter.positions) > 1
        for position, record in zip(drafter.positions, told["drafters"][name]["positions"], strict=True):
            assert record == {
                **attrs.asdict(position),
                "num_rejected": position.num_rejected,
                "acceptance": position.acceptance,
                "survival": position.survival,
            }
    assert [record["num_kept"] for record in told["positions"]] == [item.num_kept for item in stats.positions]


def test_plain_statistics_can_be_read_back():
    """A receipt that is read must have the statistics that it was written with."""
    stats = stats_of_a_run()
    again = structure(without_rates(json.loads(json.dumps(plain(stats)))), Stats, "stats")
    assert again == stats


def test_a_margin_that_no_number_holds_is_none():
    """JSON has no infinity; where one id is possible, there is no second one to be apart from."""
    assert plain(attrs.evolve(stats_of_a_run(), min_margin=math.inf))["min_margin"] is None
    assert [finite(value) for value in (None, math.inf, 0.5)] == [None, None, 0.5]


def test_what_has_another_form_stays():
    """The reader's own check tells what is wrong."""
    for odd in (None, 3, [], {"drafters": 3, "positions": {}}, {"drafters": {"a": None}, "positions": [1]}):
        assert without_rates(odd) == odd
