"""Contract checks of a drafter, on table targets: room, reset, determinism, alignment after any history, and its failures.

A drafter that breaks the contract cannot change text; it costs speed, or is switched off. Here it is told why.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from specframe.drawing import DraftContext
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.proposal import Commit, Drafter, DraftRequest, Proposal, Round, TokenView, lend
from specframe.request import Request
from specframe.testing.drafters import Adversary
from specframe.testing.faults import Fault, failing
from specframe.testing.finding import Finding, failed, noted, passed
from specframe.testing.plan import PROMPTS, Plan, greedy_policies, sampling_policies
from specframe.testing.runs import Proposed, Run, Subject, Watched, request_of, run
from specframe.testing.table import TableTarget, random_table
from specframe.verify import Greedy

VOCAB = 6
ROOMS, BUDGETS = (1, 2, 3, 5, 8), (3, 4, 12)


def checks(subject: Subject, plan: Plan, *, is_deterministic: bool) -> dict[str, Callable[[], Finding]]:
    """Return the checks by name; each runs when it is called."""
    return {
        "contract: it stays on and proposes": partial(stays_on, subject, plan),
        "contract: room": partial(respects_room, subject),
        "contract: determinism": partial(tell_determinism, is_deterministic),
        "contract: requests": partial(is_unaware, subject, is_deterministic=is_deterministic),
        "contract: reset": partial(is_reset, subject, is_deterministic=is_deterministic),
        "contract: alignment": partial(is_aligned, subject),
        "contract: failure": partial(fails_harmlessly, subject),
    }


def stays_on(subject: Subject, plan: Plan) -> Finding:
    """Whether no drafter was switched off in ordinary requests, and whether there was anything to verify."""
    target = _table()
    watched = _watched(subject, target)
    runs = [
        run(
            target, watched, subject.rounds(), _request(target, arguments, plan.num_tokens, prompt), terms=subject.terms
        )
        for arguments in _policies().values()
        for prompt in PROMPTS
    ]
    figures = _counts(runs)
    if failures := _failures(watched):
        return failed(f"it was switched off: {failures[0]}", **figures, num_failures=len(failures))
    if not figures["num_proposed"]:
        return failed("it proposed nothing, so there was nothing to verify", **figures)
    return passed("never switched off", **figures)


def respects_room(subject: Subject) -> Finding:
    """Whether a drafter takes any room, from one token on, and any budget, down to the last token."""
    target = _table()
    rounds = 0
    for room, budget in itertools.product(ROOMS, BUDGETS):
        watched = _watched(subject, target)
        for arguments in _policies().values():
            run(target, watched, subject.rounds(max_tokens=room), _request(target, arguments, budget))
        if failures := _failures(watched):
            return failed(f"with room for {room} and {budget} tokens to go, {failures[0]}", room=room, budget=budget)
        proposals = [proposed for drafter in watched.values() for proposed in drafter.proposals]
        rounds += len(proposals)
        if over := [proposed for proposed in proposals if len(proposed.ids) > proposed.room]:
            return failed(f"{len(over[0].ids)} tokens were added where there was room for {over[0].room}", room=room)
    return passed(f"rooms from 1 to {ROOMS[-1]}", rounds=rounds)


def is_deterministic(subject: Subject) -> bool:
    """Whether new drafters propose the same again for the same requests."""
    target = _table()
    first, second = (_proposals_of_requests(subject, _watched(subject, target), target) for _ in range(2))
    return first == second


def tell_determinism(is_so: bool) -> Finding:
    """Report whether the drafter is deterministic; it need not be."""
    told = "it proposes the same again" if is_so else "it proposes differently each time: it may draw at random"
    return noted(told, is_deterministic=is_so)


def is_unaware(subject: Subject, *, is_deterministic: bool) -> Finding:
    """Whether what it proposes owes nothing to earlier requests; each comes twice, for what was said may be remembered."""
    if not is_deterministic:
        return Finding("skipped", "only what a deterministic drafter proposes can be compared")
    target = _table()
    used, rounds = _watched(subject, target), 0
    for prompt, arguments in itertools.product(PROMPTS * 2, _policies().values()):
        fresh = _watched(subject, target)
        for made in (used, fresh):
            run(target, made, subject.rounds(), _request(target, arguments, 12, prompt))
        for name, drafter in used.items():
            expected = fresh[name].proposals
            if drafter.proposals != expected:
                told = (
                    f"{name} proposes what a new one would not, from what it kept of earlier requests: how fast a text comes "
                    "would tell one user what another one wrote"
                )
                return failed(told, rounds=rounds)
            rounds += len(expected)
            drafter.proposals.clear()
        for drafter in fresh.values():
            drafter.close()
    for drafter in used.values():
        drafter.close()
    return passed("it proposes what a new one does, whatever was asked before", rounds=rounds)


def is_reset(subject: Subject, *, is_deterministic: bool) -> Finding:
    """Whether ``reset`` makes the next requests like a new drafter's; only a deterministic one can be compared."""
    if not is_deterministic:
        return Finding("skipped", "only what a deterministic drafter proposes can be compared")
    target = _table()
    used = _watched(subject, target)
    _proposals_of_requests(subject, used, target, prompts=[PROMPTS[1], PROMPTS[0][1:]])
    for drafter in used.values():
        drafter.proposals.clear()
        drafter.reset()
    again = _proposals_of_requests(subject, used, target)
    fresh = _proposals_of_requests(subject, _watched(subject, target), target)
    rounds = sum(map(len, fresh))
    if again != fresh:
        told = "after reset() it proposes what a new drafter does not: something of earlier requests is left"
        return failed(told, rounds=rounds)
    for drafter in used.values():
        drafter.close()
    return passed("after reset() it proposes what a new one does", rounds=rounds)


