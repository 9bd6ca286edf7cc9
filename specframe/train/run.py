"""Making a draft from start to end: prompts, the target's text, training, the folder and its receipt.

The order and the work folder are here; each step's own business is its module's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch

from specframe._version import __version__
from specframe.errors import InvalidRequest
from specframe.files import write_whole
from specframe.loading import load_target
from specframe.manifest.collector import collect
from specframe.manifest.digest import canonical
from specframe.manifest.source import open_source
from specframe.manifest.tensors import weigh_folder
from specframe.train.corpus import Corpus, CorpusSettings
from specframe.train.distil import DistilSettings, distil
from specframe.train.prompts import prompt_digest, require_unsealed
from specframe.train.shape import build_draft, choose_ids, choose_layers, save_draft
from specframe.transformers_target import TransformersTarget

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
    """News of a run: ``stage`` is ``write`` or ``learn``, ``part`` of it is done; ``told`` in words, ``facts`` as numbers."""

    stage: str
    part: float
    told: str
    facts: dict[str, float]


def train_draft(
    model: str | Path,
    output: Path,
    prompts: Sequence[str],
    settings: TrainSettings,
    *,
    sealed: frozenset[str] = frozenset(),
    say: Callable[[Stage], None] = lambda stage: None,
) -> dict[str, Any]:
    """Make a draft for a target in ``output``, and return its receipt.

    Work that takes long is kept under ``output/work`` and taken up again. Raises ``InvalidRequest`` for sealed prompts, and
    for a work folder of other settings.
    """
    require_unsealed(prompts, sealed)
    work = output / "work"
    identity = collect(open_source(model), weights=True)
    started = {
        "settings": attrs.asdict(settings),
        "target": identity.digest,
        "prompts": hashlib.sha256("\n".join(map(prompt_digest, prompts)).encode()).hexdigest(),
        "sealed": hashlib.sha256("\n".join(sorted(sealed)).encode()).hexdigest(),
    }
    _take_up(work / "started.json", started)

    corpus = Corpus(work / "corpus", settings.corpus)
    if len(corpus) < settings.shards + 1:
        writer = load_target(model, dtype=settings.corpus.dtype)

        def written(done: int, part: float) -> None:
            total = settings.shards + 1
            say(
                Stage(
                    "write", (done + part) / total, f"text {done + part:.1f} of {total} shards", {"shards": done + part}
                )
            )

        corpus.grow(writer, prompts, settings.shards + 1, sealed=sealed, progress=written)
        del writer
    held_out, *shards = corpus

    target = load_target(model, dtype="float32")
    target_ids = choose_ids(shards, settings.columns, target.facts.vocab_size, target.facts.stop_ids)
    layers = choose_layers(identity.model.num_layers or 1, settings.layers)
    torch.manual_seed(settings.distil.seed)
    draft = build_draft(target.model, layers, target_ids)
    agreed = distil(
        draft,
        shards,
        held_out,
        target_ids,
        settings.distil,
        work / "checkpoint.pt",
        progress=lambda news: say(
            Stage(
                "learn",
                news.step / news.steps,
                f"step {news.step} of {news.steps}, loss {news.loss:.3f}, held-out acceptance {news.acceptance:.3f}, "
                f"{news.seconds_left / 60:.0f} min left",
                dict(news._asdict()),
            )
        ),
    )
    save_draft(draft, target_ids, target.tokenizer, output, getattr(torch, settings.dtype))
    receipt = _receipt(
        target, output, started, corpus.digest, layers, agreed, num_prompts=len(prompts), num_sealed=len(sealed)
    )
    write_whole(output / RECEIPT, json.dumps(receipt, indent=2) + "\n")
    return receipt


def _receipt(
    target: TransformersTarget,
    output: Path,
    started: dict[str, Any],
    corpus: str,
    layers: Sequence[int],
    agreed: float,
    *,
    num_prompts: int,
    num_sealed: int,
) -> dict[str, Any]:
    return {
        "what": "a draft model made by 'specframe train-draft'; digests are SHA-256",
        **started,
        "data": {
            "corpus": corpus,
            "written_by": "the target itself",
            "num_prompts": num_prompts,
            "filters": {"sealed_prompts_refused": num_sealed},
        },
        "code": {
            "specframe": __version__,
            "training": _code_digest(),
            "torch": version("torch"),
            "transformers": version("transformers"),
        },
        "result": {
            "weights": weigh_folder(output).digest,
            "layers_of_the_target": list(layers),
            "held_out_acceptance": round(agreed, 4),
        },
    }


def _code_digest() -> str:
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _take_up(file: Path, started: dict[str, Any]) -> None:
    """Begin a work folder, or see that it was begun alike."""
    if file.is_file():
        if canonical(json.loads(file.read_text(encoding="utf-8"))) != canonical(started):
            raise InvalidRequest(
                "output",
                "must be a new folder, or one whose work was begun with the same target, prompts and settings",
                str(file.parent.parent),
                "remove its 'work' folder to begin anew",
            )
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(started, indent=2) + "\n")
