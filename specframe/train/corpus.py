"""The text that a target writes for its draft to learn from, with what it would have said at every position.

Conversations are written side by side, one id of each in every forward, so no row is padded. They are kept in shards, each
made from a seed of its own and written whole: a killed run goes on with the next one. The first shard is held out.
"""

from __future__ import annotations

import hashlib
import io
import random
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import numpy as np
import torch

from specframe.cache import TransactionalCache
from specframe.checks import count, number, one_of
from specframe.errors import InvalidRequest
from specframe.files import write_whole
from specframe.train.prompts import prompt_digest
from specframe.train.script import Conversation, Script, texts_of
from specframe.train.work import damaged
from specframe.transformers_target import TransformersTarget

NUM_LIKELIEST = 16  # ids of each of the target's rows that are kept
_NUM_DRAWN_FROM = 32
_GROUP = 4  # rows: one begins with a prompt of the list, two with its first words, one with nothing
_MOST_WORDS = 4

Array = np.ndarray[Any, Any]


class Shard(NamedTuple):
    """Conversations of one length.

    ``ids`` (int32), ``is_answer`` (bool) ``[rows, length]``; at each position the target's likeliest ids for it with their
    log-probabilities, ``likeliest`` (int32), ``log_probs`` (float16) ``[rows, length, 16]``; ``is_greedy`` (bool) ``[rows]``:
    answers are the target's likeliest ids; ``prompts`` ``[rows]``: the SHA-256 of the first prompt.
    """

    ids: Array
    is_answer: Array
    likeliest: Array
    log_probs: Array
    is_greedy: Array
    prompts: Array


@attrs.frozen
class CorpusSettings:
    """``rows`` conversations of ``length`` ids a shard; ``temperature`` of half of the rows' answers, the others being
    greedy; user turns are drawn at temperature 1. ``dtype``: of the target while it writes.
    """

    rows: int = attrs.field(default=128, validator=count(1))
    length: int = attrs.field(default=256, validator=count(2))
    temperature: float = attrs.field(default=0.8, validator=number(0))
    seed: int = attrs.field(default=0, validator=count(0))
    dtype: str = attrs.field(default="float32", validator=one_of("float32", "bfloat16"))

    @property
    def num_prompts(self) -> int:
        """How many prompts of the list a shard takes."""
        return -(-self.rows // _GROUP)

    def is_greedy(self, row: int) -> bool:
        """Whether a row's answers are greedy: half of those that begin in the same way."""
        return (row + row // _GROUP) % 2 == 0


class LeftOut(NamedTuple):
    """How many conversations a corpus lacks: the target wrote a sealed prompt, or began one as a held-out one begins."""

    sealed: int
    like_held_out: int


class Corpus:
    """The first ``num_shards`` shards under a folder, the held-out one included."""

    def __init__(self, folder: Path, settings: CorpusSettings, num_shards: int) -> None:
        self._settings = settings
        self._files = [folder / f"shard-{index:05}.npz" for index in range(num_shards)]

    def __iter__(self) -> Iterator[Shard]:
        """Give the held-out shard, then those to learn from."""
        return (_read(file)[0] for file in self._files)

    @property
    def missing(self) -> list[int]:
        """The shards that are still to be written."""
        return [index for index, file in enumerate(self._files) if not file.is_file()]

    @property
    def left_out(self) -> LeftOut:
        """What filters took out of it."""
        return LeftOut(*(sum(counts) for counts in zip(*(_read(file)[1] for file in self._files), strict=True)))

    @property
    def digest(self) -> str:
        """The SHA-256 of all shards, in order."""
        return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in self._files)).hexdigest()

    def grow(
        self,
        target: TransformersTarget,
        prompts: Prompts,
        *,
        sealed: frozenset[str],
        progress: Callable[[float], None],
    ) -> None:
        """Let the target write the missing shards; ``progress`` is told the number that is done, in parts of one too.

        Of four rows one begins with a prompt of the list; in two the target goes on from its first words, and one begins with
        a prompt that the target makes up. Rows are left out that hold a sealed prompt, and of those to learn from the ones
        that begin as a held-out one does.
        """
        script, stop_ids = Script.of(target.tokenizer), target.facts.stop_ids
        for index in self.missing:
            talks = [
                Conversation(
                    script, target.tokenizer.encode(text, add_special_tokens=False), stop_ids, is_whole=is_whole
                )
                for text, is_whole in _beginnings(prompts.of_shard(index, self._settings), self._settings, index)
            ]

            def tell(part: float, done: int = index) -> None:
                progress(done + part)

            shard = write_shard(target, talks, self._settings, index, progress=tell)
            held_out = frozenset(_read(self._files[0])[0].prompts.tolist()) if index else frozenset()
            is_sealed = np.array([_holds(talk, script, target.tokenizer, sealed) for talk in talks])
            is_known = np.isin(shard.prompts, list(held_out)) & ~is_sealed
            keep = ~(is_sealed | is_known)
            kept = {name: part[keep] for name, part in shard._asdict().items()}
            content = io.BytesIO()
            np.savez_compressed(content, left_out=np.array([is_sealed.sum(), is_known.sum()]), **kept)
            write_whole(self._files[index], content.getvalue())


