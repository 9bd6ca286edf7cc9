"""Files of any content: strategies, manifests and receipts end in our errors, and in nothing else."""

from __future__ import annotations

import contextlib
import copy
import datetime
import json
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models import engine_on, random_table

from specframe import Engine, InvalidManifest, InvalidReceipt, InvalidStrategy, Receipt, SpecframeError, Strategy
from specframe.manifest import Manifest, check, compare, dumps, loads, open_source
from specframe.manifest.digest import digest
from specframe.manifest.identity import Boundaries, Model, Numerics, Positions, Template, Tokenizer, plain
from specframe.manifest.report import shorten
from specframe.manifest.rules import KINDS
from specframe.plugins import load
from specframe.receipt import from_plain
from specframe.receipt_commands import _lines, _rounds
from specframe.replay import ReplayedLengths
from specframe.strategy import structure
from specframe.testing import Oracle

pytestmark = pytest.mark.timeout(120)  # a hang is a failure

SCALARS = (
    st.integers(-3, 70)
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
    | st.text(max_size=20)
    | st.sampled_from(
        ["", "none", "a/b", "../x", "\x00", "x" * 300, "weights-v1:sha256:" + "0" * 64, "block:8", "demo"]
    )
)
DATES = st.dates() | st.times() | st.datetimes()
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def toml(value: Any) -> str:
    """Spell a value as TOML, tables inline."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return str(value)


def document(data: dict[str, Any]) -> str:
    """Spell a document of tables as TOML."""
    return "".join(f"{json.dumps(key)} = {toml(value)}\n" for key, value in data.items())


def damage(draw: st.DataObject, text: str) -> str:
    """Cut a piece out of a text, or put another in its place."""
    start = draw.draw(st.integers(0, len(text)))
    end = draw.draw(st.integers(start, min(len(text), start + 40)))
    return text[:start] + draw.draw(st.text(max_size=5)) + text[end:]


STRATEGY = """
verifier = "residual"
mode = "first"
kernel = "single"
disable = ["acme"]
[length]
policy = "adaptive"
max_tokens = 5
[[drafters]]
use = "prompt_lookup"
options = { max_ngram = 4, min_ngram = 2 }
[identity]
manifest = "x.toml"
"""
PLUGINS = load()
USES = st.sampled_from(["prompt_lookup", "grammar", "draft_model", "lookup"]) | st.text(max_size=5)
OPTIONS = st.dictionaries(
    st.sampled_from(["max_ngram", "min_ngram", "max_tokens", "model", "dtype", "layers", "phrases", "device", "x"]),
    st.integers(0, 5) | VALUES,
    max_size=2,
)


def read_strategy(path, text: str) -> Strategy | None:
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    with contextlib.suppress(InvalidStrategy):
        return Strategy.from_toml(path)
    return None


@given(data=st.data())
def test_a_strategy_of_any_text(data, tmp_path_factory):
    """Noise, and a good file with a piece changed."""
    text = data.draw(st.text()) if data.draw(st.booleans()) else damage(data, STRATEGY)
    read_strategy(tmp_path_factory.getbasetemp() / "mine.toml", text)


@given(st.binary())
def test_a_strategy_of_any_bytes(content):
    """What is not text is no strategy."""
    with contextlib.suppress(InvalidStrategy):
        structure({"name": content}, Strategy, "x")


@given(data=st.data())
def test_a_strategy_of_any_values_makes_an_engine_or_an_error(data, tmp_path_factory):
    """Known keys with values of any kind, names of drafters that there are with options that there are not."""
    tree = tomllib.loads(STRATEGY)
    tree["drafters"] = data.draw(st.lists(st.fixed_dictionaries({"use": USES, "options": OPTIONS}), max_size=2))
    if data.draw(st.booleans()):
        del tree["identity"]
    tree = changed(data, tree, VALUES | DATES)
    strategy = read_strategy(tmp_path_factory.getbasetemp() / "mine.toml", document(tree))
    if strategy is None:
        return
    with contextlib.suppress(SpecframeError), Engine(random_table(), strategy=strategy, plugins=PLUGINS) as engine:
        assert engine.generate([1, 2], max_new_tokens=2).token_ids == tuple(random_table().greedy([1, 2], 2))


NAMES = st.text() | st.sampled_from(
    ["", ".", "..", "/", "~", "x" * 300, "a/" + "b" * 300, "x\x00", "\ud83d", "a/b.gguf", "\n", "a--b"]
)


@given(NAMES)
def test_a_model_of_any_name_is_found_or_not(name):
    """A strategy names its drafters' models; a name that is none is told, whatever the system makes of it."""
    with contextlib.suppress(SpecframeError):
        open_source(name)


ZERO = "0" * 64
TOKENIZER_PARTS = (
    *("vocabulary", "token_bytes", "added_tokens", "segmentation"),
    *("normalizer", "pre_tokenizer", "post_processor", "decoder"),
)
MANIFEST = Manifest(
    model=Model("LlamaForCausalLM", "llama", 32, 2, 64, False, f"computation-v1:sha256:{ZERO}"),
    numerics=Numerics("float32"),
    tokenizer=Tokenizer(
        digest=f"tokenizer-v1:sha256:{ZERO}",
        **{name: f"{name.replace('_', '-')}-v1:sha256:{ZERO}" for name in TOKENIZER_PARTS},
        size=2048,
        vocabulary_blocks="0123456789abcdef",
        model="BPE",
        byte_fallback=False,
        padding_side="left",
        truncation_side="left",
    ),
    template=Template(f"template-v1:sha256:{ZERO}", {"user": f"probe-v1:sha256:{ZERO}"}),
    boundaries=Boundaries(bos_id=1, stop_ids=(2,), stop_ids_in={"model": 2}),
    positions=Positions(64, rope={"rope_theta": 1e4}),
)


