"""What the engine costs beside the model's forwards, and what a round copies at a long context."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import DynamicCache

from specframe.bench.arms import EngineArm, lookup_strategy
from specframe.strategy import Strategy
from specframe.target import Ticket
from specframe.transformers_target import TransformersTarget

_ATEN = torch.ops.aten
COPIES = (_ATEN.cat, _ATEN.copy_, _ATEN.clone, _ATEN._to_copy, _ATEN.repeat, _ATEN.index_select)


@contextmanager
def forward_times(model: Any) -> Iterator[list[float]]:
    """Collect the seconds of every forward of a model inside the block."""
    seconds: list[float] = []
    forward = model.forward

    def timed(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        output = forward(*args, **kwargs)
        seconds.append(time.perf_counter() - start)
        return output

    model.forward = timed
    try:
        yield seconds
    finally:
        del model.forward


def outside_forwards(
    target: TransformersTarget, prompt: Sequence[int], *, max_new_tokens: int, repeats: int
) -> dict[str, Any]:
    """Return the engine's milliseconds outside forwards: per round when greedy, per row evaluated when sampling.

    Also over the median time of a one-row forward under the same setting. Each figure is the least of the repeats.
    """
    settings: dict[str, dict[str, Any]] = {
        "greedy": {},
        "temperature 0.8, top-p 0.95": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
        "temperature 1": {"temperature": 1.0, "seed": 1},
        "temperature 0.8, top-k 50": {"temperature": 0.8, "top_k": 50, "seed": 1},
    }
    strategies = {"plain": Strategy(), "lookup": lookup_strategy(15, min_ngram=1)}
    found: dict[str, Any] = {}
    for setting, policy in settings.items():
        one_row: list[float] = []  # of plain decoding too: a drafter that always proposes leaves no such forward
        for name, strategy in strategies.items():
            arm = EngineArm(target, strategy, **policy)
            per_round, per_row = [], []
            for _ in range(repeats):
                target.reset()
                with forward_times(target.model) as seconds:
                    start = time.perf_counter()
                    arm(prompt, max_new_tokens)
                    outside = time.perf_counter() - start - sum(seconds)
                assert arm.last is not None
                records = arm.last.records
                per_round.append(outside / len(records))
                per_row.append(outside / sum(record.num_evaluated + 1 for record in records))
                single = [record.forward_s for record in records[1:] if record.num_proposed == 0]
                one_row += [statistics.median(single)] if single else []
            found[f"{setting}, {name}"] = {
                "ms_per_round": round(min(per_round) * 1e3, 4),
                "ms_per_row_evaluated": round(min(per_row) * 1e3, 4),
                "per_row_over_one_row_forward": round(min(per_row) / min(one_row), 5),
            }
    return found


def copied_per_round(target: TransformersTarget, *, num_positions: int, num_rows: int) -> dict[str, Any]:
    """Return the megabytes that copying operators write in one round at a long context, here and with transformers' cache."""
    model = target.model
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, target.facts.vocab_size, (num_positions + num_rows,), generator=generator).tolist()
    prompt, block = ids[:num_positions], ids[num_positions:]

    target.reset()
    session = target.open(0, max_tokens=num_positions + 2 * num_rows)
    ticket = Ticket(0, 0, session.epoch)
    session.prefill(ticket, prompt)

    def own_round() -> None:
        session.verify_linear(ticket, block[0], block[1:])
        session.commit(ticket, 0)

    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.tensor([prompt]), cache=cache, logits_to_keep=1)

    def library_round() -> None:
        with torch.inference_mode():
            model(torch.tensor([block]), cache=cache)
        cache.crop(-num_rows)

    layers: Any = cache.layers
    past = sum(layer.keys.nbytes + layer.values.nbytes for layer in layers)
    result = {
        "positions": num_positions,
        "rows": num_rows,
        "past_megabytes": round(past / 1e6, 2),
        "copied_megabytes": round(_copied_megabytes(own_round), 2),
        "copied_megabytes_with_transformers_cache": round(_copied_megabytes(library_round), 2),
        "time_over_transformers_cache": round(_paired_ratio(own_round, library_round), 4),
    }
    session.close()
    target.reset()
    return result


class _CopyCounter(TorchDispatchMode):
    """Adds up the bytes that copying operators write."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the library's own
        self.num_bytes: int = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if func.overloadpacket in COPIES:
            written = args[0] if func.overloadpacket is torch.ops.aten.copy_ else output
            self.num_bytes += written.numel() * written.element_size()
        return output


def _copied_megabytes(run: Callable[[], None]) -> float:
    run()  # buffers are made on the first call
    with _CopyCounter() as counter:
        run()
    return float(counter.num_bytes / 1e6)


def _paired_ratio(first: Callable[[], None], second: Callable[[], None], pairs: int = 15) -> float:
    ratios = []
    for _ in range(pairs):
        start = time.perf_counter()
        first()
        middle = time.perf_counter()
        second()
        ratios.append((middle - start) / (time.perf_counter() - middle))
    return statistics.median(ratios)
