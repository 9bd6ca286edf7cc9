"""What must hold between the fields of a line of results, whatever was measured: no run writes a line that breaks it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import attrs

from specframe.bench.lines import ACCEPTED, CORRECTION, EXTRA, PHASES, PLAIN, ArmRecord, Header, Origin, RequestRecord

_ROUNDING_S = 1e-7  # seconds are written to so many


def broken(record: Header | ArmRecord | RequestRecord) -> Iterator[str]:
    """Tell which identities a line breaks, a sentence each."""
    if isinstance(record, ArmRecord):
        yield from _not_seconds(record, ("target_load_s", "drafters_load_s"))
        if record.bytes is not None and record.bytes.peak_resident < 1:
            yield f"'bytes.peak_resident' must be >= 1 (got {record.bytes.peak_resident})"
    elif isinstance(record, RequestRecord):
        yield from _not_seconds(record, ("end_to_end_s", "first_token_s", "decode_s"))
        yield from _broken_output(record)
        yield from _broken_counts(record)
        yield from _broken_phases(record)


def _not_seconds(record: Any, names: Iterable[str]) -> Iterator[str]:
    for name in names:
        value = getattr(record, name)
        if value is not None and not 0 <= value < math.inf:
            yield f"'{name}' must be a number of seconds >= 0 (got {value!r})"


def _broken_output(record: RequestRecord) -> Iterator[str]:
    num_tokens = len(record.token_ids)
    if record.error is None and None in (record.end_to_end_s, record.first_token_s, record.decode_s):
        yield "a request without an error must have its seconds"
    if not 0 <= record.num_first <= num_tokens:
        yield f"'num_first' must be 0 to the number of tokens, {num_tokens} (got {record.num_first})"
    for name in ("pieces", "origins"):
        if len(getattr(record, name)) not in (0, num_tokens):
            yield f"'{name}' must have an entry for each of {num_tokens} tokens, or none"
    if "".join(record.pieces) != record.text:
        yield "'pieces' must make up 'text'"
    for origin in dict.fromkeys(record.origins):
        if Origin.parse(origin).how not in (PLAIN, ACCEPTED, CORRECTION, EXTRA):
            yield f"'origins' must hold {PLAIN}, {ACCEPTED}, {CORRECTION} or {EXTRA} (got {origin!r})"


def _broken_counts(record: RequestRecord) -> Iterator[str]:
    rounds, positions, drafters = record.rounds, record.positions, record.drafters.values()
    columns = attrs.astuple(rounds, recurse=False)
    if len({len(column) for column in columns}) > 1:
        yield "the columns of 'rounds' must be equally long"
        return
    if any(not 0 <= seconds < math.inf for column in columns[3:] for seconds in column):
        yield "'rounds' must hold numbers of seconds >= 0"
    if rounds.num_emitted and sum(rounds.num_emitted) != len(record.token_ids):
        yield "the rounds must have emitted all tokens, and no more"
    for index, (proposed, decided, evaluated, accepted, kept) in enumerate(map(attrs.astuple, positions)):
        before = positions[index - 1].num_accepted if index else proposed
        if not 0 <= kept <= accepted <= evaluated <= min(decided, before) or decided > proposed:
            yield f"the counts of 'positions[{index}]' must not exceed one another"
    reached = [sum(count > index for count in rounds.num_proposed) for index in range(len(positions))]
    is_whole = max(rounds.num_proposed, default=0) == len(positions)
    if rounds.num_proposed and not (is_whole and reached == [one.num_proposed for one in positions]):
        yield "the rounds must have proposed what 'positions' counts"
    if rounds.num_accepted and sum(rounds.num_accepted) != sum(one.num_accepted for one in positions):
        yield "the rounds must have accepted what 'positions' counts"
    for name in ("num_proposed", "num_evaluated", "num_accepted"):
        if drafters and sum(getattr(one, name) for one in drafters) != sum(getattr(one, name) for one in positions):
            yield f"'{name}' of the drafters must make up that of 'positions'"
    num_kept = sum(one.num_kept for one in positions)
    origins = Counter(record.origins)
    if origins and num_kept != sum(count for text, count in origins.items() if Origin.parse(text).how == ACCEPTED):
        yield "'origins' must hold as many accepted tokens as 'positions' kept"
    if not all(math.isfinite(entropy) for one in drafters for entropy, _ in one.entropies):
        yield "entropies must be finite numbers of nats"


def _broken_phases(record: RequestRecord) -> Iterator[str]:
    phases = record.phases
    if not phases:
        return
    if phases.keys() != set(PHASES):
        yield f"'phases' must have {', '.join(PHASES)}, or nothing"
        return
    if not math.isclose(sum(phases.values()), record.end_to_end_s or 0.0, abs_tol=_ROUNDING_S * len(PHASES)):
        yield f"'phases' must make up 'end_to_end_s', {record.end_to_end_s} (got {sum(phases.values())})"
    for name, seconds in record.rounds.phases.items():
        if not math.isclose(phases[name], seconds, abs_tol=_ROUNDING_S):
            yield f"'{name}' of 'phases' must be the sum over the rounds, {seconds} (got {phases[name]})"
