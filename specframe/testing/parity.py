"""Greedy and coupled equality: the drafter's text against that of plain decoding, on tables and on a real target."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from specframe.proposal import Drafter
from specframe.request import Request
from specframe.strategy import Strategy
from specframe.target import Kernel, Target
from specframe.testing.finding import Finding, failed, passed
from specframe.testing.plan import PROMPTS, Plan, greedy_policies, sampling_policies
from specframe.testing.runs import Run, Subject, request_of, run
from specframe.testing.table import TableTarget, random_table

VOCAB = 6
TEMPERATURE = 0.8  # of coupled sampling on a real target


def checks(subject: Subject, plan: Plan) -> dict[str, Callable[[], Finding]]:
    """Return the equalities on table targets by name; each runs when it is called."""
    greedy = [name for name in greedy_policies(VOCAB) if name == "plain" or name in plan.policies]
    return {
        **{f"greedy equality: {name}": partial(on_tables, subject, plan, name, is_greedy=True) for name in greedy},
        **{
            f"coupled equality: {name}": partial(on_tables, subject, plan, name, is_greedy=False)
            for name in plan.policies
        },
    }


def on_tables(subject: Subject, plan: Plan, policy: str, *, is_greedy: bool) -> Finding:
    """Whether ids and reason of the end are those of plain decoding, over tables, seeds, lengths, stops and prompts."""
    compared = stopped = proposed = accepted = 0
    seeds = range(1 if is_greedy else plan.num_seeds)
    for table, seed, prompt in itertools.product(range(plan.num_tables), seeds, PROMPTS):
        # Greedy text of tables of one id of context soon goes in circles, of those of two it does so later.
        target = random_table(vocab_size=VOCAB, order=2 - table % 2, seed=table)
        drafters = subject.make(target)
        for request in _requests(target, prompt, policy, plan.num_tokens, seed, is_greedy=is_greedy):
            plain = run(target, {}, subject.rounds(), request)
            stopped += plain.finish_reason == "stop"
            for length in plan.lengths:
                strategy = subject.rounds(max_tokens=length)
                found = run(target, drafters, strategy, request, generation=subject.generation)
                compared, proposed, accepted = (
                    compared + 1,
                    proposed + found.num_proposed,
                    accepted + found.num_accepted,
                )
                if found.output != plain.output:
                    index = first_difference(found.token_ids, plain.token_ids)
                    return failed(
                        f"the text is another one from token {index} on (table {table}, seed {seed}, {length} tokens a round): "
                        f"{found.finish_reason} after {len(found.token_ids)} tokens, plain decoding {plain.finish_reason} "
                        f"after {len(plain.token_ids)}",
                        compared=compared,
                    )
    figures = {"compared": compared, "stopped": stopped, "num_proposed": proposed, "num_accepted": accepted}
    return passed("every text is plain decoding's", **figures)


def _requests(
    target: TableTarget, prompt: Sequence[int], policy: str, num_tokens: int, seed: int, *, is_greedy: bool
) -> Iterator[Request]:
    """Yield a request without stop ids, and one that stops at an id of its text."""
    policies = greedy_policies if is_greedy else sampling_policies
    arguments = {"max_new_tokens": num_tokens, "seed": seed}
    endless = request_of(target, prompt, {**arguments, **policies(VOCAB)[policy]})
    yield endless
    text = run(target, {}, Strategy(), endless).token_ids
    # Of the ids of the prompt, which drafters may know, the one that comes latest.
    stop = max(text, key=lambda token: (token in prompt, text.index(token)))
    stop_ids = frozenset({stop})
    yield request_of(target, prompt, {**arguments, "stop_ids": stop_ids, **policies(VOCAB, stop_ids)[policy]})


class Parted(NamedTuple):
    """A text that is not plain decoding's: which prompt's, the first token that differs, plain decoding's margin there."""

    prompt: int
    token: int
    margin: float | None


def on_target(
    target: Target,
    drafters: Mapping[str, Drafter],
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    plan: Plan,
    *,
    kernel: Kernel,
    bound: float,
    is_greedy: bool,
) -> Finding:
    """Whether the texts of real prompts are plain decoding's, under the same kernel.

    A text may part where plain decoding's margin is below ``bound``, in logits (over the temperature when sampling): a
    near-tie, which is counted. Under a certified block kernel none may.
    """
    scale = 1.0 if is_greedy else TEMPERATURE
    compared = tokens = proposed = accepted = 0
    ties: list[Parted] = []
    seeds = range(1 if is_greedy else plan.num_target_seeds)
    for (number, prompt), seed in itertools.product(enumerate(prompts), seeds):
        sampling = {} if is_greedy else {"temperature": TEMPERATURE, "seed": seed}
        request = request_of(target, prompt, {"max_new_tokens": plan.num_target_tokens, **sampling})
        plain = run(target, {}, subject.rounds(), request, kernel=kernel)
        found = run(
            target,
            drafters,
            subject.rounds(),
            request,
            kernel=kernel,
            generation=subject.generation,
            terms=subject.terms,
        )
        compared, tokens = compared + 1, tokens + len(plain.token_ids)
        proposed, accepted = proposed + found.num_proposed, accepted + found.num_accepted
        if found.output == plain.output:
            continue
        parted = _parted(number, found, plain)
        if kernel.is_certified or parted.margin is None or parted.margin >= bound / scale:
            told = "which no text may under a certified block kernel" if kernel.is_certified else "which is no near-tie"
            return failed(
                f"prompt {number} parts from plain decoding at token {parted.token} with margin {parted.margin}, {told}",
                compared=compared,
                near_tie_bound=bound / scale,
            )
        ties.append(parted)
    figures = {
        "compared": compared,
        "num_tokens": tokens,
        "num_proposed": proposed,
        "num_accepted": accepted,
        "near_ties": [parted._asdict() for parted in ties],
        "near_tie_bound": bound / scale,
    }
    if not proposed:
        return failed("it proposed nothing, so there was nothing to verify; give prompts on which it does", **figures)
    told = f"{compared - len(ties)} of {compared} texts are plain decoding's" + (
        ", the others part at near-ties" if ties else ""
    )
    return passed(told, **figures)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the index at which two texts part; the shorter one's length where it begins the other."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(one), len(other)))


def _parted(number: int, found: Run, plain: Run) -> Parted:
    index = first_difference(found.token_ids, plain.token_ids)
    # Plain decoding emits one token a round.
    margin = plain.records[index].min_margin if index < len(plain.records) else None
    return Parted(number, index, margin)
