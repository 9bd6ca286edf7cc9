"""Plans: fixed before results exist, and any departure told."""

from __future__ import annotations

import json
import platform
from collections import Counter
from types import SimpleNamespace

import attrs
import psutil
import pytest

from specframe import InvalidPlan
from specframe.bench.gates import DEFAULT_GATES
from specframe.bench.machine import NOT_AVAILABLE, machine_class
from specframe.bench.plan import Plan, PlannedItem, changes, planned, read_plan, strategy_arm
from specframe.bench.workload import WorkItem, stratum
from specframe.manifest.digest import problem
from specframe.strategy import DrafterUse, Length, Strategy

LOOKUP = Strategy(
    name="lookup", length=Length("adaptive", 15), drafters=(DrafterUse("prompt_lookup", {"max_ngram": 4}),)
)
PLAN = Plan(
    arms={
        "plain": strategy_arm(Strategy()),
        "lookup": strategy_arm(LOOKUP),
        "library": {"library": {"num_lookup": 10, "assistant": None}},
    },
    items=planned(stratum("chat")),
    machine={"cores": "2", "power": NOT_AVAILABLE},
    sampling={"temperature": 0.7},
    target="manifest-v1:sha256:" + 64 * "0",
)


def test_a_plan_is_read_as_it_was_written(tmp_path):
    """Prevents a field from being lost on the way, and with it a departure from being seen."""
    PLAN.write(tmp_path / "plan.json")
    read = read_plan(tmp_path / "plan.json")
    assert read.digest == PLAN.digest
    assert changes(PLAN, read) == []
    assert problem(PLAN.digest) is None
    assert read.gates == DEFAULT_GATES
    assert read.items == PLAN.items


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"max_new_tokens": 64}, "max_new_tokens: planned 128, now 64"),
        ({"seeds": (0, 1)}, "seeds[1]: planned nothing, now 1"),
        ({"order_seed": 1}, "order_seed: planned 0, now 1"),
        ({"sampling": None}, 'sampling: planned {"temperature": 0.7}, now null'),
        ({"machine": {"cores": "4", "power": NOT_AVAILABLE}}, 'machine.cores: planned "2", now "4"'),
        ({"target": None}, 'target: planned "manifest-v1:'),
        ({"gates": DEFAULT_GATES[1:]}, "gates[0].metric"),
        ({"items": PLAN.items[1:]}, "items[0].name"),
        ({"arms": {**PLAN.arms, "new": {}}}, "arms.new: planned nothing, now {}"),
        (
            {"arms": {**PLAN.arms, "lookup": strategy_arm(attrs.evolve(LOOKUP, length=Length("fixed", 15)))}},
            'arms.lookup.strategy.length.policy: planned "adaptive", now "fixed"',
        ),
    ],
)
def test_a_departure_is_told_by_its_field(change, told):
    """Prevents a run with other settings from passing for the one that was planned."""
    now = attrs.evolve(PLAN, **change)
    assert now.digest != PLAN.digest
    assert any(sentence.startswith(told) for sentence in changes(PLAN, now))


def test_no_arm_is_first_more_often_than_another():
    """What comes first after a write to the disk may be slower: an arm that is unlucky with its place would look slower."""
    plan = attrs.evolve(PLAN, repeats=3)
    turns = plan.turns()
    assert len({turn.key for turn in turns}) == len(turns) == 3 * len(plan.items) * 3
    places = Counter((turn.arm, turn.order) for turn in turns)
    assert max(places.values()) - min(places.values()) <= 1
    by_item = [tuple(turn.arm for turn in turns[start : start + 3]) for start in range(0, len(turns), 3)]
    assert {frozenset(names) for names in by_item} == {frozenset(plan.arms)}
    assert len(set(by_item)) > 3
    assert turns == plan.turns() != attrs.evolve(plan, order_seed=1).turns()


def test_a_prompt_is_bound_by_all_that_it_is():
    """Prevents a prompt, a split or a judge from being changed after the plan."""
    item = WorkItem("test", "chat", "a", "Hi")
    digests = {
        planned([other])[0].sha256
        for other in (
            item,
            attrs.evolve(item, prompt="Hi!"),
            attrs.evolve(item, split="tune"),
            attrs.evolve(item, name="b"),
        )
    }
    assert len(digests) == 4
    assert planned([item]) == (PlannedItem("chat", "a", planned([item])[0].sha256),)


def test_a_changed_file_is_refused(tmp_path):
    """Prevents gates from being moved after results were seen."""
    path = tmp_path / "plan.json"
    PLAN.write(path)
    content = json.loads(path.read_text(encoding="utf-8"))

    def refused(changed, message):
        path.write_text(changed if isinstance(changed, str) else json.dumps(changed), encoding="utf-8")
        with pytest.raises(InvalidPlan, match=message):
            read_plan(path)

    gates = json.loads(json.dumps(content))
    gates["plan"]["gates"][3]["at_least"] = 0.5
    refused(gates, "was changed after it was fixed")
    refused({**content, "digest": "x"}, "was changed after it was fixed")
    refused({**content, "plan": {**content["plan"], "format": 2}}, "has format 2; this specframe reads 1")
    refused({**content, "plan": {**content["plan"], "repeat": 2}}, "unknown key 'repeat'")
    refused({**content, "plan": {**content["plan"], "repeats": "2"}}, "must be of type int")
    refused({**content, "plan": {**content["plan"], "seeds": []}}, "'seeds' must be different integers")
    for arm in ({}, {"strategy": None}, {"strategy": {"drafters": 3}}, {"library": "transformers"}):
        arms = {**content["plan"]["arms"], "lookup": arm}
        refused({**content, "plan": {**content["plan"], "arms": arms}}, "arm 'lookup' is neither a strategy")
    refused({"digest": content["digest"]}, "must hold an object")
    refused("{", "is not JSON")
    with pytest.raises(InvalidPlan, match="cannot be read"):
        read_plan(tmp_path / "nowhere.json")


@pytest.mark.parametrize(
    ("sensors", "told"),
    [
        ([], NOT_AVAILABLE),
        ([(50.0, None)], NOT_AVAILABLE),
        ([(50.0, 90.0), (40.0, None)], "below its limits"),
        ([(50.0, 90.0), (90.0, 90.0)], "hot"),
    ],
)
def test_heat_is_told_as_far_as_sensors_tell(monkeypatch, sensors, told):
    """Degrees change from minute to minute; whether the machine is at its limit is what makes runs incomparable."""
    found = {"cpu": [SimpleNamespace(current=current, high=high) for current, high in sensors]}
    monkeypatch.setattr(psutil, "sensors_temperatures", lambda: found, raising=False)
    assert machine_class()["thermal"] == told


def test_a_machine_is_a_class_and_no_fingerprint():
    """Prevents a plan that is shared from naming the machine that it was made on."""
    found = machine_class()
    assert found == machine_class()
    assert found["cores"].isdigit()
    assert all(isinstance(value, str) and value for value in found.values())
    assert not platform.node() or platform.node() not in found.values()