class Prompts:
    """A list of different first prompts, parted by the corpus's seed: some for the held-out shard, the others to learn from."""

    def __init__(self, prompts: Sequence[str], settings: CorpusSettings) -> None:
        """Raises ``InvalidRequest`` for a list that is too short to be parted."""
        seen: dict[str, str] = {}
        for prompt in prompts:
            seen.setdefault(prompt_digest(prompt), prompt)
        unlike = list(seen.values())
        if len(unlike) <= settings.num_prompts:
            raise InvalidRequest(
                "prompts",
                f"must be at least {settings.num_prompts + 1} different ones",
                len(unlike),
                f"{settings.num_prompts} are held out to measure by, and never learned from",
            )
        chosen = {*random.Random(settings.seed).sample(range(len(unlike)), settings.num_prompts)}
        self.held_out = [unlike[place] for place in sorted(chosen)]
        self.learned = [prompt for place, prompt in enumerate(unlike) if place not in chosen]

    def of_shard(self, index: int, settings: CorpusSettings) -> list[str]:
        """Return the prompts of a shard; the list to learn from begins again where it is too short."""
        if index == 0:
            return self.held_out
        first = (index - 1) * settings.num_prompts
        return [self.learned[place % len(self.learned)] for place in range(first, first + settings.num_prompts)]


def _beginnings(prompts: Sequence[str], settings: CorpusSettings, index: int) -> Iterator[tuple[str, bool]]:
    """Give how each row's first turn begins, and whether that is all of it."""
    words = random.Random(settings.seed * 1_000_003 + index)
    for row in range(settings.rows):
        prompt, place = prompts[row // _GROUP], row % _GROUP
        num_words = words.randint(1, _MOST_WORDS) if place in (1, 2) else 0
        yield (prompt, True) if place == 0 else (" ".join(prompt.split()[:num_words]), False)


@torch.inference_mode()
def write_shard(
    target: TransformersTarget,
    talks: Sequence[Conversation],
    settings: CorpusSettings,
    index: int,
    *,
    progress: Callable[[float], None],
) -> Shard:
    """Let the target write conversations that have begun, up to the settings' length; ``index`` decides its randomness."""
    model = target.model
    cache = TransactionalCache(model.config.get_text_config().num_hidden_layers)
    cache.reserve(settings.length)
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + index)
    shape = (len(talks), settings.length, NUM_LIKELIEST)
    likeliest, log_probs = np.zeros(shape, np.int32), np.zeros(shape, np.float16)
    is_greedy = np.array([settings.is_greedy(row) for row in range(len(talks))])
    num_forced = min(settings.length, *(talk.num_forced for talk in talks))
    inputs = torch.tensor([[talk.next(_nothing) for _ in range(num_forced)] for talk in talks])
    heat = torch.where(torch.tensor(is_greedy), 0.0, settings.temperature)[:, None]
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
    prompts = [prompt_digest(target.tokenizer.decode(talk.turns[0], skip_special_tokens=True)) for talk in talks]
    return Shard(
        np.array([talk.ids for talk in talks], np.int32),
        np.array([talk.answers for talk in talks], np.bool_),
        likeliest,
        log_probs,
        is_greedy,
        np.array(prompts),
    )


def _nothing() -> int:
    raise AssertionError("an opening is forced")


def _read(file: Path) -> tuple[Shard, LeftOut]:
    try:
        with open(file, "rb") as opened, np.load(opened) as parts:
            return Shard(**{name: parts[name] for name in Shard._fields}), LeftOut(*parts["left_out"].tolist())
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise damaged(file, error) from error


def _holds(talk: Conversation, script: Script, tokenizer: Any, sealed: frozenset[str]) -> bool:
    return bool(sealed) and any(
        prompt_digest(text) in sealed for turn in talk.turns for text in texts_of(turn, script, tokenizer)
    )
