"""The text that a target writes for its draft to learn from, with what it would have said at every position.

Conversations are written side by side, one id of each in every forward, so no row is padded. They are kept in shards, each
made from a seed of its own and written whole: a killed run goes on with the next one.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from specframe.cache import TransactionalCache
from specframe.files import write_whole
from specframe.train.prompts import prompt_digest
from specframe.train.script import Conversation, Script
from specframe.transformers_target import TransformersTarget

NUM_LIKELIEST = 16  # ids of each of the target's rows that are kept
_NUM_DRAWN_FROM = 32


class Shard(NamedTuple):
    """Conversations of one length: ``ids``, ``is_answer`` ``[rows, length]``, and at each position the target's likeliest ids
    for it with their log-probabilities, ``likeliest``, ``log_probs`` ``[rows, length, 16]``.
    """

    ids: np.ndarray[Any, np.dtype[np.int32]]
    is_answer: np.ndarray[Any, np.dtype[np.bool_]]
    likeliest: np.ndarray[Any, np.dtype[np.int32]]
    log_probs: np.ndarray[Any, np.dtype[np.float16]]


@attrs.frozen
class CorpusSettings:
    """``rows`` conversations of ``length`` ids a shard; ``temperature`` of every second row's answers, the others being
    greedy; user turns are drawn at temperature 1. ``dtype``: of the target while it writes.
    """

    rows: int = 64
    length: int = 512
    temperature: float = 0.8
    seed: int = 0
    dtype: str = "float32"


class Corpus:
    """The shards under a folder."""

    def __init__(self, folder: Path, settings: CorpusSettings) -> None:
        self._folder, self._settings = folder, settings

    def __len__(self) -> int:
        return len(self._files())

    def __iter__(self) -> Iterator[Shard]:
        return map(_read, self._files())

    @property
    def digest(self) -> str:
        """The SHA-256 of all shards, in order."""
        return hashlib.sha256(
            b"".join(hashlib.sha256(file.read_bytes()).digest() for file in self._files())
        ).hexdigest()

    def grow(
        self,
        target: TransformersTarget,
        prompts: Sequence[str],
        num_shards: int,
        *,
        sealed: frozenset[str],
        progress: Callable[[int, float], None],
    ) -> None:
        """Let the target write until there are ``num_shards``.

        Every fourth row begins with a prompt of the list, the others with one that the target makes up; rows whose own
        prompt is sealed are left out. ``progress`` is told the shards that are done and the part of the next.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        script = Script.of(target.tokenizer)
        for index in range(len(self), num_shards):
            firsts: list[list[int] | None] = [None] * self._settings.rows
            for row in range(0, self._settings.rows, 4):
                prompt = prompts[(index * self._settings.rows + row) // 4 % len(prompts)]
                firsts[row] = target.tokenizer.encode(prompt, add_special_tokens=False)

            def tell(part: float, done: int = index) -> None:
                progress(done, part)

            shard = write_shard(target, script, firsts, self._settings, index, progress=tell)
            keep = [row for row in range(len(shard.ids)) if not _holds_sealed(target, script, shard, row, sealed)]
            content = io.BytesIO()
            np.savez_compressed(content, **{name: part[keep] for name, part in shard._asdict().items()})
            write_whole(self._folder / f"shard-{index:05}.npz", content.getvalue())

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("shard-*.npz"))


@torch.inference_mode()
def write_shard(
    target: TransformersTarget,
    script: Script,
    firsts: Sequence[Sequence[int] | None],
    settings: CorpusSettings,
    index: int,
    *,
    progress: Callable[[float], None],
) -> Shard:
    """Let the target write one shard; ``firsts`` are the rows' first prompts, None for one of its own."""
    model = target.model
    talks = [Conversation(script, first, target.facts.stop_ids) for first in firsts]
    cache = TransactionalCache(model.config.get_text_config().num_hidden_layers)
    cache.reserve(settings.length)
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
    shape = (len(talks), settings.length, NUM_LIKELIEST)
    likeliest, log_probs = np.zeros(shape, np.int32), np.zeros(shape, np.float16)
    inputs = torch.tensor([[talk.next(_nothing) for _ in script.opening] for talk in talks])
    heat = torch.tensor([[settings.temperature if row % 2 else 0.0] for row in range(len(talks))])
    for position in range(inputs.shape[1], settings.length):
        logits = target.rows(inputs, cache).float()
        top = logits.topk(_NUM_DRAWN_FROM)
        laws = top.values - logits.logsumexp(-1, keepdim=True)
        likeliest[:, position] = top.indices[:, :NUM_LIKELIEST].numpy()
        log_probs[:, position] = laws[:, :NUM_LIKELIEST].numpy()
        noise = -torch.empty_like(laws).exponential_(generator=generator).log()
        temperatures = torch.where(torch.tensor([[talk.is_answer] for talk in talks]), heat, 1.0)
        chosen = top.indices.gather(1, (laws + temperatures * noise).argmax(-1, keepdim=True))[:, 0].tolist()
        inputs = torch.tensor([[talk.next(partial(chosen.__getitem__, row))] for row, talk in enumerate(talks)])
        progress(position / settings.length)
    ids, is_answer = ([getattr(talk, name) for talk in talks] for name in ("ids", "answers"))
    return Shard(np.array(ids, np.int32), np.array(is_answer, np.bool_), likeliest, log_probs)


def _nothing() -> int:
    raise AssertionError("an opening is forced")


def _read(file: Path) -> Shard:
    with np.load(file) as parts:
        return Shard(**{name: parts[name] for name in Shard._fields})


def _holds_sealed(target: TransformersTarget, script: Script, shard: Shard, row: int, sealed: frozenset[str]) -> bool:
    if not sealed:
        return False
    ids = shard.ids[row, len(script.opening) :].tolist()
    text = target.tokenizer.decode(ids)
    turns = text.split(target.tokenizer.decode(script.to_assistant))
    return any(prompt_digest(turn.split(target.tokenizer.decode(script.to_user))[-1]) in sealed for turn in turns)