def is_aligned(subject: Subject) -> Finding:
    """Report whether, after rounds shared with another drafter, it proposes what a fresh session does that is told the text.

    An adaptive drafter may propose more or fewer tokens; where both propose a token at the same place, another one hints at a
    session that kept what was rejected, or missed what another proposed.
    """
    target = _table()
    counts = {"rounds": 0, "equal": 0, "other_length": 0, "other_tokens": 0}
    for arguments in greedy_policies(VOCAB).values():
        request = _request(target, arguments, 30)
        text = run(target, {}, subject.rounds(), request).token_ids
        watched = _watched(subject, target)
        together: dict[str, Drafter] = {"another": _half_right(text, len(request.prompt_ids)), **watched}
        run(target, together, subject.rounds(max_tokens=5), request)
        for name, drafter in watched.items():
            for proposed in drafter.proposals:
                afresh = _propose_afresh(subject.make(target)[name], target, request, proposed)
                num_both = min(len(afresh), len(proposed.ids))
                counts["rounds"] += 1
                counts["equal"] += afresh == proposed.ids
                counts["other_tokens"] += afresh[:num_both] != proposed.ids[:num_both]
                counts["other_length"] += afresh != proposed.ids and afresh[:num_both] == proposed.ids[:num_both]
    if counts["other_tokens"]:
        return noted(
            "in some rounds it proposes other tokens than a fresh session that is told the same text: its state may not "
            "follow the text after rejections (or it draws at random)",
            **counts,
        )
    return passed("after any history it proposes from the text that stands", **counts)


def fails_harmlessly(subject: Subject) -> Finding:
    """Whether text stays that of plain decoding when the drafter fails, and whether it is back in the next requests."""
    num_failures = 0
    for method, at_call in itertools.product(("open", "propose", "commit", "close"), (0, 2)):
        where = {"method": method, "at_call": at_call}
        told = f"{method} failed at call {at_call}"
        for arguments in ({}, {"temperature": 0.9, "seed": 4}):
            target = _table()
            watched = _watched(subject, target)
            made = {name: _failing_at(method, at_call, drafter) for name, drafter in watched.items()}
            for prompt in PROMPTS * 2:  # of four requests none fails behind the third
                for drafter in watched.values():
                    drafter.proposals.clear()
                request = _request(target, arguments, 16, prompt)
                expected = run(target, {}, subject.rounds(), request)
                beside = {"another": _half_right(expected.token_ids, len(prompt))}
                found = run(target, {**made, **beside}, subject.rounds(), request, generation=subject.generation)
                if found.output != expected.output:
                    return failed(f"the text changed where {told}", **where)
                if any(event.drafter not in made for event in found.events):
                    return failed(f"another drafter was switched off where {told}", **where)
                num_failures += len(found.events)
            if failures := _failures(watched):
                return failed(f"where {told} on purpose it failed by itself as well: {failures[0]}", **where)
            silent = [name for name, drafter in watched.items() if not drafter.num_offered]
            if silent and is_deterministic(subject):
                fresh = _watched(subject, target)  # which may have as little to say
                run(target, {**fresh, **beside}, subject.rounds(), request, generation=subject.generation)
                if lost := [name for name in silent if fresh[name].num_offered]:
                    return failed(f"{lost[0]} proposes nothing more after a request where {told}", **where)
    return passed(
        "text and other drafters are untouched by its failures, and it is back afterwards", num_failures=num_failures
    )


