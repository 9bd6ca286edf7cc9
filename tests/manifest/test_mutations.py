"""One property of a tiny model on disk is changed at a time: each change is caught by the right rule, or rightly ignored."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from folders import edit, save_model
from safetensors.numpy import load_file, save_file
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM

from specframe.manifest import check, collect, compare, open_source


class Mutation(NamedTuple):
    """A change of a folder; the rules that it breaks as a draft, with their severities; a field that a pin sees change."""

    change: Callable[[Path], Any]
    rules: dict[str, str]
    field: str | None


def tokenizer(change):
    return lambda folder: edit(folder / "tokenizer.json", change)


def tokenizer_config(**values):
    return lambda folder: edit(folder / "tokenizer_config.json", lambda data: data | values)


def config(**values):
    return lambda folder: edit(folder / "config.json", lambda data: data | values)


def generation(**values):
    return lambda folder: edit(folder / "generation_config.json", lambda data: data | values)


def weights(change):
    def apply(folder):
        file = folder / "model.safetensors"
        tensors = {name: tensor.copy() for name, tensor in load_file(file).items()}
        save_file(change(tensors) or tensors, file, metadata={"format": "pt"})

    return apply


def both(*changes):
    return lambda folder: [change(folder) for change in changes]


def swap_ids(data):
    vocabulary = data["model"]["vocab"]
    vocabulary["A"], vocabulary["B"] = vocabulary["B"], vocabulary["A"]


def rename_token(data):
    vocabulary = data["model"]["vocab"]
    vocabulary["\u0120other"] = vocabulary.pop("\u0120the")


def drop_last_merge(data):
    data["model"]["merges"].pop()


def reorder_merges(data):
    data["model"]["merges"].reverse()


def swap_added(data):
    first, second = data["added_tokens"][:2]
    first["content"], second["content"] = second["content"], first["content"]


def add_token(data):
    data["added_tokens"].append(data["added_tokens"][-1] | {"id": 272, "content": "<tool>"})


def unspecial(data):
    data["added_tokens"][2]["special"] = False


def strip_left(data):
    data["added_tokens"][0]["lstrip"] = True


def put(part, value):
    return lambda data: data | {part: value}


def model_put(**values):
    return lambda data: data["model"].update(values)


def add_bos(data):
    token = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    text = {"Sequence": {"id": "A", "type_id": 0}}
    return data | {
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [token, text],
            "pair": [text, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [269], "tokens": ["<s>"]}},
        }
    }


def state(part):
    return json.loads(part.__getstate__())


def nudge(tensors):
    tensors["model.norm.weight"][0] += np.float32(1e-3)


def swap_tensors(tensors):
    first, second = (f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))
    tensors[first], tensors[second] = tensors[second], tensors[first]


def reorder_keys(folder):
    for file in folder.glob("*.json"):
        edit(file, reverse)


def reverse(value):
    return {key: reverse(value[key]) for key in reversed(value)} if isinstance(value, dict) else value


def shard(folder):
    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="60KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1


def rename_shards(folder):
    shard(folder)
    for file in list(folder.glob("model-*.safetensors")):
        file.rename(folder / file.name.replace("model-", "piece-"))
    edit(folder / "model.safetensors.index.json", lambda data: json.loads(json.dumps(data).replace("model-", "piece-")))


def reorder_tensors(folder):
    """Write the same tensors in another order: header and data both change."""
    file = folder / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
    header.pop("__metadata__", None)
    moved, parts, offset = {}, [], 0
    for name, entry in reversed(header.items()):
        first, last = entry["data_offsets"]
        moved[name] = entry | {"data_offsets": [offset, offset + last - first]}
        parts.append(body[first:last])
        offset += last - first
    text = json.dumps(moved).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def move(folder):
    shutil.move(folder, folder.parent / "elsewhere")
    (folder.parent / "elsewhere").rename(folder)


REFUSE, SLOWER, NOTE = "refuse", "slower", "note"
PROMPTS = {"rendered-prompts": REFUSE}
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}"
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 16,
    "factor": 4.0,
    "rope_theta": 10000.0,
}
NFC, DIGITS = state(normalizers.NFC()), state(pre_tokenizers.Digits(individual_digits=True))

MUTATIONS = {
    # What ids mean.
    "two ids swapped": Mutation(
        tokenizer(swap_ids),
        {"vocabulary": REFUSE, "token-bytes": REFUSE, **PROMPTS},
        "tokenizer.vocabulary",
    ),
    "a token renamed": Mutation(
        tokenizer(rename_token), {"vocabulary": REFUSE, "token-bytes": REFUSE}, "tokenizer.token_bytes"
    ),
    "a token added": Mutation(
        both(tokenizer(add_token)),
        {"vocabulary": REFUSE, "token-bytes": REFUSE, "added-tokens": REFUSE},
        "tokenizer.size",
    ),
    "two added tokens swapped": Mutation(
        tokenizer(swap_added),
        {"vocabulary": REFUSE, "added-tokens": REFUSE, "special-tokens": NOTE},
        "tokenizer.special.bos",
    ),
    "an added token no longer special": Mutation(
        both(
            tokenizer(unspecial), lambda folder: edit(folder / "tokenizer_config.json", without("extra_special_tokens"))
        ),
        {"token-bytes": REFUSE, "added-tokens": REFUSE},
        "tokenizer.added_tokens",
    ),
    "an added token strips spaces": Mutation(tokenizer(strip_left), {"added-tokens": REFUSE}, "tokenizer.added_tokens"),
    "another decoder": Mutation(
        tokenizer(put("decoder", {"type": "Fuse"})), {"token-bytes": REFUSE}, "tokenizer.decoder"
    ),
    # How text becomes ids.
    "a merge missing": Mutation(tokenizer(drop_last_merge), {"segmentation": REFUSE}, "tokenizer.segmentation"),
    "merges in another order": Mutation(tokenizer(reorder_merges), {"segmentation": REFUSE}, "tokenizer.segmentation"),
    "merges ignored for known words": Mutation(
        tokenizer(model_put(ignore_merges=True)), {"segmentation": REFUSE}, "tokenizer.segmentation"
    ),
    "another normaliser": Mutation(
        tokenizer(put("normalizer", NFC)), {"normalizer": REFUSE, **PROMPTS}, "tokenizer.normalizer"
    ),
    "another pre-tokenizer": Mutation(
        tokenizer(put("pre_tokenizer", {"type": "Sequence", "pretokenizers": [DIGITS]})),
        {"pre-tokenizer": REFUSE, **PROMPTS},
        "tokenizer.pre_tokenizer",
    ),
    "byte fallback": Mutation(
        tokenizer(model_put(byte_fallback=True)), {"byte-fallback": REFUSE}, "tokenizer.byte_fallback"
    ),
    "an unknown token": Mutation(
        tokenizer(model_put(unk_token="A")), {"unknown-token": REFUSE}, "tokenizer.unknown.unk_token"
    ),
    "BOS put before every text": Mutation(
        tokenizer(add_bos),
        {"boundary-ids": REFUSE, "prefix-ids": REFUSE, **PROMPTS},
        "boundaries.prefix_ids",
    ),
    "another padding side": Mutation(tokenizer_config(padding_side="left"), {}, "tokenizer.padding_side"),
    "another truncation side": Mutation(tokenizer_config(truncation_side="left"), {}, "tokenizer.truncation_side"),
    "a padding token": Mutation(tokenizer_config(pad_token="<eot>"), {"special-tokens": NOTE}, "boundaries.pad_id"),
    # Prompts and ends.
    "another template": Mutation(
        lambda folder: (folder / "chat_template.jinja").write_text(TEMPLATE),
        {"chat-template": REFUSE, **PROMPTS},
        "template.digest",
    ),
    "a comment in the template": Mutation(
        lambda folder: append(folder / "chat_template.jinja", "{# a comment #}"),
        {"chat-template": REFUSE},
        "template.digest",
    ),
    "no template": Mutation(
        lambda folder: (folder / "chat_template.jinja").unlink(), {"chat-template-missing": SLOWER}, "template.digest"
    ),
    "another BOS in the generation config": Mutation(
        both(config(bos_token_id=271), generation(bos_token_id=271)), {"bos-id": REFUSE}, "boundaries.bos_id"
    ),
    "a second EOS in the generation config": Mutation(
        generation(eos_token_id=[270, 271]), {"stop-ids": REFUSE}, "boundaries.stop_ids"
    ),
    "another EOS in the config that is not asked": Mutation(
        config(eos_token_id=271), {}, "boundaries.stop_ids_in.config"
    ),
    "no generation config, the same EOS in the config": Mutation(
        lambda folder: (folder / "generation_config.json").unlink(), {}, None
    ),
    "a stop string": Mutation(generation(stop_strings=["\n\n"]), {}, "boundaries.stop_strings"),
    # What is computed.
    "another norm epsilon": Mutation(config(rms_norm_eps=1e-5), {}, "model.computation"),
    "another activation": Mutation(config(hidden_act="gelu"), {}, "model.computation"),
    "fewer layers": Mutation(config(num_hidden_layers=1), {}, "model.num_layers"),
    "tied embeddings": Mutation(config(tie_word_embeddings=True), {}, "model.tied_embeddings"),
    "another architecture": Mutation(
        config(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=None),
        {},
        "model.architecture",
    ),
    "a padded head": Mutation(config(vocab_size=320), {"head-width": NOTE}, "model.head_width"),
    "a short head": Mutation(config(vocab_size=260), {"head-short": SLOWER, "head-width": NOTE}, "model.head_width"),
    "another dtype": Mutation(config(dtype="bfloat16"), {"dtype": NOTE}, "numerics.dtype"),
    "quantised": Mutation(
        config(quantization_config={"quant_method": "gptq", "bits": 4}), {}, "weights.quantization.bits"
    ),
    # Positions.
    "a shorter context": Mutation(
        config(max_position_embeddings=32), {"context-limit": SLOWER}, "positions.context_limit"
    ),
    "another RoPE base": Mutation(
        config(rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}),
        {"rope": NOTE},
        "positions.rope.rope_theta",
    ),
    "scaled RoPE": Mutation(
        config(rope_parameters={"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}),
        {"rope": NOTE},
        "positions.rope.factor",
    ),
    "dynamic RoPE": Mutation(config(rope_parameters=DYNAMIC), {"rope": NOTE}, "positions.block_limit"),
    "long RoPE": Mutation(config(rope_parameters=LONGROPE), {"rope": NOTE}, "positions.block_limit"),
    "a sliding window": Mutation(
        config(model_type="mistral", sliding_window=16), {"sliding-window": NOTE}, "positions.sliding_window"
    ),
    "window layers": Mutation(config(layer_types=["sliding_attention", "full_attention"]), {}, "positions.layers"),
    # Weights: any draft weights fit, a pin sees every bit.
    "one weight": Mutation(weights(nudge), {}, "weights.digest"),
    "two tensors swapped": Mutation(weights(swap_tensors), {}, "weights.digest"),
    "weights of another dtype": Mutation(
        weights(lambda tensors: {name: tensor.astype(np.float16) for name, tensor in tensors.items()}),
        {},
        "weights.digest",
    ),
    # Rightly ignored.
    "a moved folder": Mutation(move, {}, None),
    "keys in another order": Mutation(reorder_keys, {}, None),
    "another transformers version": Mutation(
        both(config(transformers_version="4.1.0"), generation(transformers_version="4.1.0")), {}, None
    ),
    "a recorded path": Mutation(config(_name_or_path="/somewhere/else"), {}, None),
    "training-only values": Mutation(config(attention_dropout=0.5, initializer_range=0.5), {}, None),
    "output switches": Mutation(config(use_cache=False, output_attentions=True), {}, None),
    "a default left out": Mutation(lambda folder: edit(folder / "config.json", without("mlp_bias")), {}, None),
    "a whole number as a float": Mutation(
        config(rope_parameters={"rope_theta": 10000, "rope_type": "default"}), {}, None
    ),
    "sampling defaults": Mutation(generation(do_sample=True, temperature=0.3, top_k=7), {}, None),
    "truncation left on by a call": Mutation(
        tokenizer(put("truncation", {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0})),
        {},
        None,
    ),
    "the tokenizer's length limit": Mutation(tokenizer_config(model_max_length=16), {}, None),
    "weights in shards": Mutation(shard, {}, None),
    "renamed shards": Mutation(rename_shards, {}, None),
    "tensors in another order": Mutation(reorder_tensors, {}, None),
    "another file in the folder": Mutation(
        lambda folder: (folder / "notes.txt").write_text("a note of mine"), {}, None
    ),
}


def without(key):
    return lambda data: {name: value for name, value in data.items() if name != key}


def append(file, text):
    file.write_text(file.read_text() + text)


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_mutation_is_caught_by_its_rule_or_rightly_ignored(copy_of, name):
    """A change that no field sees would pass for the same model; one that should not count would refuse it."""
    change, rules, field = MUTATIONS[name]
    original, changed = copy_of("original"), copy_of("changed")
    change(changed)
    target, draft = (collect(open_source(folder), weights=True) for folder in (original, changed))
    same = target.weights.digest == draft.weights.digest
    report = check(target, draft)
    found = {item.rule: item.verdict for item in report.findings if item.verdict != "fits"}
    assert found == rules | ({"same-weights": "slower"} if same else {})
    fields = {difference.field for difference in compare(target, draft)}
    assert field in fields if field is not None else not fields
    assert (target.digest == draft.digest) == (field is None)


def test_the_table_is_long_enough():
    """The issue asks for thirty; the ones that are ignored come on top."""
    assert sum(mutation.field is not None for mutation in MUTATIONS.values()) >= 30


def test_a_refusal_names_the_first_differing_id_and_both_strings(copy_of):
    """'The vocabularies differ' sends the reader to a hex editor."""
    from specframe.manifest.collector import strings_of

    original, changed = copy_of("original"), copy_of("changed")
    MUTATIONS["two ids swapped"].change(changed)
    sources = [open_source(folder) for folder in (original, changed)]
    target, draft = map(collect, sources)
    report = check(
        target, draft, target_strings=lambda: strings_of(sources[0]), draft_strings=lambda: strings_of(sources[1])
    )
    first = report.of("refuse")[0]
    assert (first.rule, first.target, first.draft) == (
        "vocabulary", "id 65 is 'A', 272 ids", "id 65 is 'B', 272 ids",
    )  # fmt: skip


def test_manifests_alone_name_the_block_that_differs(copy_of):
    """A manifest file holds no strings, but it must say more than that something differs."""
    changed = copy_of("changed")
    MUTATIONS["two ids swapped"].change(changed)
    report = check(collect(open_source(copy_of("original"))), collect(open_source(changed)))
    assert report.of("refuse")[0].target == "272 ids; the first difference is in ids 0 to 1023"


@pytest.mark.parametrize("option", [{"rope_parameters": DYNAMIC}, {"rope_parameters": LONGROPE}], ids=str)
def test_a_target_with_length_dependent_rope_is_marked(tmp_path, option):
    """Past its original length such a model computes other rows for a block than for single steps."""
    source = open_source(save_model(tmp_path / "model", **option))
    manifest = collect(source)
    for kind in ("none", "same", "reduced", "features", "bytes"):
        found = {item.rule: item for item in check(manifest, manifest, kind).findings}["block-invariance"]
        assert found.verdict == "slower"
        assert "not block-invariant past its original length" in found.reason
    assert manifest.positions.block_limit in (16, 64)


@pytest.mark.parametrize(
    ("ids", "broken"),
    [
        ([0, 5, 271, -1], set()),
        (None, {"output-map"}),
        ([0, 5, 5, -1], {"output-map-injective"}),
        ([0, 5, 272, -1], {"output-map-range"}),
        ([0, 5, 7], {"output-map-columns"}),
        ([0, 5, 7, 8, 9], {"output-map-columns"}),
    ],
    ids=str,
)
def test_a_reduced_head_needs_a_map_that_fits_its_columns(copy_of, ids, broken):
    """A map of another length would name other ids for every column behind the slip."""
    draft = copy_of("draft")
    weights(lambda tensors: tensors | {"lm_head.weight": tensors["lm_head.weight"][:4].copy()})(draft)
    if ids is not None:
        (draft / "target_ids.json").write_text(json.dumps(ids))
    target, draft = (collect(open_source(folder)) for folder in (copy_of("target"), draft))
    assert {finding.rule for finding in check(target, draft, "reduced").of("refuse")} == broken
    unused = {finding.rule for finding in check(target, draft, "same").of("refuse")}
    assert unused == ({"output-map-unused"} if ids is not None else set())


def test_a_missing_tokenizer_is_the_only_reason(copy_of):
    """Nine rules that all say 'none' hide the one that helps."""
    target, draft = copy_of("target"), copy_of("draft")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (draft / name).unlink()
    report = check(collect(open_source(target)), collect(open_source(draft)))
    assert [finding.rule for finding in report.of("refuse")] == ["tokenizer-known"]
