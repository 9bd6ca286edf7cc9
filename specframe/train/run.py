"""Making a draft from start to end: prompts, the target's text, training, the folder and its receipt.

The order of the stages is here; each one's own business is its module's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch

from specframe.files import write_whole
from specframe.loading import load_target
from specframe.manifest.collector import collect
from specframe.manifest.source import open_source
from specframe.manifest.tensors import weigh_folder
from specframe.train.corpus import Corpus, CorpusSettings, Prompts
from specframe.train.distil import DistilSettings, Progress, acceptance, distil
from specframe.train.prompts import prompt_digest, require_unsealed
from specframe.train.shape import build_draft, choose_ids, choose_layers, round_to, save_draft
from specframe.train.work import Code, changes, code_versions, short_digest, take_up

RECEIPT = "provenance.json"


@attrs.frozen
class TrainSettings:
    """What a draft is made of: ``layers`` of the target, ``columns`` of its head, ``shards`` of text to learn from and one
    more to measure by; ``dtype`` of the weights that are written.
    """

    layers: int = 2
    columns: int = 8192
    shards: int = 12
    dtype: str = "bfloat16"
    corpus: CorpusSettings = attrs.field(factory=CorpusSettings)
    distil: DistilSettings = attrs.field(factory=DistilSettings)


class Stage(NamedTuple):
    """News of a run: ``part`` of the stage ``write`` or ``learn`` is done, or a ``notice``; in words, and as numbers."""

    stage: str
    part: float
    told: str
    facts: dict[str, float]


Say = Callable[[Stage], None]


def train_draft(
    model: str | Path,
    output: Path,
    prompts: Sequence[str],
    settings: TrainSettings,
    *,
    sealed: frozenset[str] = frozenset(),
    say: Say = lambda stage: None,
    save_every_s: float = 60.0,
) -> dict[str, Any]:
    """Make a draft for a target in ``output``, and return its receipt.

    Work that takes long is kept under ``output/work`` and taken up again: text by the same target, prompts, sealed list and
    settings of text; training by the same settings altogether, others begin it anew. Raises ``InvalidRequest`` for sealed
    prompts, too few of them, and for text of other origin.
    """
    require_unsealed(prompts, sealed)
    parted = Prompts(prompts, settings.corpus)
    work, code = output / "work", code_versions()
    identity = collect(open_source(model), weights=True)
    layers = choose_layers(identity.model.num_layers or 1, settings.layers)
    origin = {
        "target": identity.digest,
        "prompts": hashlib.sha256("\n".join(map(prompt_digest, prompts)).encode()).hexdigest(),
        "sealed": hashlib.sha256("\n".join(sorted(sealed)).encode()).hexdigest(),
        "settings": attrs.asdict(settings.corpus),
    }
    corpus = Corpus(work / "corpus", settings.corpus, 1 + settings.shards)
    wrote = take_up(work / "corpus", origin, code)
    if corpus.missing:
        _tell_of_changes("text", wrote, say)
        _tell_of_repeats(parted, settings, say)
        writer = load_target(model, dtype=settings.corpus.dtype)
        corpus.grow(
            writer, parted, sealed=sealed, progress=lambda done: say(_told_of_writing(done, 1 + settings.shards))
        )
        del writer
    held_out, *shards = corpus

    chosen = {name: value for name, value in attrs.asdict(settings).items() if name != "corpus"}
    lesson = {"corpus": corpus.digest, "settings": chosen}
    course = work / f"training-{short_digest(lesson)}"
    taught = take_up(course, lesson, code)
    _tell_of_changes("training", taught, say)
    target = load_target(model, dtype="float32")
    target_ids = choose_ids(shards, settings.columns, target.facts.vocab_size, target.facts.stop_ids)
    draft = build_draft(target.model, layers, target_ids)
    trained = distil(
        draft,
        shards,
        held_out,
        target_ids,
        settings.distil,
        course / "checkpoint.pt",
        progress=lambda news: say(_told_of_learning(news)),
        save_every_s=save_every_s,
    )
    dtype: torch.dtype = getattr(torch, settings.dtype)
    round_to(draft, dtype)
    agreed = acceptance(draft, held_out, target_ids)
    save_draft(draft, target_ids, target.tokenizer, output, dtype)
    receipt = {
        "what": "a draft model made by 'specframe train-draft'; digests are SHA-256",
        "target": identity.digest,
        "settings": attrs.asdict(settings),
        "data": {
            "corpus": corpus.digest,
            "written_by": "the target itself",
            "prompts": origin["prompts"],
            "num_prompts": {"held_out": len(parted.held_out), "learned": len(parted.learned)},
            "num_conversations": {"held_out": len(held_out.ids), "learned": sum(len(shard.ids) for shard in shards)},
            "sealed": {"list": origin["sealed"], "num_digests": len(sealed)},
            "num_left_out": corpus.left_out._asdict(),
        },
        "code": {"what": "that had a hand in it, in order", "corpus": wrote, "training": taught},
        "training": {"steps": trained.steps, "minutes": round(trained.seconds / 60, 2)},
        "result": {
            "weights": weigh_folder(output).digest,
            "layers_of_the_target": layers,
            "held_out_acceptance": round(agreed.overall, 4),
            "held_out_acceptance_greedy": round(agreed.greedy, 4),
        },
    }
    write_whole(output / RECEIPT, json.dumps(receipt, indent=2) + "\n")
    return receipt


def _told_of_writing(done: float, total: int) -> Stage:
    return Stage("write", done / total, f"text {done:.1f} of {total} shards", {"shards": done})


def _told_of_learning(news: Progress) -> Stage:
    told = (
        f"step {news.step}, loss {news.loss:.3f}, held-out acceptance {news.acceptance:.3f}, "
        f"{news.seconds_left / 60:.0f} min left"
    )
    return Stage("learn", news.part, told, {name: value for name, value in news._asdict().items() if name != "part"})


def _tell_of_changes(what: str, hands: list[Code], say: Say) -> None:
    if changed := changes(hands):
        told = f"the {what} was begun by other code and goes on with this: {changed}; the receipt lists both"
        say(Stage("notice", 0.0, told, {}))


def _tell_of_repeats(parted: Prompts, settings: TrainSettings, say: Say) -> None:
    wanted = settings.shards * settings.corpus.num_prompts
    if len(parted.learned) < wanted:
        told = f"{len(parted.learned)} prompts for {wanted} conversations: they are used again"
        say(Stage("notice", 0.0, told, {"prompts": len(parted.learned), "wanted": wanted}))
