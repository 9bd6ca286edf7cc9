"""Section G of the public faults: pairs that look compatible. G4 waits for cross-tokenizer drafts; G5's text is elsewhere.

The advice of the trackers that bears on pairs is tested as what it is: silent relaxations that must not exist.
"""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint
from types import ModuleType

import attrs
import numpy as np
import pytest
import torch
from drafts import drafter, other_model
from models import CHAT_TEMPLATE, PROMPT, engine_on, library_greedy, tiny_config, tiny_model
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import specframe
from specframe import IncompatibleManifest, Length, Needs, Strategy, TransformersTarget, plugins
from specframe.drawing import DraftContext
from specframe.manifest import check, collect, open_source
from specframe.policy import Pipeline
from specframe.prefix import Prefix
from specframe.sampling import SamplingPolicy
from specframe.testing import (
    Adversary,
    LogitsDrafter,
    RandomOffers,
    ScriptedRandom,
    output_law,
    plain_law,
    random_table,
)
from specframe.testing.exhaustive import deviation
from specframe.testing.runs import request_of
from specframe.verify import Residual

WORDS = [f"w{index}" for index in range(97)]


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "cache"))


def word_tokenizer(*, words=WORDS, added=("<unk>", "<s>", "</s>"), normalizer=None, prefix=None, eos="</s>"):
    """Return a tokenizer of 100 ids: 97 words and three added tokens."""
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=words[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in added])
    if normalizer is not None:
        backend.normalizer = normalizer
    if prefix is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{prefix} $A", special_tokens=[(prefix, backend.token_to_id(prefix))]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token=eos)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save(folder, *, width=104, tokenizer=None, **options):
    """Save a model's configuration and tokenizer, and no weights: nothing here needs them."""
    tokenizer = tokenizer or word_tokenizer()
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    tiny_config(**{"vocab_size": width, **ids, **options}).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return collect(open_source(folder))


def verdicts(report):
    return {item.rule: item.verdict for item in report.findings if item.verdict != "fits"}


# --- G1: the same tokenizer, different widths of the logits -------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "found"),
    [
        (104, {}),
        (128, {"head-width": "note"}),
        (1024, {"head-width": "note"}),
        (96, {"head-width": "note", "head-short": "slower"}),
    ],
)
def test_g1_widths_do_not_decide(tmp_path, width, found):
    """Padded heads of one tokenizer were refused, or passed by a rule of thumb; only tokenizers are compared."""
    target = save(tmp_path / "target", width=104)
    report = check(target, save(tmp_path / "draft", width=width))
    assert verdicts(report) == found
    report.require("a draft")


@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("width", [104, 128, 96])
def test_g1_a_draft_of_another_width_drafts(width, sampling):
    """A shape error in the first round, or an id that the target does not have, where the pair is a right one."""
    model = tiny_model(vocab_size=104)
    call = {"max_new_tokens": 12, "suppress_tokens": [*range(96, 104)], **sampling}
    plain = engine_on(TransformersTarget(model)).generate(PROMPT, **call)
    draft = drafter(other_model(vocab_size=width))
    result = engine_on(TransformersTarget(model), draft).generate(PROMPT, **call)
    assert result.token_ids == plain.token_ids
    assert result.stats.num_proposed > 0
    assert not result.events


@pytest.mark.parametrize("is_proposed", [False, True])
def test_g1_an_id_that_the_draft_cannot_read_ends_it_there(is_proposed):
    """A lookup beyond a draft's embeddings is an index error here, and elsewhere the end of the process."""
    model = tiny_model(vocab_size=104)
    beyond = Adversary(lambda context, index: 100 if is_proposed and index == 0 else None)
    call = {"max_new_tokens": 12, "suppress_tokens": [*range(96, 104)]}
    engine = engine_on(TransformersTarget(model), beyond, drafter(other_model(vocab_size=96)))
    for prompt in (PROMPT, (*PROMPT, 97), (98, *PROMPT)):
        result = engine.generate(prompt, **call)
        assert result.token_ids == engine_on(TransformersTarget(model)).generate(prompt, **call).token_ids
        told = [] if prompt == PROMPT else ["off for the rest of the request: DraftVocabularyExceeded"]
        assert [event.message for event in result.events] == told


@pytest.mark.parametrize("width", [128, 96])
def test_g1_the_law_of_a_draft_of_another_width(width):
    """Ids that the target lacks are gone before p is normalised; those that the draft lacks have p = 0."""
    pipeline = Pipeline(SamplingPolicy(temperature=1.0), vocab_size=104, stop_ids=frozenset(), num_prompt=1)
    rule = Residual(ScriptedRandom([1 - 2.0**-53]), 0)
    row = torch.linspace(0, 9, width, dtype=torch.float64)
    drawn = DraftContext(Prefix([1], None, "cpu"), pipeline, lambda: rule, "cpu").draw(row, None, 0)
    expected = torch.zeros(104, dtype=torch.float64)
    expected[: min(width, 104)] = row[:104].softmax(-1)
    assert np.allclose(drawn.law.dense(), expected, rtol=0, atol=1e-15)
    assert drawn.token == min(width, 104) - 1


