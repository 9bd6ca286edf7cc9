"""How fast an arm is beside a reference: ratios of requests, their median with a confidence interval, and equal tokens.

A *request* is an item of the plan with a seed; its repeats are measurements of one thing. A speed-up is how many times faster
an arm is than a reference: of a request, the median over repeats of the reference's time over the arm's in the same repeat.
A request whose outputs differ in length has none and is counted apart. Pure functions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from specframe.bench.lines import RequestRecord, finished

CONFIDENCE = 0.95


@attrs.frozen
class Ratios:
    """Speed-ups of requests.

    ``low``, ``high``: a confidence interval of the median over prompts, each with the median over its seeds, for outputs of
    one prompt are no independent evidence; None for fewer than six. ``p10``: what nine requests in ten reach; ``total``: the
    reference's seconds over the arm's, both in total. All are None where there is no request.
    """

    values: tuple[float, ...]
    median: float | None = None
    low: float | None = None
    high: float | None = None
    p10: float | None = None
    total: float | None = None


@attrs.frozen
class Speed:
    """An arm against a reference, over the requests that both finished.

    ``num_requests``: of those, ``num_matched`` have the same token ids in every repeat, and ``num_other_length`` another
    number of them, which leaves them out of the ratios. ``end_to_end``: from the call to its return; ``decode``: per token
    after the first ones were there; ``first_token``: until they were.
    """

    num_requests: int
    num_matched: int
    num_other_length: int
    end_to_end: Ratios
    decode: Ratios
    first_token: Ratios

    @property
    def matched(self) -> str:
        """``matched n/n``."""
        return f"matched {self.num_matched}/{self.num_requests}"


def speed(own: Iterable[RequestRecord], reference: Iterable[RequestRecord]) -> Speed:
    """Compare an arm's requests with a reference's."""
    theirs = {(*record.request, record.repeat): record for record in finished(reference)}
    pairs: dict[tuple[int, int | None], list[tuple[RequestRecord, RequestRecord]]] = {}
    for record in finished(own):
        other = theirs.get((*record.request, record.repeat))
        if other is not None:
            pairs.setdefault(record.request, []).append((record, other))
    same_length = {
        request: repeats
        for request, repeats in pairs.items()
        if all(len(first.token_ids) == len(second.token_ids) for first, second in repeats)
    }
    return Speed(
        num_requests=len(pairs),
        num_matched=sum(
            all(first.token_ids == second.token_ids for first, second in repeats) for repeats in pairs.values()
        ),
        num_other_length=len(pairs) - len(same_length),
        end_to_end=_ratios(same_length, lambda record: record.end_to_end_s),
        decode=_ratios(same_length, _decode_s_per_token),
        first_token=_ratios(same_length, lambda record: record.first_token_s),
    )


def _ratios(
    requests: Mapping[tuple[int, int | None], Sequence[tuple[RequestRecord, RequestRecord]]],
    seconds: Callable[[RequestRecord], float | None],
) -> Ratios:
    values: list[float] = []
    of_prompt: dict[int, list[float]] = {}
    own_s = their_s = 0.0
    for (index, _), repeats in requests.items():
        timed = [(seconds(first), seconds(second)) for first, second in repeats]
        pairs = [(first, second) for first, second in timed if first and second]
        if not pairs:
            continue
        values.append(statistics.median(second / first for first, second in pairs))
        of_prompt.setdefault(index, []).append(values[-1])
        own_s += statistics.median(first for first, _ in pairs)
        their_s += statistics.median(second for _, second in pairs)
    if not values:
        return Ratios(())
    low, high = median_interval(list(map(statistics.median, of_prompt.values()))) or (None, None)
    ordered = sorted(values)
    return Ratios(
        tuple(values), statistics.median(values), low, high, ordered[math.floor(0.1 * len(ordered))], their_s / own_s
    )


def _decode_s_per_token(record: RequestRecord) -> float | None:
    num_tokens = len(record.token_ids) - record.num_first
    return record.decode_s / num_tokens if record.decode_s is not None and num_tokens > 0 else None


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float] | None:
    """Return a confidence interval of a median by counting signs, or None where there are too few values.

    Exact for any distribution of independent values: from the r-th smallest to the r-th largest, with the greatest r for which
    a fair coin gives fewer than r heads, or fewer than r tails, with probability 1 - confidence at most.
    """
    ordered, count = sorted(values), len(values)
    tail, rank = 0.0, 0
    while rank < count // 2:
        tail += 2 * math.exp(_log_choose(count, rank) - count * math.log(2))
        if tail > 1 - confidence:
            break
        rank += 1
    return (ordered[rank - 1], ordered[count - rank]) if rank else None


def _log_choose(count: int, chosen: int) -> float:
    return math.lgamma(count + 1) - math.lgamma(chosen + 1) - math.lgamma(count - chosen + 1)