def paths(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value of plain data."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [*([path] if path else []), *(found for key, value in items for found in paths(value, (*path, key)))]


def alike(value: Any) -> st.SearchStrategy[Any]:
    """Return values of the kind of a value, so that a changed file is not always refused for its types."""
    if isinstance(value, bool):
        return st.booleans()
    if isinstance(value, int):
        return st.integers(0, 2**63 - 1) | st.integers(0, 70)
    if isinstance(value, float):
        return st.floats(0, 2.0**62)
    if isinstance(value, str):
        return st.sampled_from([value, "none", "unknown", "withheld", "bitwise", "failed", "MemoryError", "block:8"])
    if isinstance(value, list):
        return st.just(value[1:]) | st.just(value * 2)
    if isinstance(value, dict):
        return st.just({}) | st.just(dict(list(value.items())[1:]))
    return st.none() | st.floats(0, 1)


def changed(data: st.DataObject, tree: Any, values: st.SearchStrategy[Any]) -> Any:
    """Return plain data with one to three values replaced, dropped or added."""
    tree = copy.deepcopy(tree)
    for _ in range(data.draw(st.integers(1, 3))):
        found = paths(tree)
        if not found:
            break
        path = data.draw(st.sampled_from(found))
        parent = tree
        for key in path[:-1]:
            parent = parent[key]
        how = data.draw(st.sampled_from(["alike"] * 8 + ["replace", "drop", "add"]))
        if how == "drop":
            del parent[path[-1]]
        elif how == "add" and isinstance(parent, dict):
            parent[data.draw(st.text(max_size=5))] = data.draw(values)
        else:
            parent[path[-1]] = data.draw(alike(parent[path[-1]]) if how == "alike" else values)
    return tree


@given(data=st.data())
def test_a_manifest_of_any_text(data):
    """Noise, and a good file with a piece changed."""
    text = data.draw(st.text()) if data.draw(st.booleans()) else damage(data, dumps(MANIFEST))
    with contextlib.suppress(InvalidManifest):
        loads(text)


@given(data=st.data())
def test_a_manifest_of_any_values_can_be_used_or_is_refused(data):
    """A file with a digest that fits, as one who edits on purpose would make it, breaks no comparison and no table."""
    tree = changed(data, plain(MANIFEST), VALUES | DATES)
    try:
        stated = structure(tree, Manifest, "x").digest
    except (InvalidStrategy, TypeError):  # what loads() would tell
        stated = f"manifest-v1:sha256:{ZERO}"
    try:
        manifest = loads(document({"format": 1, "digest": stated, **tree}))
    except InvalidManifest:
        return
    assert loads(dumps(manifest)).flat() == manifest.flat()
    assert compare(manifest, manifest) == []
    for difference in compare(MANIFEST, manifest):
        shorten(difference.ours), shorten(difference.theirs)
    for kind in KINDS:
        for pair in ((MANIFEST, manifest), (manifest, MANIFEST)):
            check(*pair, kind)


PROMPT = [1, 2]
RECEIPT = (
    engine_on(random_table(), Oracle(random_table().greedy(PROMPT, 20), wrong_at=1))
    .generate(PROMPT, max_new_tokens=8, temperature=0.5, seed=3)
    .receipt
)
JSON_VALUES = st.recursive(
    SCALARS | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data())
def test_a_receipt_of_any_text(data):
    """Noise, JSON of any form, and a good file with a piece changed."""
    texts = [st.text(), JSON_VALUES.map(json.dumps), st.just(damage(data, RECEIPT.to_json()))]
    with contextlib.suppress(InvalidReceipt):
        Receipt.from_json(data.draw(st.one_of(texts)))


@given(data=st.data())
def test_a_receipt_of_any_values_can_be_used_or_is_refused(data):
    """A file with a digest that fits can be shown, made coarse, written and replayed, whatever its numbers are."""
    tree = json.loads(RECEIPT.to_json())
    del tree["digest"]
    tree = changed(data, tree, JSON_VALUES)
    tree["digest"] = digest("receipt-v1", tree)
    try:
        receipt = from_plain(tree, "receipt")
    except InvalidReceipt:
        return
    for variant in (receipt, receipt.coarse()):
        assert Receipt.from_json(variant.to_json()) == variant
        assert [*_lines(variant), *_rounds(variant)]
    labels = {"d0": "given-1"}
    assert 0 <= ReplayedLengths(receipt, labels).limit("d0", [], 4) <= 4
    engine = engine_on(random_table(), Oracle(random_table().greedy(PROMPT, 20), wrong_at=1))
    with contextlib.suppress(SpecframeError):
        engine.replay(receipt, PROMPT, max_new_tokens=8, temperature=0.5)
