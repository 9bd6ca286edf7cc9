"""Making plans: what an arm's name stands for, and every later departure from what was fixed."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest

from specframe import (
    InvalidPlan,
    InvalidRequest,
    InvalidWorkload,
    Length,
    SpecframeError,
    Strategy,
    UnknownName,
    load_target,
)
from specframe.bench import planning
from specframe.bench.gates import DEFAULT_GATES, KEEP, Gate
from specframe.bench.plan import changes, read_plan
from specframe.bench.planning import DEMO_ARMS, draw_up, read_gates, renew, require_unchanged
from specframe.bench.specs import LibraryArm, build, library_sampling, parse
from specframe.bench.workload import STRATA, Corpus, stratum
from specframe.lengths import Adaptive
from specframe.manifest.collector import collect
from specframe.manifest.file import dumps
from specframe.manifest.source import open_source
from specframe.testing import byte_tokenizer

CHAT = Corpus(("chat",), limit=2)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("none", Strategy()),
        ("transformers", LibraryArm()),
        ("transformers-lookup:10", LibraryArm(num_lookup=10)),
        ("transformers-assisted:some/folder", LibraryArm(assistant="some/folder")),
    ],
)
def test_a_spec_names_an_arm(spec, expected):
    assert parse(spec)[0] == expected


def test_a_spec_may_set_the_lengths_and_the_kernel(tmp_path):
    """A sweep over fixed lengths needs no file for each."""
    shipped, _ = parse("prompt_lookup")
    assert parse("prompt_lookup@fixed:3")[0] == attrs.evolve(shipped, length=Length("fixed", 3))
    assert parse("prompt_lookup@adaptive")[0].length == Length("adaptive", shipped.length.max_tokens)
    assert parse("prompt_lookup", "block:8")[0].kernel == "block:8"
    file = tmp_path / "a@b.toml"
    file.write_text("[length]\nmax_tokens = 2\n")
    assert parse(str(file))[0].length.max_tokens == 2
    assert parse(f"{file}@adaptive:5")[0].length == Length("adaptive", 5)


@pytest.mark.parametrize(
    "spec", ["transformers-lookup:0", "transformers-lookup:x", "transformers-assisted:", "transformers-x"]
)
def test_a_reference_arm_that_there_is_not_is_told(spec):
    with pytest.raises(
        InvalidRequest, match="'arm' must be transformers, transformers-lookup:K, transformers-assisted:MODEL"
    ):
        parse(spec)


def test_a_strategy_that_there_is_not_is_told():
    for spec in ("promt_lookup", "promt_lookup@adaptive"):
        with pytest.raises(UnknownName, match="did you mean 'prompt_lookup'"):
            parse(spec)


def test_arms_of_all_kinds_generate_the_same(model):
    """Every way to name an arm gives one that runs, and stops where the others stop."""
    target = load_target(model)
    prompt = tuple(byte_tokenizer()("one two three one two three one two")["input_ids"])
    specs = ["none", "prompt_lookup@fixed:3", "prompt_lookup@adaptive", "transformers", "transformers-lookup:3",
             f"transformers-assisted:{model}"]  # fmt: skip
    for stop_ids in (target.facts.stop_ids, frozenset({build("none", target)(prompt, 20)[11]})):
        target.facts = attrs.evolve(target.facts, stop_ids=stop_ids)
        found = {}
        for spec in specs:
            counts = []
            arm = build(spec, target)
            arm.reset()
            found[spec] = arm.run(prompt, 20, seed=None, on_tokens=counts.append).token_ids
            assert sum(counts) == len(found[spec])
            assert len(counts) > 1
        assert len(set(found.values())) == 1, found
    assert len(found["none"]) <= 12


def test_a_models_own_settings_do_not_change_the_reference(model):
    """Prevents a penalty that comes with a model from making transformers' arm say something else than all others."""
    target = load_target(model)
    target.model.generation_config.repetition_penalty = 1.8
    target.model.generation_config.no_repeat_ngram_size = 2
    prompt = tuple(byte_tokenizer()("one two three one two three one two")["input_ids"])
    wanted = build("none", target)(prompt, 20)
    for spec in ("transformers", "transformers-lookup:3", f"transformers-assisted:{model}"):
        assert build(spec, target)(prompt, 20) == wanted, spec


def test_sampling_is_handed_to_the_library_as_it_is():
    """Prevents transformers' hidden top_k of 50 from being compared with our whole distribution."""
    plain = {"num_beams": 1, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0}
    assert library_sampling(None) == plain
    assert library_sampling({"temperature": 0.7, "min_p": None}) == {
        **plain, "do_sample": True, "temperature": 0.7, "top_k": 0, "top_p": 1.0, "typical_p": 1.0
    }  # fmt: skip
    assert library_sampling({"temperature": 1.0, "repetition_penalty": 1.2})["repetition_penalty"] == 1.2
    assert library_sampling({"temperature": 1.0, "top_k": 5})["top_k"] == 5
    with pytest.raises(InvalidRequest, match="'presence_penalty' is unknown to transformers' generate"):
        library_sampling({"temperature": 1.0, "presence_penalty": 1.0})