def _failing_at(method: str, at_call: int, drafter: Drafter) -> Drafter:
    # A session that is not handed over is closed by nobody: what opens it has to fail first.
    error = RuntimeError(f"scripted failure of {method}")
    return failing(drafter, Fault(method, error, at_call=at_call, is_after=method != "open"))


def _table(**options: Any) -> TableTarget:
    return random_table(vocab_size=VOCAB, order=1, seed=5, **options)


def _policies() -> dict[str, dict[str, Any]]:
    sampled = {name: {"seed": 3, **values} for name, values in sampling_policies(VOCAB).items()}
    greedy = {f"greedy {name}": values for name, values in greedy_policies(VOCAB).items()}
    return {**greedy, **{name: sampled[name] for name in ("temperature", "mask")}}


def _request(
    target: TableTarget, arguments: Mapping[str, Any], num_tokens: int, prompt: Sequence[int] = PROMPTS[0]
) -> Request:
    return request_of(target, prompt, {"max_new_tokens": num_tokens, **arguments})


def _watched(subject: Subject, target: TableTarget) -> dict[str, Watched]:
    return {name: Watched(drafter) for name, drafter in subject.make(target).items()}


def _failures(watched: Mapping[str, Watched]) -> list[str]:
    return [f"{name}: {failure}" for name, drafter in watched.items() for failure in drafter.failures]


def _counts(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "requests": len(runs),
        "num_proposed": sum(found.num_proposed for found in runs),
        "num_accepted": sum(found.num_accepted for found in runs),
    }


def _proposals_of_requests(
    subject: Subject, watched: Mapping[str, Watched], target: TableTarget, prompts: Sequence[Sequence[int]] = PROMPTS
) -> list[list[Proposed]]:
    """Return what each drafter proposes in a few requests, one after the other."""
    for prompt, arguments in itertools.product(prompts, _policies().values()):
        run(target, watched, subject.rounds(), _request(target, arguments, 12, prompt))
    return [drafter.proposals for drafter in watched.values()]


def _half_right(text: Sequence[int], num_prompt: int) -> Adversary:
    """Return a drafter that proposes none to two tokens of a text, now and then a wrong one."""

    def choose(context: TokenView, index: int) -> int | None:
        place = len(context) - num_prompt
        if place >= len(text) or index >= (place - index) % 3:
            return None
        return (text[place] + (place % 4 == 3)) % VOCAB

    return Adversary(choose)


@torch.inference_mode()
def _propose_afresh(drafter: Drafter, target: TableTarget, request: Request, proposed: Proposed) -> tuple[int, ...]:
    """Return what a new session proposes that is told the text of a round at once."""
    num_prompt, num_known = len(request.prompt_ids), proposed.num_authoritative
    facts = target.facts
    session = drafter.open(DraftRequest(request.prompt_ids, facts, request.policy, request.stop_ids, request.grammar))
    session.commit(Commit(request.prompt_ids, 0))
    session.commit(Commit(proposed.context[num_prompt:num_known], num_prompt))
    prefix = Prefix(request.prompt_ids, request.grammar, "cpu")
    for token in proposed.context[num_prompt:num_known]:
        prefix.push(token)
    pipeline = Pipeline(request.policy, vocab_size=facts.vocab_size, stop_ids=request.stop_ids, num_prompt=num_prompt)
    provisional = proposed.context[num_known:]
    proposal = Proposal()
    round = Round(
        DraftContext(prefix, pipeline, Greedy, "cpu"),
        proposal,
        index=1,
        room=proposed.room + len(provisional),
        vocab_size=facts.vocab_size,
        stop_ids=request.stop_ids,
    )
    lend(round, "another", lambda round: _offer(round, provisional))
    with contextlib.suppress(Exception):  # what it added before it failed counts, as in a generation
        lend(round, "it", session.propose)
    session.close()
    return tuple(proposal.ids[len(provisional) :])


def _offer(round: Round, ids: Sequence[int]) -> None:
    for token in ids:
        round.offer(token)
