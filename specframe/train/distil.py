"""Teaching a draft to say what the target says: cross-entropy against the target's likeliest ids, on answers only.

Resumable: weights, optimiser and step are written as a whole, so a kill loses the steps since the last checkpoint.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from transformers import PreTrainedModel

from specframe.checks import count, number, one_of
from specframe.errors import InvalidRequest
from specframe.files import write_whole
from specframe.train.corpus import Shard
from specframe.train.shape import own_parameters
from specframe.train.work import damaged

_NUM_WATCHED = 16  # held-out rows that progress is told of; all of them would take as long as training
_NUM_NEWS = 50  # how often in a training
_SAVE_EVERY_S = 60.0


@attrs.frozen
class DistilSettings:
    """Training ends after ``steps`` of ``rows`` conversations, or after ``minutes``, whichever comes first; None: no limit.

    ``rate``: the highest learning rate, reached after ``warmup`` steps, falling to nothing as a cosine over the training;
    ``hard``: the part of the loss that asks for the target's likeliest id, which is what greedy drafting needs; ``dtype``:
    of the products, ``bfloat16`` where the machine is faster in it (weights and optimiser are float32).
    """

    steps: int | None = attrs.field(default=4000, validator=count(1))
    minutes: float | None = attrs.field(default=None, validator=number(0, open_low=True))
    rows: int = attrs.field(default=4, validator=count(1))
    rate: float = attrs.field(default=1.5e-3, validator=number(0, open_low=True))
    warmup: int = attrs.field(default=60, validator=count(0))
    hard: float = attrs.field(default=0.25, validator=number(0, 1))
    seed: int = attrs.field(default=0, validator=count(0))
    dtype: str = attrs.field(default="float32", validator=one_of("float32", "bfloat16"))

    def __attrs_post_init__(self) -> None:
        if self.steps is None and self.minutes is None:
            raise InvalidRequest("steps", "must be given where minutes are not", None)


class Progress(NamedTuple):
    """Where training stands: ``part`` of it is done. ``acceptance``: of the watched held-out rows."""

    part: float
    step: int
    loss: float
    acceptance: float
    seconds_left: float


class Trained(NamedTuple):
    """What a training took, over all runs that it was spread over."""

    steps: int
    seconds: float


class Acceptance(NamedTuple):
    """How often, on answers, the draft's likeliest id is the target's: on all, and where the answer is greedy."""

    overall: float
    greedy: float


class _Lesson(NamedTuple):
    """A row to learn from: its ids ``[length]``, the positions whose rows are learned ``[n]``, and for each the columns
    that are asked for and the weights of their log-probabilities ``[n, 16]``.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    columns: torch.Tensor
    weights: torch.Tensor


def distil(
    draft: PreTrainedModel,
    shards: Sequence[Shard],
    held_out: Shard,
    target_ids: Sequence[int],
    settings: DistilSettings,
    checkpoint: Path,
    *,
    progress: Callable[[Progress], None],
) -> Trained:
    """Train in place, from the checkpoint if there is one. Raises ``InvalidRequest`` where the loss grows past all bounds."""
    draft.eval()  # without dropout: a resumed run learns what it would have learned
    embeddings: Any = draft.get_input_embeddings()
    columns = _columns(target_ids, len(embeddings.weight))
    lessons = [lesson for shard in shards for lesson in _lessons(shard, columns, settings.hard)]
    watched = Shard(*(part[:_NUM_WATCHED] for part in held_out))
    parameters = [parameter for _, parameter in own_parameters(draft)]
    optimiser = torch.optim.AdamW(parameters, lr=settings.rate, weight_decay=0.1, betas=(0.9, 0.95), fused=True)
    step, before = _restore(draft, optimiser, checkpoint)
    seconds, loss, order = before, math.nan, _Order(len(lessons), settings)
    started = saved = time.monotonic()
    began = part = told = _part(step, seconds, settings)
    while part < 1:
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * _schedule(step, part, settings)
        optimiser.zero_grad(set_to_none=True)
        value = _loss(draft, [lessons[index] for index in order.of_step(step)], settings.dtype)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        if not math.isfinite(value.item()):
            rule = f"must be smaller: the loss is {value.item()} in step {step}"
            raise InvalidRequest("rate", rule, settings.rate, "the checkpoint before is kept")
        loss = value.item() if math.isnan(loss) else 0.95 * loss + 0.05 * value.item()
        step += 1
        now = time.monotonic()
        seconds = before + now - started
        part = _part(step, seconds, settings)
        is_news = part - told >= 1 / _NUM_NEWS or part == 1
        if is_news or now - saved >= _SAVE_EVERY_S:
            _save(draft, optimiser, step, seconds, checkpoint)
            saved = now
        if is_news:
            told = part
            left = (now - started) / (part - began) * (1 - part)
            agreed = acceptance(draft, watched, target_ids, dtype=settings.dtype).overall
            progress(Progress(part, step, loss, agreed, left))
    return Trained(step, seconds)