@pytest.mark.parametrize("width", [2, 3, 4, 6])
def test_g1_what_the_target_lacks_leaves_the_draft_before_the_draw(width):
    """A law that still counts the padding accepts too much: the output's law, enumerated, is no longer the target's."""
    target = random_table(vocab_size=3, seed=1, spread=1.0)
    draft = random_table(vocab_size=width, seed=2)
    drafting = LogitsDrafter(lambda ids: [value + 2 * (index >= 3) for index, value in enumerate(draft.row(ids))])
    request = request_of(target, (0, 1), {"max_new_tokens": 3, "temperature": 1.0, "seed": 0})
    strategy = Strategy(verifier="residual", length=Length(max_tokens=2))
    law = output_law(target, {"d": drafting}, strategy, request)
    assert deviation(law, plain_law(target, request)) < 1e-12


@pytest.mark.parametrize("kind", ["same", "reduced"])
@pytest.mark.parametrize("num_more", [1, 127, 128])
def test_g1_no_tolerance_of_vocabularies(tmp_path, kind, num_more):
    """'Up to 128 ids more are fine' (advice 5) is a silent relaxation: one id too many is another tokenizer."""
    target = save(tmp_path / "target", width=256)
    words = [*WORDS, *(f"more{index}" for index in range(num_more))]
    report = check(target, save(tmp_path / "draft", width=256, tokenizer=word_tokenizer(words=words)), kind)
    assert report.verdict == "refuse"
    assert report.of("refuse")[0].rule == "vocabulary"


# --- G2: the same width, different meaning of ids -----------------------------------------------------------------------


def swapped():
    return [*WORDS[:40], WORDS[41], WORDS[40], *WORDS[42:]]


MEANINGS = {
    "two ids swapped": (lambda: word_tokenizer(words=swapped()), "vocabulary"),
    "added tokens in another order": (lambda: word_tokenizer(added=("<unk>", "</s>", "<s>")), "vocabulary"),
    "another normaliser": (lambda: word_tokenizer(normalizer=normalizers.Lowercase()), "normalizer"),
    "BOS put before the text": (lambda: word_tokenizer(prefix="<s>"), "boundary-ids"),
    "another EOS": (lambda: word_tokenizer(eos="<unk>"), "stop-ids"),
    "another template": (lambda: templated("{{ messages[0]['content'] }}"), "chat-template"),
}


def templated(template):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("name", MEANINGS)
def test_g2_equal_size_is_not_equal_meaning(tmp_path, name):
    """A pair that is accepted on its size alone drafts noise."""
    make, rule = MEANINGS[name]
    target, draft = save(tmp_path / "target"), save(tmp_path / "draft", tokenizer=make())
    assert target.tokenizer.size == draft.tokenizer.size == 100
    assert target.model.head_width == draft.model.head_width
    report = check(target, draft)
    assert report.of("refuse")[0].rule == rule
    assert all(item.reason and item.remedy for item in report.of("refuse"))
    with pytest.raises(IncompatibleManifest, match=rf"drafter 'd' does not fit the target \({rule}\)"):
        report.require("drafter 'd'")


@attrs.frozen
class Options:
    model: str


def registered(monkeypatch, needs, made):
    """Make a drafter with these needs the only one installed; ``made`` collects its options."""

    def factory(options, facts):
        made.append(options)
        return RandomOffers(100)

    module = ModuleType("needy_plugin")

    @specframe.hookimpl
    def specframe_register_drafters(register):
        register("needy", factory, options=Options, needs=needs, api=1)

    module.specframe_register_drafters = specframe_register_drafters

    class Point(EntryPoint):
        def load(self):
            return module

    monkeypatch.setattr(plugins, "entry_points", lambda group: [Point("needy", "needy:plugin", plugins.GROUP)])


@pytest.fixture
def no_weights(monkeypatch):
    """Fail if weights are loaded, in whichever way."""
    import safetensors
    import safetensors.torch
    from transformers import AutoModelForCausalLM

    def refuse(*args, **kwargs):
        raise AssertionError("weights were loaded")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", refuse)
    monkeypatch.setattr(safetensors, "safe_open", refuse)
    monkeypatch.setattr(safetensors.torch, "load_file", refuse)
    monkeypatch.setattr(torch, "load", refuse)


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize("kind", ["same", "reduced"])
def test_g2_a_pair_that_does_not_fit_is_refused_before_weights_load(tmp_path, monkeypatch, kind):
    """Minutes of loading before an error, or an hour of noise without one."""
    save(tmp_path / "target")
    save(tmp_path / "draft", tokenizer=word_tokenizer(words=swapped()))
    made = []
    registered(monkeypatch, Needs(tokenizer=kind, model="model"), made)
    strategy = Strategy(drafters=(specframe.DrafterUse("needy", {"model": str(tmp_path / "draft")}),))
    with pytest.raises(IncompatibleManifest) as caught:
        specframe.load(tmp_path / "target", strategy=strategy)
    assert "target: id 40 is 'w40', 100 ids, draft: id 40 is 'w41', 100 ids; use a draft model" in str(caught.value)
    assert not made