def drawn(model, arms=None, **settings):
    given = {"plain": "none", "lookup": "prompt_lookup@adaptive", "library": "transformers"}
    return draw_up(arms or given, settings.pop("corpus", CHAT), model=str(model), **settings)


def test_a_plan_binds_what_decides_the_outcome(model, tmp_path):
    """Arms with their code and models, prompts, machine, and the target with its weights."""
    plan = drawn(model, max_new_tokens=5, seeds=(3,), repeats=2)
    plan.write(tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json").digest == plan.digest
    assert plan.baseline == "plain"
    assert plan.arms["lookup"]["length_policy"] == Adaptive.name
    assert "specframe" in plan.arms["lookup"]["plugins"]["prompt_lookup"]
    assert plan.target.startswith("manifest-v1:sha256:")
    assert [item.kind for item in plan.items] == ["chat", "chat"]
    assert "distribution" not in {gate.metric for gate in plan.gates}
    assert "distribution" in {gate.metric for gate in drawn(model, sampling={"temperature": 1.0}).gates}
    require_unchanged(plan)
    require_unchanged(read_plan(tmp_path / "plan.json"))


def test_every_departure_is_told(model, tmp_path, monkeypatch):
    """A changed strategy, prompt, weight, version or machine makes a run invalid, and says where."""
    strategy = tmp_path / "mine.toml"
    strategy.write_text('[length]\nmax_tokens = 4\n[[drafters]]\nuse = "prompt_lookup"\n')
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Hello"}\n')
    folder = tmp_path / "model"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    pin, pinned = tmp_path / "pin.toml", tmp_path / "pinned.toml"
    pin.write_text(dumps(collect(open_source(str(folder)))))
    pinned.write_text('[[drafters]]\nuse = "prompt_lookup"\n[identity]\nmanifest = "pin.toml"\n')
    arms = {"plain": "none", "mine": str(strategy), "pinned": f"{pinned}@adaptive"}
    plan = drawn(folder, arms, corpus=Corpus((str(prompts),)))
    assert changes(plan, renew(plan)) == []

    def told(start):
        with pytest.raises(InvalidPlan, match="would not be the one that was planned") as caught:
            require_unchanged(plan)
        assert [note for note in caught.value.__notes__ if note.startswith(start)], caught.value.__notes__

    strategy.write_text('[length]\nmax_tokens = 5\n[[drafters]]\nuse = "prompt_lookup"\n')
    told("arms.mine.strategy.length.max_tokens: planned 4, now 5")
    strategy.write_text('[length]\nmax_tokens = 4\n[[drafters]]\nuse = "prompt_lookup"\n')
    prompts.write_text('{"prompt": "Hello!"}\n')
    told("items[0].sha256: planned ")
    prompts.write_text('{"prompt": "Hello"}\n{"prompt": "Hello!"}\n')
    told("items[1]: planned nothing, now ")
    prompts.write_text('{"prompt": "Hello"}\n')
    with monkeypatch.context() as patched:
        patched.setattr(planning, "machine_class", lambda: {**plan.machine, "cores": "999"})
        told(f'machine.cores: planned "{plan.machine["cores"]}", now "999"')
        patched.setattr(Adaptive, "name", "adaptive/99")
        told(f'arms.pinned.length_policy: planned "{plan.arms["pinned"]["length_policy"]}", now "adaptive/99"')
    manifest = pin.read_text()
    pin.write_text(dumps(collect(open_source(str(model)), weights=True)))
    told("arms.pinned.pin: planned ")
    pin.write_text(manifest)
    require_unchanged(plan)
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    told("target: planned ")


def test_a_plan_that_is_run_elsewhere_says_what_is_not_there(model, tmp_path, monkeypatch):
    """Prevents a file that nobody has moved from being missing, without a word of where it was looked for."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    monkeypatch.chdir(here)
    Path("prompts.jsonl").write_text('{"prompt": "Hello"}\n')
    Path("mine.toml").write_text('[[drafters]]\nuse = "prompt_lookup"\n')
    arms = {"plain": "none", "mine": "mine.toml@fixed:3"}
    plan = drawn(model, arms, corpus=Corpus(("chat", "prompts.jsonl"), limit=1))
    require_unchanged(plan)
    monkeypatch.chdir(there)
    with pytest.raises(SpecframeError) as caught:
        require_unchanged(plan)
    assert caught.value.__notes__ == [
        f"there is no 'prompts.jsonl' and no 'mine.toml' in '{there}'; paths in a plan are relative to the folder that it was "
        "made in: run it there"
    ]
    Path("mine.toml").symlink_to(here / "mine.toml")
    Path("prompts.jsonl").symlink_to(here / "prompts.jsonl")
    require_unchanged(plan)


def test_a_plan_has_plain_decoding_and_prompts(model, tmp_path):
    """Prevents a comparison with nothing, and one over nothing."""
    with pytest.raises(
        InvalidPlan, match="must have an arm that is plain decoding by specframe: give the strategy 'none'"
    ):
        drawn(model, {"lookup": "prompt_lookup"})
    with pytest.raises(
        InvalidWorkload, match=r"workload 'chats' is neither a stratum nor a file; the strata are chat, .*, and core"
    ):
        drawn(model, corpus=Corpus(("chats",)))
    with pytest.raises(InvalidWorkload, match="no prompt of the split 'train' is in chat"):
        drawn(model, corpus=Corpus(("chat",), split="train"))
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "a"}\n{"prompt": \n')
    with pytest.raises(InvalidWorkload, match=r"bad.jsonl, line 2: is not JSON"):
        drawn(model, corpus=Corpus((str(file),)))
    with pytest.raises(InvalidRequest, match="'sampling' needs a temperature above 0"):
        drawn(model, sampling={"top_k": 5})
    with pytest.raises(InvalidPlan, match="'repeats' must be >= 1"):
        drawn(model, repeats=0)


def test_a_corpus_is_its_sources_in_order():
    """Limits count by kind, and a split is one."""
    assert [item.kind for item in Corpus(("core", "adversarial"), limit=2).items()] == [
        kind for kind in ("edit", "quote", "json", "chat", "adversarial") for _ in range(2)
    ]
    assert len(Corpus(("chat",), split=None).items()) == len(stratum("chat"))
    assert {item.split for item in Corpus(("chat",), split="tune").items()} == {"tune"}
    assert {item.kind for item in Corpus().items()} == set(STRATA)


def test_gates_of_ones_own_are_read(tmp_path):
    """Gates are data."""
    file = tmp_path / "gates.json"
    file.write_text(json.dumps([attrs.asdict(gate) for gate in DEFAULT_GATES]))
    assert read_gates(file) == DEFAULT_GATES
    file.write_text('[{"metric": "speed", "at_least": 2, "otherwise": "keep experimental", "reason": "we need it"}]')
    assert read_gates(file) == (Gate("speed", at_least=2, otherwise=KEEP, reason="we need it"),)
    for text, told in {
        "{": "is not JSON",
        "{}": "must hold a list of gates",
        "[]": "must hold a list of gates",
        '[{"metric": "speed"}]': "gate 1: key 'otherwise' is missing",
        '[{"metric": "speed", "otherwise": "delete", "reason": "x"}]': "must have one of at_least and at_most",
        '[{"metric": "sped", "otherwise": "delete", "reason": "x", "at_least": 1}]': "must be one of",
    }.items():
        file.write_text(text)
        with pytest.raises(InvalidPlan, match=told):
            read_gates(file)


def test_a_certificate_is_evidence_for_its_own_drafters(model, tmp_path):
    """Prevents one drafter's proof from promoting another."""
    file = tmp_path / "c.json"
    content = {"schema": "specframe.certificate", "verdict": "certified", "subject": "prompt_lookup",
               "about": {"drafters": drawn(model).arms["lookup"]["plugins"]}}  # fmt: skip
    file.write_text(json.dumps(content))
    plan = drawn(model, certificates={"lookup": str(file)})
    assert plan.arms["lookup"]["certificate"]["verdict"] == "certified"
    require_unchanged(plan)
    with pytest.raises(InvalidPlan, match="is about 'prompt_lookup', not about the drafters of arm 'plain'"):
        drawn(model, certificates={"plain": str(file)})
    with pytest.raises(
        InvalidPlan, match="a certificate is given for arm 'other'; the arms are plain, lookup, library"
    ):
        drawn(model, certificates={"other": str(file)})
    other = json.loads(file.read_text())
    other["about"]["drafters"]["prompt_lookup"] = "specframe 0.0.1"
    broken = {**other, "about": ["prompt_lookup"]}
    for text, told in {
        "{}": "is no certificate",
        "{": "is not JSON",
        "[" * 100_000: "is not JSON",
        "[]": "is no certificate",
        json.dumps(broken): "is no certificate",
        json.dumps(other): r"is about {.*0\.0\.1'}, and arm 'lookup' runs .*; certify them again",
    }.items():
        file.write_text(text)
        with pytest.raises(InvalidPlan, match=told):
            drawn(model, certificates={"lookup": str(file)})


def test_the_demo_has_the_arms_that_it_promises():
    """Plain decoding twice, prompt lookup with both policies, and transformers with and without its own."""
    kinds = [parse(spec)[0] for spec in DEMO_ARMS.values()]
    assert kinds[0] == kinds[1] == Strategy()
    assert [arm.length.policy for arm in kinds[2:4]] == ["adaptive", "fixed"]
    assert kinds[4:] == [LibraryArm(), LibraryArm(num_lookup=10)]
