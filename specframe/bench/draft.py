"""The draft model's benchmark: ``python -m specframe.bench.draft --prompts tests/data/spec_bench/mt_bench.jsonl``.

Greedy, float32, the demo target and its draft, open chat, against transformers' assisted generation with the same layers.
Survival is counted over all prompts. Of those that are timed, every fourth chooses the settings of the best-against-best arms,
which are measured on the others.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specframe.bench.arms import Arm, AssistedArm, EngineArm, TransformersArm
from specframe.bench.overhead import forward_times
from specframe.bench.telling import tell, teller
from specframe.bench.timing import Timed, time_arms
from specframe.bench.workload import WorkItem, read_workload
from specframe.engine import Engine
from specframe.loading import load_target
from specframe.prompt import encode
from specframe.strategy import DrafterUse, Length, Strategy
from specframe.target import Ticket
from specframe.transformers_target import TransformersTarget

LENGTHS = (1, 2, 3, 4)
MOST_POSITIONS = 8


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.draft", description=__doc__.split("\n")[0])
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines: Spec-Bench, HumanEval or plain")
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--timed", type=int, default=20, help="how many of the prompts are timed")
    options = parser.parse_args(arguments)
    say = teller()
    items = read_workload(options.prompts)
    target = load_target("demo", dtype="float32")
    timed_items = items[:: max(len(items) // options.timed, 1)]
    results = run(target, timed_items, repeats=options.repeats, max_new_tokens=options.max_new_tokens, say=say)
    results["survival"] = {
        f"length {length}": survival(target, items, length, max_new_tokens=options.max_new_tokens, say=say)
        for length in (1, MOST_POSITIONS)
    } | {"prompts": len(items)}
    tell(results, options.output)
    return 0


def run(
    target: TransformersTarget,
    items: Sequence[WorkItem],
    *,
    repeats: int,
    max_new_tokens: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Measure survival, costs and speed, and return what is stored."""
    tune, test = items[::4], [item for index, item in enumerate(items) if index % 4]
    reduced = {f"draft {length}": engine_arm(target, length) for length in LENGTHS}
    confident = {
        f"draft {length}, confident {least}": engine_arm(target, length, min_confidence=least)
        for length in (2, 4)
        for least in (0.3, 0.5)
    }
    whole = full_head(target, reduced["draft 1"])
    library = {
        f"assisted {length}, threshold {least}": assisted(target, whole, length, least)
        for length in LENGTHS
        for least in (0.0, 0.4)
    }

    def timed(what: str, chosen: Sequence[WorkItem], arms: dict[str, Arm], times: int) -> Timed:
        prompts = [encode(item.messages, target.facts) for item in chosen]
        return time_arms(
            arms,
            chosen,
            prompts,
            max_new_tokens=max_new_tokens,
            repeats=times,
            progress=lambda text: say(f"{what}: {text}"),
        )

    plain = TransformersArm(target.model)
    tuning = timed("tune", tune, {"library plain": plain, **reduced, **confident, **library}, 1)
    scores = {
        name: tuning.compare(name, "library plain")["total_over_total"] for name in (*reduced, *confident, *library)
    }
    ours = min((*reduced, *confident), key=scores.__getitem__)
    theirs = min(library, key=scores.__getitem__)
    own_plain = EngineArm(target, Strategy())
    measured = timed(
        "test",
        test,
        {
            "library plain": plain,
            "library plain again": plain,
            "plain": own_plain,
            "draft, best": {**reduced, **confident}[ours],
            "library assisted, best": library[theirs],
        },
        repeats,
    )
    return {
        "what": "ratios of time, end to end, greedy, float32, open chat, least of the repeats; lower is better",
        "prompts": len(test),
        "max_new_tokens": max_new_tokens,
        "repeats": repeats,
        "chosen_on_tuning_prompts": {"draft, best": ours, "library assisted, best": theirs, "scores": scores},
        "control_a_a": measured.compare("library plain again", "library plain"),
        "draft_over_plain": measured.compare("draft, best", "plain"),
        "draft_over_library_plain": measured.compare("draft, best", "library plain"),
        "assisted_over_library_plain": measured.compare("library assisted, best", "library plain"),
        "assisted_over_draft": measured.compare("library assisted, best", "draft, best"),
        "milliseconds": costs(target, reduced["draft 1"]),
        "forwards": forwards_share(
            target, whole, [encode(item.messages, target.facts) for item in test[:3]], max_new_tokens
        ),
    }


def engine_arm(target: TransformersTarget, length: int, **options: Any) -> EngineArm:
    """Return an arm with the demo draft."""
    use = DrafterUse("draft_model", options)
    return EngineArm(target, Strategy(name="draft_model", length=Length(max_tokens=length), drafters=(use,)))


