"""The benchmark of adaptive lengths: what is compared with what, on seconds that are made up."""

from __future__ import annotations

from argparse import Namespace

import torch
from models import tiny_model

from specframe import TransformersTarget
from specframe.bench.adaptive import SETTINGS, Lengths
from specframe.bench.timing import Timed
from specframe.bench.workload import STRATA

TUNING = {"fixed 3": 4.0, "fixed 7": 2.0, "fixed 15": 3.0}
TEST = {"plain": 8.0, "plain again": 8.0, "adaptive": 2.0, "fixed 3": 1.0, "fixed 7": 4.0, "fixed 15": 1.0}
CORE = {"library plain": 10.0, "library plain again": 10.0, "plain": 9.0, "adaptive": 5.0}


class Told(Lengths):
    """One whose arms take given seconds on every prompt; ``asked``: the splits that were measured."""

    def _timed(self, arms, items, repeats):
        self.asked.append({item.split for item in items})
        seconds = next(told for told in (TUNING, TEST, CORE) if told.keys() == arms.keys())
        return Timed(
            items,
            {name: [[seconds[name]] * repeats for _ in items] for name in arms},
            {name: [(1,)] * len(items) for name in arms},
        )


def test_the_best_fixed_length_is_chosen_on_other_prompts_than_it_is_measured_on():
    """Chosen on the test prompts, the best of several lengths would be the luckiest one too."""
    target = TransformersTarget(tiny_model(dtype=torch.float32))
    options = Namespace(prompts=2, tuning_prompts=1, repeats=1, max_new_tokens=4)
    lengths = Told(target, options, lambda text: None, **SETTINGS["float32"])
    lengths.asked = []
    found = lengths.run()
    assert lengths.asked == [{"test"}, {"tune"}, {"test"}]
    assert found["kernel"] == "single"
    assert found["best_fixed"] == dict.fromkeys(STRATA, "fixed 7")  # which is the worst of them on the test prompts
    for kind in STRATA:
        assert found["adaptive_over_best_fixed"][kind]["total_over_total"] == 0.5
        assert found["adaptive_over_plain"][kind]["median_of_ratios"] == 0.25
    assert found["adaptive_over_library_plain"]["chat"] == {
        "median_of_ratios": 0.5,
        "total_over_total": 0.5,
        "matched": "3/3",
    }
