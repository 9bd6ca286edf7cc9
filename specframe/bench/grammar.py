"""The grammar's benchmark: ``python -m specframe.bench.grammar -o docs/results/grammar.json``.

Greedy, float32, the demo target, JSON extraction under a schema. Ratios of whole calls, measured interleaved in one process,
against transformers' own decoding under the very same masks; and what compiling and masks cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList

from specframe.bench.arms import EngineArm, TransformersArm
from specframe.bench.telling import tell
from specframe.bench.timing import Timed, time_arms
from specframe.bench.workload import WorkItem
from specframe.constraint import Constraint, Grammars
from specframe.grammar import Grammar, State
from specframe.loading import load_target
from specframe.plugins import load
from specframe.prompt import encode
from specframe.resolve import resolve_with_plugins
from specframe.strategy import Strategy
from specframe.stream import Result
from specframe.transformers_target import TransformersTarget

TOKENIZATIONS = ("any", "canonical")
REGEX = r'\{"name": "[A-Za-z ]{1,30}", "age": [0-9]{1,3}, "email": "[a-z.]{1,20}@[a-z]{1,20}\.(com|org)"\}'


class MaskProcessor(LogitsProcessor):
    """A grammar's masks as a logits processor of transformers: the same masks, without specframe's engine."""

    def __init__(self, grammar: Grammar, num_prompt: int) -> None:
        self._grammar, self._num_prompt = grammar, num_prompt
        self._num_known, self._state = num_prompt, grammar.start

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        for token in input_ids[0, self._num_known :].tolist():
            self._state = self._grammar.advance(self._state, token)
        self._num_known = input_ids.shape[1]
        mask = torch.from_numpy(self._grammar.mask(self._state).copy())
        return scores.masked_fill(~mask, -torch.inf)


class MaskedTransformersArm:
    """transformers' greedy ``generate`` under the grammar of the prompt at hand."""

    def __init__(self, target: TransformersTarget, grammar_of: Callable[[Sequence[int]], Grammar]) -> None:
        self._target, self._grammar_of = target, grammar_of

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        masks = MaskProcessor(self._grammar_of(prompt_ids), len(prompt_ids))
        arm = TransformersArm(self._target.model, logits_processor=LogitsProcessorList([masks]))
        return arm(prompt_ids, max_new_tokens)

    def reset(self) -> None:
        """Do nothing: ``generate`` keeps nothing."""