def full_head(target: TransformersTarget, arm: EngineArm) -> Any:
    """Return the demo draft's layers with the target's whole head, which transformers' assisted generation needs."""
    drafter: Any = arm.engine.drafters["draft_model"]
    model = copy.copy(drafter.network.runner.model)
    model.__dict__["_modules"] = dict(model._modules)
    model.config = copy.deepcopy(model.config)
    model.config.vocab_size = target.facts.vocab_size
    model.generation_config = copy.deepcopy(target.model.generation_config)
    model.set_output_embeddings(target.model.get_output_embeddings())
    return model


def assisted(target: TransformersTarget, draft: Any, length: int, threshold: float) -> AssistedArm:
    """Return an arm of transformers' assisted generation with this draft."""
    assistant = copy.copy(draft)
    assistant.generation_config = copy.deepcopy(draft.generation_config)
    assistant.generation_config.num_assistant_tokens = length
    assistant.generation_config.num_assistant_tokens_schedule = "constant"
    assistant.generation_config.assistant_confidence_threshold = threshold
    return AssistedArm(target.model, assistant)


def survival(
    target: TransformersTarget,
    items: Sequence[WorkItem],
    length: int,
    *,
    max_new_tokens: int,
    say: Callable[[str], None],
) -> list[float]:
    """Return S_1 to S_length: how often the first i proposals were all accepted, without a confidence stop."""
    arm = engine_arm(target, length)
    survived, rounds = [0] * length, [0] * length
    for index, item in enumerate(items):
        say(f"survival at {length}: prompt {index + 1}/{len(items)}")
        arm(encode(item.messages, target.facts), max_new_tokens)
        assert arm.last is not None
        for record in arm.last.records[1:]:
            for position in range(record.num_proposed):
                rounds[position] += 1
                survived[position] += record.num_accepted > position
    return [round(count / max(total, 1), 4) for count, total in zip(survived, rounds, strict=True)]


def costs(target: TransformersTarget, arm: EngineArm) -> dict[str, Any]:
    """Return the milliseconds of one draft token and of a verification of k proposals, at about 150 positions; least of 9."""
    network: Any = arm.engine.drafters["draft_model"]
    network = network.network
    network.release()
    network.take()
    network.feed(list(range(5, 155)))
    draft = _least(lambda: network.feed([7]))
    network.give_back()
    network.release()
    verify = {}
    target.reset()
    session = target.open(0, max_tokens=200)
    ticket = Ticket(0, 0, session.epoch)
    session.prefill(ticket, list(range(5, 155)))

    def check(num_proposed: int) -> None:
        session.verify_linear(ticket, 5, [6] * num_proposed)
        session.commit(ticket, 0)

    for num_proposed in range(MOST_POSITIONS + 1):
        verify[str(num_proposed)] = _least(partial(check, num_proposed))
    session.close()
    target.reset()
    return {"draft_token": draft, "verify": verify}


class Share:
    """The part of some seconds in others, in total over the prompts."""

    def __init__(self) -> None:
        self._part_s = self._whole_s = 0.0

    def add(self, part_s: float, whole_s: float) -> None:
        """Count one prompt."""
        self._part_s, self._whole_s = self._part_s + part_s, self._whole_s + whole_s

    @property
    def value(self) -> float:
        """The part, 0 to 1."""
        return round(self._part_s / self._whole_s, 4)


def forwards_share(
    target: TransformersTarget, draft: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int
) -> dict[str, Any]:
    """Return the part of the time that bare forwards take, ours and transformers', same layers, whole head, same length.

    And the drafter's own milliseconds a token outside its forwards. All are totals over the prompts.
    """
    shipped: Any = engine_arm(target, 2).engine.drafters["draft_model"]
    made = type(shipped)(type(shipped.network)(TransformersTarget(draft, prepack=None)), shipped.options)
    engine = Engine(target, {"draft": made}, strategy=Strategy(length=Length(max_tokens=2)))
    library = assisted(target, draft, 2, 0.0)
    ours, theirs = Share(), Share()
    own_s, num_proposed = 0.0, 0
    for prompt in prompts:
        target.reset()
        made.reset()
        with forward_times(target.model) as verifying, forward_times(draft) as drafting:
            start = time.perf_counter()
            result = engine.generate(prompt, max_new_tokens=max_new_tokens)
            ours.add(sum(verifying) + sum(drafting), time.perf_counter() - start)
        stats = result.stats.drafters["draft"]
        own_s += stats.seconds - sum(drafting)
        num_proposed += stats.num_proposed
        with forward_times(target.model) as verifying, forward_times(library.assistant) as drafting:
            start = time.perf_counter()
            library(prompt, max_new_tokens)
            theirs.add(sum(verifying) + sum(drafting), time.perf_counter() - start)
    return {
        "ours": ours.value,
        "transformers": theirs.value,
        "drafter_ms_per_token_outside_forwards": round(own_s / num_proposed * 1e3, 4),
    }


def _least(call: Callable[[], Any], times: int = 9) -> float:
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        with torch.inference_mode():
            call()
        seconds.append(time.perf_counter() - start)
    return round(min(seconds) * 1e3, 3)


if __name__ == "__main__":
    sys.exit(main())