@torch.no_grad()
def acceptance(
    draft: PreTrainedModel, shard: Shard, target_ids: Sequence[int], *, dtype: str = "float32"
) -> Acceptance:
    """Return how often the draft's likeliest id is the target's, over the answers of a shard; ``dtype``: of the products."""
    ids = np.array(target_ids)
    same, total = np.zeros(len(shard.ids)), np.zeros(len(shard.ids))
    for row, is_answer in enumerate(shard.is_answer):
        (learned,) = np.nonzero(is_answer)
        if not len(learned):
            continue
        logits = _rows(draft, torch.tensor(shard.ids[row : row + 1]).long(), [torch.tensor(learned - 1)], dtype)
        said = ids[logits.argmax(-1).numpy()]
        same[row], total[row] = (said == shard.likeliest[row, learned, 0]).sum(), len(learned)
    greedy = shard.is_greedy
    return Acceptance(_ratio(same.sum(), total.sum()), _ratio(same[greedy].sum(), total[greedy].sum()))


def _ratio(same: float, total: float) -> float:
    return float(same / total) if total else 0.0


def _lessons(shard: Shard, columns: torch.Tensor, hard: float) -> Iterator[_Lesson]:
    """Give the rows that hold an answer; what is asked for of ids without a column is left out."""
    for ids, is_answer, likeliest, log_probs in zip(*shard[:4], strict=True):
        (learned,) = np.nonzero(is_answer)
        if not len(learned):
            continue
        wanted = columns[torch.tensor(likeliest[learned]).long()]  # -1 where there is no column
        weights = (1 - hard) * torch.tensor(log_probs[learned]).float().exp()
        weights[:, 0] += hard
        yield _Lesson(
            torch.tensor(ids).long(),
            torch.tensor(learned - 1),
            wanted.clamp(min=0).to(torch.int32),
            weights * (wanted >= 0),
        )


def _loss(draft: PreTrainedModel, lessons: Sequence[_Lesson], dtype: str) -> torch.Tensor:
    ids = torch.stack([lesson.ids for lesson in lessons])
    logits = _rows(draft, ids, [lesson.positions for lesson in lessons], dtype)
    columns, weights = (torch.cat([getattr(lesson, name) for lesson in lessons]) for name in ("columns", "weights"))
    log_q = logits.log_softmax(-1, dtype=torch.float32)
    return -(weights * log_q.gather(1, columns.long())).sum() / len(log_q)


def _rows(draft: PreTrainedModel, ids: torch.Tensor, positions: Sequence[torch.Tensor], dtype: str) -> torch.Tensor:
    """Return the logits after some positions of each row of ids, ``[num_positions, columns]``, row after row."""
    places = torch.cat([row * ids.shape[1] + position for row, position in enumerate(positions)])
    with _head_on(draft, places), torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
        logits: torch.Tensor = draft(input_ids=ids, use_cache=False).logits
    return logits


@contextmanager
def _head_on(draft: PreTrainedModel, places: torch.Tensor) -> Iterator[None]:
    """Let the head see some rows only: it is most of a small draft, and ``logits_to_keep`` takes the same for all texts."""
    head: Any = draft.get_output_embeddings()
    handle = head.register_forward_pre_hook(lambda module, inputs: (inputs[0].flatten(0, 1)[places],))
    try:
        yield
    finally:
        handle.remove()


def _columns(target_ids: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Return the column of every target id, -1 for an id without one."""
    columns = torch.full((vocab_size,), -1)
    columns[torch.tensor(target_ids)] = torch.arange(len(target_ids))
    return columns


class _Order:
    """Which rows a step learns from. It follows from the step's number alone, so that a resumed run sees what it would have."""

    def __init__(self, num_rows: int, settings: DistilSettings) -> None:
        self._num_rows, self._settings = num_rows, settings
        self._epoch, self._order = -1, np.arange(0)

    def of_step(self, step: int) -> list[int]:
        first = step * self._settings.rows
        return [self._row(place) for place in range(first, first + self._settings.rows)]

    def _row(self, place: int) -> int:
        epoch, offset = divmod(place, self._num_rows)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng((self._settings.seed, epoch)).permutation(self._num_rows)
        return int(self._order[offset])


def _part(step: int, seconds: float, settings: DistilSettings) -> float:
    """Return how much of a training is done, by steps or by time, whichever is nearer to its end."""
    by_steps = step / settings.steps if settings.steps is not None else 0.0
    by_time = seconds / (60 * settings.minutes) if settings.minutes is not None else 0.0
    return min(max(by_steps, by_time), 1.0)


def _schedule(step: int, part: float, settings: DistilSettings) -> float:
    return min((step + 1) / max(settings.warmup, 1), 1.0) * 0.5 * (1 + math.cos(math.pi * part))


def _save(draft: PreTrainedModel, optimiser: Any, step: int, seconds: float, file: Path) -> None:
    content = io.BytesIO()
    own = {name: parameter.detach() for name, parameter in own_parameters(draft)}
    torch.save({"step": step, "seconds": seconds, "draft": own, "optimiser": optimiser.state_dict()}, content)
    write_whole(file, content.getvalue())


def _restore(draft: PreTrainedModel, optimiser: Any, file: Path) -> tuple[int, float]:
    """Take up a checkpoint; return its step and the seconds of training before it."""
    if not file.is_file():
        return 0, 0.0
    try:
        kept = torch.load(file, weights_only=True)
    except Exception as error:  # of pickles and archives there are many
        raise damaged(file, error) from error
    with torch.no_grad():
        for name, parameter in own_parameters(draft):
            parameter.copy_(kept["draft"][name])
    optimiser.load_state_dict(kept["optimiser"])
    return int(kept["step"]), float(kept["seconds"])