class ConstrainedArm:
    """A specframe engine under the constraint of the prompt at hand."""

    def __init__(
        self, target: TransformersTarget, strategy: Strategy, arguments_of: Callable[[Sequence[int]], dict[str, Any]]
    ) -> None:
        self._arm, self._arguments_of = EngineArm(target, strategy), arguments_of
        self.calls: dict[tuple[int, ...], int] = {}

    def __call__(self, prompt_ids: Sequence[int], max_new_tokens: int) -> tuple[int, ...]:
        arguments = self._arguments_of(prompt_ids)
        result: Result = self._arm.engine.generate(prompt_ids, max_new_tokens=max_new_tokens, **arguments)
        self.calls[tuple(prompt_ids)] = result.stats.num_target_calls
        return result.token_ids

    def reset(self) -> None:
        """Forget the cached prefix."""
        self._arm.reset()


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its results; ``arguments`` as on the command line."""
    parser = argparse.ArgumentParser(prog="python -m specframe.bench.grammar", description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="where to store the results as JSON")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=256)
    options = parser.parse_args(arguments)
    target = load_target("demo", dtype=torch.float32)
    results = {
        "what": "extraction into JSON under a schema; ratios of time, whole calls, greedy, float32, least of the repeats",
        "threads": torch.get_num_threads(),
        "repeats": options.repeats,
        "max_new_tokens": options.max_new_tokens,
        "masks": masks(target),
        "speed": {name: speed(target, name, options) for name in TOKENIZATIONS},
    }
    tell(results, options.output)
    return 0


def workload() -> list[tuple[WorkItem, dict[str, Any]]]:
    """Return the prompts with their schemas. Written for specframe; Apache-2.0, as the code."""
    lines = files("specframe.bench").joinpath("grammar.jsonl").read_text(encoding="utf-8").splitlines()
    records = map(json.loads, lines)
    return [(WorkItem("test", "json", record["name"], record["prompt"]), record["schema"]) for record in records]


def speed(target: TransformersTarget, tokenization: str, options: argparse.Namespace) -> dict[str, Any]:
    """Time the arms under one tokenisation and return their ratios, matched tokens and target calls."""
    plugins = load()
    grammars = Grammars(plugins, target.facts)
    items = workload()
    prompts = [tuple(encode(item.messages, target.facts)) for item, _ in items]
    schemas = {prompt: json.dumps(schema) for prompt, (_, schema) in zip(prompts, items, strict=True)}

    def grammar_of(prompt: Sequence[int]) -> Grammar:
        return grammars.compile(Constraint("json_schema", schemas[tuple(prompt)], tokenization), target.facts.stop_ids)

    def arguments_of(prompt: Sequence[int]) -> dict[str, Any]:
        return {"json_schema": schemas[tuple(prompt)], "grammar_tokenization": tokenization}

    library = MaskedTransformersArm(target, grammar_of)
    plain = ConstrainedArm(target, Strategy(), arguments_of)
    forced = ConstrainedArm(target, resolve_with_plugins("grammar", plugins)[0], arguments_of)
    lookup = ConstrainedArm(target, resolve_with_plugins("prompt_lookup", plugins)[0], arguments_of)
    timed = time_arms(
        {"library": library, "library again": library, "plain": plain, "lookup": lookup, "grammar + lookup": forced},
        [item for item, _ in items],
        prompts,
        max_new_tokens=options.max_new_tokens,
        repeats=options.repeats,
        progress=lambda text: print(f"{tokenization}: {text}", file=sys.stderr, flush=True),
    )
    return {
        "control_a_a": timed.compare("library again", "library"),
        "plain_over_library": timed.compare("plain", "library"),
        "lookup_over_plain": timed.compare("lookup", "plain"),
        "grammar_and_lookup_over_library": timed.compare("grammar + lookup", "library"),
        "grammar_and_lookup_over_plain": timed.compare("grammar + lookup", "plain"),
        "tokens_per_target_call": _calls(timed, prompts, forced),
        "seconds": {name: [[round(s, 4) for s in row] for row in rows] for name, rows in timed.seconds.items()},
    }


def _calls(timed: Timed, prompts: Sequence[tuple[int, ...]], arm: ConstrainedArm) -> dict[str, float]:
    ids = timed.token_ids["grammar + lookup"]
    return {item.name: round(len(ids[index]) / arm.calls[prompts[index]], 2) for index, item in enumerate(timed.items)}


def masks(target: TransformersTarget) -> dict[str, Any]:
    """Return what compiling costs, and masks of states that are new and seen, in milliseconds."""
    grammars = Grammars(load(), target.facts)

    def compile_timed(language: str, source: str) -> tuple[float, Grammar]:
        start = time.perf_counter()
        grammar = grammars.compile(Constraint(language, source), target.facts.stop_ids)
        return (time.perf_counter() - start) * 1000, grammar

    first_ms = round(compile_timed("regex", "a")[0], 1)
    found: dict[str, Any] = {"ids": target.facts.vocab_size, "first_grammar_of_a_tokenizer_ms": first_ms}
    sources = {"regex": [REGEX], "json_schema": [json.dumps(schema) for _, schema in workload()]}
    for language, texts in sources.items():
        compile_ms: list[float] = []
        new_ms: list[float] = []
        seen_ms: list[float] = []
        for text in texts:
            spent, grammar = compile_timed(language, text)
            compile_ms.append(spent)
            new, seen = _walk(grammar)
            new_ms += new
            seen_ms += seen
        found[language] = {"compile": _spread(compile_ms), "new_state": _spread(new_ms), "seen_state": _spread(seen_ms)}
    return found


def _walk(grammar: Grammar) -> tuple[list[float], list[float]]:
    """Return the times of masks of new and of seen states, along a walk over the id in the middle of those allowed."""
    new_ms: list[float] = []
    seen_ms: list[float] = []
    state = grammar.start
    known = {state}  # the start was asked for when the grammar was compiled
    for _ in range(60):
        spent, mask = _mask_timed(grammar, state)
        if state not in known:
            new_ms.append(spent)
        known.add(state)
        seen_ms.append(_mask_timed(grammar, state)[0])
        allowed = mask.nonzero()[0]
        if not len(allowed):
            break
        state = grammar.advance(state, int(allowed[len(allowed) // 2]))
    return new_ms, seen_ms


def _mask_timed(grammar: Grammar, state: State) -> tuple[float, Any]:
    start = time.perf_counter()
    mask = grammar.mask(state)
    return (time.perf_counter() - start) * 1000, mask


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median_ms": round(statistics.median(values), 4), "max_ms": round(max(values), 4), "number": len(values)}


if __name__ == "__main__":
    sys.exit(main())
