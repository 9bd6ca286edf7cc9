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

from specframe.checks import count, one_of
from specframe.errors import InvalidRequest
from specframe.files import write_whole
from specframe.layout import RECEIPT, WORK
from specframe.loading import load_target
from specframe.manifest.collector import collect, output_ids
from specframe.manifest.identity import Manifest
from specframe.manifest.source import open_source
from specframe.manifest.tensors import weigh_folder
from specframe.train.corpus import Corpus, CorpusSettings, Prompts
from specframe.train.distil import DistilSettings, Progress, acceptance, distil
from specframe.train.prompts import prompt_digest, require_unsealed
from specframe.train.shape import build_draft, choose_ids, go_on_from, round_to, save_draft
from specframe.train.work import (
    Code,
    changes,
    code_versions,
    damaged,
    require_writable,
    short_digest,
    take_up,
    writing_to,
)


@attrs.frozen
class TrainSettings:
    """What a draft is made of: ``layers`` of the target, ``columns`` of its head, ``shards`` of text to learn from and one
    more to measure by; ``dtype`` of the weights that are written.
    """

    layers: int = attrs.field(default=2, validator=count(1))
    columns: int = attrs.field(default=8192, validator=count(1))
    shards: int = attrs.field(default=12, validator=count(1))
    dtype: str = attrs.field(default="bfloat16", validator=one_of("float32", "bfloat16", "float16"))
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
    start: Path | None = None,
    sealed: frozenset[str] = frozenset(),
    say: Say = lambda stage: None,
) -> dict[str, Any]:
    """Make a draft for a target in ``output``, and return its receipt.

    Work that takes long is kept under ``output/work`` and taken up again: text by the same target, prompts, sealed list and
    settings of text; training by the same settings altogether, others begin it anew. ``start``: the folder of a draft of
    this target, with as many columns and no more layers, that training begins with. Raises ``InvalidRequest`` for sealed
    prompts, too few of them, settings that the target cannot fill, another draft, text of other origin, and a folder that
    cannot be written; ``UnsupportedModel`` for a target that cannot be cut or added to, or has no chat template.
    """
    require_writable(output)
    require_unsealed(prompts, sealed)
    parted = Prompts(prompts, settings.corpus)
    source = open_source(model)
    named = collect(source)
    _check_fits(named, settings)
    begun_with = _begun_with(start, named, settings) if start is not None else None
    identity = collect(source, weights=True)
    work, code = output / WORK, code_versions()
    origin = {
        "target": identity.digest,
        "prompts": hashlib.sha256("\n".join(map(prompt_digest, prompts)).encode()).hexdigest(),
        "sealed": hashlib.sha256("\n".join(sorted(sealed)).encode()).hexdigest(),
        "settings": attrs.asdict(settings.corpus),
    }
    corpus = Corpus(work / "corpus", settings.corpus, 1 + settings.shards)
    writer = load_target(model, dtype=settings.corpus.dtype) if corpus.missing else None
    if writer is not None:  # what cannot be cut, or gone on from, is refused before it writes
        if start is None:
            build_draft(writer.model, settings.layers, [0])
        else:
            go_on_from(start, load_target(model, dtype="float32", prepack=False), settings.layers)
    with writing_to(output):
        wrote = take_up(work / "corpus", origin, code if writer is not None else None)
        if writer is not None:
            _tell_of_changes("text", wrote, say)
            _tell_of_repeats(parted, settings, say)
            corpus.grow(
                writer, parted, sealed=sealed, progress=lambda done: say(_told_of_writing(done, 1 + settings.shards))
            )
    del writer
    held_out, *shards = corpus
    if not (held_out.is_answer.any() and any(shard.is_answer.any() for shard in shards)):
        raise InvalidRequest("shards", "must be more: the text holds no answers", settings.shards)

    chosen = {name: value for name, value in attrs.asdict(settings).items() if name != "corpus"}
    lesson = {"corpus": corpus.digest, "settings": chosen}
    if begun_with is not None:
        lesson["begun_with"] = begun_with["weights"]
    course = work / f"training-{short_digest(lesson)}"
    with writing_to(output):
        taught = take_up(course, lesson, code)
    _tell_of_changes("training", taught, say)
    target = load_target(model, dtype="float32", prepack=False)  # its weights are read, it never runs
    if start is None:
        target_ids = choose_ids(shards, settings.columns, target.facts.vocab_size, target.facts.stop_ids)
        draft = build_draft(target.model, settings.layers, target_ids)
    else:
        draft, target_ids = go_on_from(start, target, settings.layers)
    with writing_to(output):
        trained = distil(
            draft,
            shards,
            held_out,
            target_ids,
            settings.distil,
            course / "checkpoint.pt",
            progress=lambda news: say(_told_of_learning(news)),
        )
    dtype: torch.dtype = getattr(torch, settings.dtype)
    round_to(draft, dtype)
    agreed = acceptance(draft, held_out, target_ids)
    with writing_to(output):
        save_draft(draft, target_ids, target, output, dtype, making=work / "draft")
    receipt = {
        "what": "a draft model made by 'specframe train-draft'; digests are SHA-256",
        "target": identity.digest,
        "begun_with": begun_with,
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
            "layers_of_the_target": [*range(begun_with["layers"] if begun_with is not None else 0, settings.layers)],
            "held_out_acceptance": round(agreed.overall, 4),
            "held_out_acceptance_greedy": round(agreed.greedy, 4),
        },
    }
    with writing_to(output):
        write_whole(output / RECEIPT, json.dumps(receipt, indent=2) + "\n")
    return receipt


def _begun_with(start: Path, target: Manifest, settings: TrainSettings) -> dict[str, Any]:
    """Return the digest of a draft that training begins with, its number of layers, and its receipt if it has one."""
    model, ids = collect(open_source(start)).model, output_ids(start)
    if model.hidden_size != target.model.hidden_size:
        rule = f"must be a draft of this target, with vectors of {target.model.hidden_size}"
        raise InvalidRequest("start", rule, model.hidden_size)
    columns, most = len(ids) if ids is not None else model.head_width, target.model.num_layers
    if model.num_layers is None or (most is not None and model.num_layers > most):
        raise InvalidRequest("start", f"must be a draft of this target, with at most {most} layers", model.num_layers)
    if settings.columns != columns:
        rule = f"must be {columns}, as the draft has that is begun with"
        raise InvalidRequest("columns", rule, settings.columns, f"give --columns {columns}")
    if settings.layers < model.num_layers:
        rule = f"must be at least {model.num_layers}, which the draft has that is begun with"
        raise InvalidRequest("layers", rule, settings.layers, f"give --layers {model.num_layers} or more")
    file = start / RECEIPT
    try:
        receipt = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    except (OSError, ValueError) as error:
        raise damaged(file, error) from error
    return {"weights": weigh_folder(start).digest, "layers": model.num_layers, "receipt": receipt}


def _check_fits(target: Manifest, settings: TrainSettings) -> None:
    """Raise ``InvalidRequest`` for settings that a target cannot fill."""
    num_layers, limit, num_stops = (
        target.model.num_layers,
        target.positions.context_limit,
        len(target.boundaries.stop_ids),
    )
    if num_layers is not None and settings.layers > num_layers:
        raise InvalidRequest("layers", f"must be 1 to {num_layers}, the target's", settings.layers)
    if settings.columns <= num_stops:
        raise InvalidRequest("columns", f"must be more than the target's {num_stops} stop ids", settings.columns)
    if limit is not None and settings.corpus.length > limit:
        raise InvalidRequest("length", f"must be at most {limit}, the target's context", settings.corpus.length)


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
