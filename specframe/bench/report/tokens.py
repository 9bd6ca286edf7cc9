"""The token view: a generated text token by token, with where each one comes from.

Knows records only; colours and markup are the page's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from specframe.bench.lines import ACCEPTED, CORRECTION, EXTRA, PLAIN, Origin, RequestRecord
from specframe.bench.report.study import Study
from specframe.bench.visible import visible

MOST_TOKENS = 200
NAMES = {
    ACCEPTED: "proposed and accepted",
    CORRECTION: "of the target in place of a rejected one",
    EXTRA: "of the target after a proposal that stood whole",
    PLAIN: "of the target where nothing was proposed",
}
"""What tokens of each origin are, after their number."""


class Token(NamedTuple):
    """A token as it is shown. ``number``: of its drafter among those of the report, from 1; 0 for none."""

    text: str
    how: str
    number: int
    told: str


class Round(NamedTuple):
    """The tokens of one round."""

    round_id: int
    num_proposed: int
    tokens: tuple[Token, ...]


class Sample(NamedTuple):
    """One output. ``told``: its tokens counted by origin; ``num_left``: those that are not shown."""

    arm: str
    stratum: str
    name: str
    rounds: tuple[Round, ...]
    told: str
    num_left: int


def drafters_of(study: Study) -> list[str]:
    """Return the drafters that proposed anything, in the order in which they first appear."""
    names = (Origin.parse(origin).drafter for request in study.results.requests for origin in request.origins)
    return list(dict.fromkeys(name for name in names if name is not None))


def samples(study: Study, arm: str) -> list[Sample]:
    """Return the first output of an arm in each stratum that tells where its tokens come from."""
    numbers = {name: number for number, name in enumerate(drafters_of(study), start=1)}
    first: dict[str, RequestRecord] = {}
    for request in study.finished(arm):
        if request.origins and request.pieces:
            first.setdefault(request.kind, request)
    return [_sample(first[kind], numbers) for kind in study.summary.kinds if kind in first]


def _sample(request: RequestRecord, numbers: dict[str, int]) -> Sample:
    origins = [Origin.parse(text) for text in request.origins]
    counts = [(sum(origin.how == how for origin in origins), name) for how, name in NAMES.items()]
    told = ", ".join(f"{count} {name}" for count, name in counts if count)
    return Sample(
        request.arm,
        request.kind,
        request.name,
        tuple(_rounds(request, origins, numbers)),
        f"{len(origins)} tokens: {told}.",
        max(0, len(origins) - MOST_TOKENS),
    )


def _rounds(request: RequestRecord, origins: Sequence[Origin], numbers: dict[str, int]) -> Iterator[Round]:
    round_ids = [index for index, count in enumerate(request.rounds.num_emitted) for _ in range(count)]
    parts = list(zip(round_ids, request.pieces, origins, strict=True))[:MOST_TOKENS]
    for round_id, group in groupby(parts, key=lambda part: part[0]):
        yield Round(
            round_id,
            request.rounds.num_proposed[round_id],
            tuple(_token(round_id, piece, origin, numbers) for _, piece, origin in group),
        )


def _token(round_id: int, piece: str, origin: Origin, numbers: dict[str, int]) -> Token:
    by = f" by {origin.drafter}" if origin.drafter and origin.how == ACCEPTED else ""
    instead = f" ({origin.drafter}'s)" if origin.drafter and origin.how == CORRECTION else ""
    how = {
        ACCEPTED: f"proposed{by}, accepted",
        CORRECTION: f"correction of a rejected token{instead}",
        EXTRA: "extra token of the target",
        PLAIN: "target, nothing proposed" if round_id else "target, after the prompt",
    }[origin.how]
    return Token(
        visible(piece, keep="\n\t"),
        origin.how,
        numbers.get(origin.drafter or "", 0) if origin.how == ACCEPTED else 0,
        f"round {round_id}: {how}",
    )
