"""Exact output laws of speculative decoding over rationals, by summing over every draw, acceptance and correction.

Knows the mathematics of the report's "Exact stochastic step" and nothing of the code that implements it. Laws are dicts
from outcomes to ``fractions.Fraction``; nothing is sampled. Meant for vocabularies of up to six ids and four tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

Ids = tuple[int, ...]
Row = Sequence[Fraction]
Table = Callable[[Ids], Row]
"""The next-token probabilities after a prefix, ``[vocab]``."""

DraftStep = Callable[[Ids], "Row | int | None"]
"""What a drafter does after the prefix and what it proposed so far: a row to be drawn from, an id of its own choice, or
None to end the proposal. Stopping may depend on anything that was proposed, as a real drafter's may."""

T = TypeVar("T", bound=Hashable)


class Outcome(NamedTuple):
    """What one round emits; ``is_correction``: the last token stands in place of a rejected one."""

    ids: Ids
    is_correction: bool


RoundLaw = Callable[[Ids, int], Mapping[Outcome, Fraction]]
"""The law of a round after a prefix, with room for so many proposals."""


def round_law(
    target: Table, draft: DraftStep, prefix: Ids, room: int, stop_ids: frozenset[int] = frozenset()
) -> dict[Outcome, Fraction]:
    """Return the law of one round of residual verification."""
    law: dict[Outcome, Fraction] = {}
    for proposed, laws, weight in _proposals(draft, prefix, room, stop_ids):
        for outcome, prob in _verified(target, prefix, proposed, laws, stop_ids):
            law[outcome] = law.get(outcome, Fraction(0)) + weight * prob
    return {outcome: prob for outcome, prob in law.items() if prob}


def sequence_law(
    rounds: RoundLaw, prefix: Ids, num_tokens: int, max_draft: int, stop_ids: frozenset[int] = frozenset()
) -> dict[Ids, Fraction]:
    """Return the law of a whole output of at most ``num_tokens``, round after round.

    Rounds draw independently of one another, so a round's law depends on its prefix alone. The room of a round is
    ``min(max_draft, remaining - 1)``, as the engine has it.
    """
    known: dict[tuple[Ids, int], Mapping[Outcome, Fraction]] = {}
    done: dict[Ids, Fraction] = {}
    open_: dict[Ids, Fraction] = {(): Fraction(1)}
    while open_:
        # The shortest first, so that equal texts that were made by different rounds meet and are extended once.
        emitted = min(open_, key=len)
        weight = open_.pop(emitted)
        if len(emitted) == num_tokens or (emitted and emitted[-1] in stop_ids):
            done[emitted] = done.get(emitted, Fraction(0)) + weight
            continue
        room = min(max_draft, num_tokens - len(emitted) - 1)
        key = (prefix + emitted, room)
        if key not in known:
            known[key] = rounds(*key)
        for outcome, prob in known[key].items():
            longer = emitted + outcome.ids
            open_[longer] = open_.get(longer, Fraction(0)) + weight * prob
    return done


def target_law(
    target: Table, prefix: Ids, num_tokens: int, stop_ids: frozenset[int] = frozenset()
) -> dict[Ids, Fraction]:
    """Return the law of plain decoding: the product of the target's own probabilities."""
    law: dict[Ids, Fraction] = {(): Fraction(1)}
    for _ in range(num_tokens):
        longer: dict[Ids, Fraction] = {}
        for ids, weight in law.items():
            if ids and ids[-1] in stop_ids:
                longer[ids] = weight
                continue
            for token, prob in enumerate(target(prefix + ids)):
                if prob:
                    longer[(*ids, token)] = weight * prob
        law = longer
    return law


def first_token_law(law: Mapping[Outcome, Fraction], vocab_size: int) -> list[Fraction]:
    """Return the probabilities of a round's first emitted token, ``[vocab]``."""
    row = [Fraction(0)] * vocab_size
    for outcome, prob in law.items():
        row[outcome.ids[0]] += prob
    return row


def fractions(*weights: int | str | Fraction) -> list[Fraction]:
    """Return weights as probabilities: exact rationals, divided by their sum. ``"0.35"`` is read as 35/100."""
    row = [Fraction(weight) for weight in weights]
    return [weight / sum(row) for weight in row]


def distance(left: Mapping[T, Fraction], right: Mapping[T, Fraction]) -> Fraction:
    """Return the total variation distance of two laws; 1 if one gives mass to what the other makes impossible.

    An impossible outcome is never a matter of rounding, so it is not weighed by its mass.
    """
    if {x for x, prob in left.items() if prob} != {x for x, prob in right.items() if prob}:
        return Fraction(1)
    return sum((abs(left[x] - right[x]) for x in left if left[x]), Fraction(0)) / 2


def _proposals(
    draft: DraftStep, prefix: Ids, room: int, stop_ids: frozenset[int]
) -> Iterable[tuple[Ids, tuple[Row | int, ...], Fraction]]:
    """Yield every proposal, the laws of its tokens (a row, or the id of a point mass) and its probability."""
    stack: list[tuple[Ids, tuple[Row | int, ...], Fraction]] = [((), (), Fraction(1))]
    while stack:
        proposed, laws, weight = stack.pop()
        is_ended = len(proposed) == room or (proposed and proposed[-1] in stop_ids)
        step = None if is_ended else draft(prefix + proposed)
        if step is None:
            yield proposed, laws, weight
        elif isinstance(step, int):
            stack.append(((*proposed, step), (*laws, step), weight))
        else:
            stack += [((*proposed, y), (*laws, step), weight * p) for y, p in enumerate(step) if p]


def _verified(
    target: Table, prefix: Ids, proposed: Ids, laws: tuple[Row | int, ...], stop_ids: frozenset[int]
) -> Iterable[tuple[Outcome, Fraction]]:
    """Yield what verification makes of one proposal, with probabilities."""
    weight = Fraction(1)
    for index, (token, law) in enumerate(zip(proposed, laws, strict=True)):
        q = target(prefix + proposed[:index])
        p = [Fraction(x == law) for x in range(len(q))] if isinstance(law, int) else law
        accept = min(Fraction(1), q[token] / p[token])
        residual = [max(q[x] - p[x], Fraction(0)) for x in range(len(q))]
        mass = sum(residual, Fraction(0))
        if accept < 1:
            for x, excess in enumerate(residual):
                yield Outcome((*proposed[:index], x), True), weight * (1 - accept) * excess / mass
        weight *= accept
        if not weight:
            return
        if token in stop_ids:
            yield Outcome(proposed[: index + 1], False), weight
            return
    for x, prob in enumerate(target(prefix + proposed)):
        yield Outcome((*proposed, x), False), weight * prob