def test_g2_a_pair_that_fits_loads_and_a_padded_head_too(tmp_path, monkeypatch):
    """The check must not cost the pairs that are right."""
    save(tmp_path / "target")
    tiny_model(vocab_size=104, dtype=torch.float32, bos_token_id=98, eos_token_id=99).save_pretrained(
        tmp_path / "target"
    )
    save(tmp_path / "draft", width=128)
    made = []
    registered(monkeypatch, Needs(tokenizer="same", model="model"), made)
    strategy = Strategy(drafters=(specframe.DrafterUse("needy", {"model": str(tmp_path / "draft")}),))
    engine = specframe.load(tmp_path / "target", strategy=strategy)
    assert made
    assert engine.draft_identities["needy"].model.head_width == 128
    plain = specframe.load(tmp_path / "target").generate("w1 w2 w3", max_new_tokens=12)
    assert engine.generate("w1 w2 w3", max_new_tokens=12).token_ids == plain.token_ids


def test_g2_a_target_made_by_hand_is_compared_too(tmp_path, monkeypatch):
    """Not only what specframe loads itself can be wrong."""
    model = tiny_model(vocab_size=104, bos_token_id=98, eos_token_id=99)
    save(tmp_path / "draft", tokenizer=word_tokenizer(words=swapped()))
    registered(monkeypatch, Needs(tokenizer="same", model="model"), [])
    strategy = Strategy(drafters=(specframe.DrafterUse("needy", {"model": str(tmp_path / "draft")}),))
    with pytest.raises(IncompatibleManifest, match="id 40 is 'w40'"):
        specframe.Engine(TransformersTarget(model, word_tokenizer()), strategy=strategy)


# --- Reduced output vocabularies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "found"),
    [
        ([5, 9, 98, -1], {}),
        (None, {"output-map": "refuse"}),
        ([5, 9, 5], {"output-map-injective": "refuse"}),
        ([5, 104], {"output-map-range": "refuse"}),
        ([5, 103], {}),
    ],
)
def test_a_reduced_head_declares_an_injective_map(tmp_path, ids, found):
    """Without a map ids are guessed; with two columns for one id p is not a law."""
    target = save(tmp_path / "target")
    save(tmp_path / "draft", **({"width": len(ids)} if ids is not None else {}))
    if ids is not None:
        (tmp_path / "draft" / "target_ids.json").write_text(json.dumps(ids))
    assert verdicts(check(target, collect(open_source(tmp_path / "draft")), "reduced")) == found


# --- G5: RoPE that depends on the length of the call --------------------------------------------------------------------

DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}


def test_g5_the_target_is_marked_and_the_text_is_right(tmp_path):
    """Past its original length a block computes other rows than single steps: the manifest says so, the room is 0 there."""
    options = {"max_position_embeddings": 16, "rope_parameters": dict(DYNAMIC)}
    target = save(tmp_path / "target", **options)
    assert target.positions.block_limit == 16
    report = check(target, save(tmp_path / "draft"))
    assert verdicts(report) == {"block-invariance": "slower", "rope": "note"}
    model = tiny_model(**options)
    engine = engine_on(TransformersTarget(model), RandomOffers(64), length=4)
    result = engine.generate(range(5, 11), max_new_tokens=34)
    assert result.token_ids == library_greedy(model, range(5, 11), 34)
    assert all(record.num_proposed == 0 for record in result.records[-15:])


def test_g5_a_draft_with_other_scaling_is_only_noted(tmp_path):
    """The draft may use any law; only sharing its cache with the target would be wrong, and nothing is shared."""
    target = save(tmp_path / "target")
    draft = save(tmp_path / "draft", max_position_embeddings=64, rope_parameters=dict(DYNAMIC))
    assert verdicts(check(target, draft)) == {"rope": "note"}


# --- Advice that is not followed ----------------------------------------------------------------------------------------


def test_advice_no_strategy_or_option_relaxes_a_refusal():
    """Advice 5: a tolerance that is set once is forgotten; there is none to set."""
    fields = {field.name for cls in (Strategy, specframe.Identity, Needs) for field in attrs.fields(cls)}
    assert not [name for name in fields if "toler" in name or "ignore" in name or "force" in name or "relax" in name]


def test_advice_a_lossy_default_of_the_library_never_counts(tmp_path):
    """Advice 6: a generation configuration with lossy or sampling settings changes neither the identity nor the text."""
    first = save(tmp_path / "plain")
    save(tmp_path / "lossy")
    settings = {"assistant_confidence_threshold": 0.4, "do_sample": True, "temperature": 0.3, "eos_token_id": 99}
    (tmp_path / "lossy" / "generation_config.json").write_text(json.dumps({**settings, "bos_token_id": 98}))
    assert collect(open_source(tmp_path / "lossy")).digest == first.digest
