"""Teaching a draft to say what the target says: cross-entropy against the target's likeliest ids, on answers only.

Resumable: weights, optimiser and step are written as a whole, so a kill loses the steps since the last checkpoint.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch
from torch.nn.functional import nll_loss
from transformers import PreTrainedModel

from specframe.files import write_whole
from specframe.train.corpus import Shard
from specframe.train.shape import own_parameters

_NUM_WATCHED = 16  # held-out rows that progress is told of; all of them would take as long as training


@attrs.frozen
class DistilSettings:
    """``steps`` of ``rows`` conversations each; ``rate``: the highest learning rate, after ``warmup`` steps, falling to a tenth
    as a cosine; ``hard``: the part of the loss that asks for the target's likeliest id, which is what greedy drafting needs;
    ``dtype``: of the products, ``bfloat16`` where the machine is faster in it.
    """

    steps: int = 1000
    rows: int = 8
    rate: float = 6e-4
    warmup: int = 50
    hard: float = 0.5
    seed: int = 0
    save_every_s: float = 60.0
    dtype: str = "float32"


class Progress(NamedTuple):
    """Where training stands. ``acceptance``: how often, on held-out answers, the draft's likeliest id is the target's."""

    step: int
    steps: int
    loss: float
    acceptance: float
    seconds_left: float


def distil(
    draft: PreTrainedModel,
    shards: Sequence[Shard],
    held_out: Shard,
    target_ids: Sequence[int],
    settings: DistilSettings,
    checkpoint: Path,
    *,
    progress: Callable[[Progress], None],
) -> float:
    """Train in place, from the checkpoint if there is one; return the held-out acceptance."""
    embeddings: Any = draft.get_input_embeddings()
    columns = _columns(target_ids, len(embeddings.weight))
    parameters = [parameter for _, parameter in own_parameters(draft)]
    optimiser = torch.optim.AdamW(parameters, lr=settings.rate, weight_decay=0.01, betas=(0.9, 0.95))
    first = _restore(draft, optimiser, checkpoint)
    rows = [(shard, row) for shard in range(len(shards)) for row in range(len(shards[shard].ids))]
    started = saved = time.monotonic()
    told, loss = first, math.nan
    parts: Any = held_out
    watched = Shard(*(part[:_NUM_WATCHED] for part in parts))
    draft.train()
    for step in range(first, settings.steps):
        # The order of an epoch follows from its number alone, so that a resumed run sees what it would have seen.
        epoch, place = divmod(step * settings.rows, len(rows))
        order = np.random.default_rng((settings.seed, epoch)).permutation(len(rows))
        chosen = [rows[order[(place + offset) % len(rows)]] for offset in range(settings.rows)]
        for group in optimiser.param_groups:
            group["lr"] = settings.rate * _schedule(step, settings)
        optimiser.zero_grad(set_to_none=True)
        value = _loss(draft, _batch(shards, chosen), columns, settings)
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.step()
        loss = value.item() if math.isnan(loss) else 0.95 * loss + 0.05 * value.item()
        now = time.monotonic()
        if now - saved >= settings.save_every_s or step + 1 == settings.steps:
            _save(draft, optimiser, step + 1, checkpoint)
            saved = time.monotonic()
        if step + 1 - told >= max(settings.steps // 50, 1) or step + 1 == settings.steps:
            told = step + 1
            left = (now - started) / (step + 1 - first) * (settings.steps - step - 1)
            progress(Progress(step + 1, settings.steps, loss, acceptance(draft, watched, target_ids), left))
    draft.eval()
    return acceptance(draft, held_out, target_ids)


@torch.no_grad()
def acceptance(draft: PreTrainedModel, shard: Shard, target_ids: Sequence[int]) -> float:
    """Return how often, over the answers of a shard, the draft's likeliest id is the target's."""
    was_training = draft.training
    draft.eval()
    ids = np.array(target_ids)
    same = total = 0
    for row in range(len(shard.ids)):
        learned = np.flatnonzero(shard.is_answer[row])
        if not len(learned):
            continue
        logits = _rows(draft, torch.tensor(shard.ids[row : row + 1, :-1]).long())[0]
        said = ids[logits[learned - 1].argmax(-1).numpy()]
        same += int((said == shard.likeliest[row, learned, 0]).sum())
        total += len(learned)
    draft.train(was_training)
    return same / total if total else 0.0


def _loss(draft: PreTrainedModel, batch: Shard, columns: torch.Tensor, settings: DistilSettings) -> torch.Tensor:
    learned = torch.tensor(batch.is_answer[:, 1:])
    with torch.autocast("cpu", torch.bfloat16, enabled=settings.dtype == "bfloat16"):
        logits = _rows(draft, torch.tensor(batch.ids[:, :-1]).long())
    logits = logits[learned].float()
    wanted = columns[
        torch.tensor(batch.likeliest[:, 1:]).long()[learned]
    ]  # [positions, 16], -1 where there is no column
    weights = torch.tensor(batch.log_probs[:, 1:])[learned].float().exp() * (wanted >= 0)
    log_q = logits.log_softmax(-1)
    soft = -(weights * log_q.gather(1, wanted.clamp(min=0))).sum()
    likeliest = nll_loss(log_q, wanted[:, 0], ignore_index=-1, reduction="sum")
    return (settings.hard * likeliest + (1 - settings.hard) * soft) / max(len(log_q), 1)


def _rows(draft: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = draft(input_ids=ids, use_cache=False).logits
    return logits


def _batch(shards: Sequence[Shard], chosen: Sequence[tuple[int, int]]) -> Shard:
    return Shard(*(np.stack([getattr(shards[shard], name)[row] for shard, row in chosen]) for name in Shard._fields))


def _columns(target_ids: Sequence[int], vocab_size: int) -> torch.Tensor:
    """Return the column of every target id, -1 for an id without one."""
    columns = torch.full((vocab_size,), -1)
    columns[torch.tensor(target_ids)] = torch.arange(len(target_ids))
    return columns


def _schedule(step: int, settings: DistilSettings) -> float:
    if step < settings.warmup:
        return (step + 1) / settings.warmup
    part = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * part))


def _save(draft: PreTrainedModel, optimiser: Any, step: int, file: Path) -> None:
    content = io.BytesIO()
    own = {name: parameter.detach() for name, parameter in own_parameters(draft)}
    torch.save({"step": step, "draft": own, "optimiser": optimiser.state_dict()}, content)
    write_whole(file, content.getvalue())


def _restore(draft: PreTrainedModel, optimiser: Any, file: Path) -> int:
    if not file.is_file():
        return 0
    kept = torch.load(file, weights_only=True)
    with torch.no_grad():
        for name, parameter in own_parameters(draft):
            parameter.copy_(kept["draft"][name])
    optimiser.load_state_dict(kept["optimiser"])
    return int(kept["step"])
