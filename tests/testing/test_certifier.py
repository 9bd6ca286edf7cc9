"""Certificates of whole drafters: first-party ones are certified, wrong ones are not, and what was not shown is named."""

from __future__ import annotations

import json
import time

import attrs
import pytest
import torch
from drafts import TableRunner, near_model
from models import shared_model, tiny_model
from wrong import CorrectionFromTarget, with_rule

import specframe
from specframe import DrafterUse, Engine, Length, Strategy, TransformersTarget
from specframe.generation import Generation
from specframe.testing import (
    QUICK,
    Adversary,
    Certificate,
    Check,
    Oracle,
    RandomOffers,
    byte_tokenizer,
    certify,
    certify_strategy,
    random_table,
)
from specframe.testing.certifier import _judged_together
from specframe.testing.finding import Finding, Statistic
from specframe.testing.page import page
from specframe_draft_model import DraftModelOptions
from specframe_draft_model.drafter import DraftModel
from specframe_draft_model.network import Network
from specframe_grammar.drafter import GrammarDrafter
from specframe_grammar.options import GrammarOptions
from specframe_prompt_lookup import PromptLookup, PromptLookupOptions

SMALL = attrs.evolve(
    QUICK,
    name="small",
    num_outputs=200,
    num_tokens=12,
    num_target_tokens=12,
    num_chained=3,
    policies=("temperature", "mask"),
)
BRIEF = attrs.evolve(SMALL, policies=("temperature",))


def draft_model(facts):
    """Make a draft model whose network is a table; its head is wider than the target's."""
    table = random_table(vocab_size=facts.vocab_size + 2, seed=2)
    return DraftModel(Network(TableRunner(lambda ids: table.row(ids).tolist())), DraftModelOptions(model="unused"))


def random_draft(facts):
    """Make a draft model on a tiny random network."""
    model = tiny_model(num_hidden_layers=1, vocab_size=max(8, facts.vocab_size), dtype=torch.float32)
    return DraftModel(Network(TransformersTarget(model)), DraftModelOptions(model="unused"))


FIRST_PARTY = {
    "prompt_lookup": lambda facts: PromptLookup(PromptLookupOptions(), facts),
    "grammar": lambda facts: GrammarDrafter(GrammarOptions(), facts),
    "draft_model": draft_model,
}


@pytest.mark.parametrize("name", FIRST_PARTY)
def test_first_party_drafters_are_certified(name):
    """Everything is run on tables; nothing fails and nothing is left out."""
    told = []
    certificate = certify(FIRST_PARTY[name], name=name, plan=SMALL, say=told.append)
    assert certificate.is_certified, certificate.failures
    assert certificate.classes == {"greedy and coupled": "token-exact", "residual": "distribution-exact"}
    assert certificate.missing == ()
    assert [progress.check for progress in told] == [*(check.name for check in certificate.checks), ""]
    assert certificate.plan["checks"] == [check.name for check in certificate.checks]
    assert f"{name} is certified" in certificate.sentence


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FIRST_PARTY, "random_draft"])
def test_a_full_certificate_takes_less_than_a_minute(name):
    """On two cores; every policy, as the command line runs it."""
    make = FIRST_PARTY.get(name, random_draft)
    start = time.process_time()
    certificate = certify(make, name=name)
    assert certificate.is_certified, certificate.failures
    assert time.process_time() - start < 60


def test_a_wrong_verifier_is_not_certified():
    """What fails is named in the verdict, by the check that saw it."""
    certificate = certify(FIRST_PARTY["draft_model"], generation=with_rule(CorrectionFromTarget), plan=BRIEF)
    assert certificate.verdict == "not certified"
    failed = {check.name for check in certificate.failures}
    assert "exact law: temperature" in failed
    assert not any(name.startswith(("greedy", "coupled", "contract")) for name in failed)
    assert "exact law: temperature" in certificate.sentence


def test_statistical_findings_are_corrected_for_their_number():
    """One small p-value among many is none; small enough, it fails the check that it belongs to."""

    def judged(p_value):
        tests = {str(index): Statistic(0.5, 100) for index in range(99)}
        done = {
            "many": (Finding("passed", "fine", tests=tests), 0.0),
            "one": (
                Finding("passed", "fine", tests={"draws": Statistic(p_value, 100), "few": Statistic(None, 3)}),
                0.0,
            ),
        }
        return _judged_together(done, QUICK)[1]

    check = judged(0.9 * QUICK.alpha)
    assert check.status == "passed"
    assert check.p_values["draws"]["adjusted"] == pytest.approx(90 * QUICK.alpha)
    assert check.figures["too_few_values_for_a_test"] == {"few": 3}
    check = judged(QUICK.alpha / 200)
    assert check.status == "failed"
    assert "draws do not have their law" in check.told


def on_wide_targets(facts):
    """Make a drafter that cannot be made for a table."""
    if facts.vocab_size < 64:
        raise specframe.InvalidStrategy("needs 64 ids")
    return RandomOffers(3)


def test_a_real_target_adds_conformance_and_parity():
    """The bound of near-ties is measured in the same run; manifests and the class stand in the certificate."""
    target = TransformersTarget(shared_model())
    certificate = certify(on_wide_targets, name="dice", target=target, plan=SMALL)
    assert certificate.is_certified, certificate.failures
    checks = {check.name: check for check in certificate.checks}
    kernel = checks["target: kernel"]
    assert 0 < kernel.figures["largest_difference"] < 1e-10 < kernel.figures["shift"]
    assert checks["target: greedy parity"].figures["near_tie_bound"] == 2 * kernel.figures["largest_difference"]
    assert checks["target: coupled parity"].status == checks["target: residual draws"].status == "passed"
    assert certificate.about["kernel"] == "single"
    # The verdict holds for what was run, and the rest is named.
    assert len(certificate.missing) == 1
    assert "could not be run" in certificate.sentence


PAIR = attrs.evolve(BRIEF, name="pair", num_prompts=18, num_target_tokens=24)


@pytest.mark.parametrize("generation", [Generation, with_rule(CorrectionFromTarget)], ids=["right", "wrong"])
def test_residual_draws_of_a_real_pair_have_their_laws(generation):
    """A draft model beside a target, both of random weights, every kind of draw and decision tested; and the control."""

    def draft(facts):
        if facts.vocab_size != 64:
            raise specframe.InvalidStrategy("is the draft of another target")
        return DraftModel(Network(TransformersTarget(near_model())), DraftModelOptions(model="unused"))

    two = Strategy(length=Length(max_tokens=2))
    target = TransformersTarget(shared_model())
    certificate = certify(draft, target=target, strategy=two, generation=generation, plan=PAIR)
    (found,) = [check for check in certificate.checks if check.name == "target: residual draws"]
    if generation is Generation:
        assert found.status == "passed", found
        assert set(found.p_values) == {"drawn tokens", "first rejections", "corrections", "extra tokens"}
    else:
        assert found.status == "failed"


def test_a_drafter_with_little_to_say_is_asked_what_it_knows():
    """To the core workload it says nothing, which shows nothing; the caller's prompts stand in the certificate by a digest."""

    def knows_one_beginning(facts):
        if facts.tokenizer is None:
            raise specframe.InvalidStrategy("no tokenizer")
        return Adversary(lambda context, index: 7 if context[0] == 1 else None)

    tokenizer = byte_tokenizer()
    target = random_table(vocab_size=len(tokenizer), order=1, tokenizer=tokenizer)
    silent = certify(knows_one_beginning, target=target, plan=BRIEF)
    assert silent.about["prompts"] == "core"
    assert {check.name for check in silent.failures} == {"target: greedy parity", "target: coupled parity"}
    assert all("give prompts on which it does" in check.told for check in silent.failures)

    shown, other = (certify(knows_one_beginning, target=target, prompts=[text], plan=BRIEF) for text in ("\1ab", "\1b"))
    assert shown.is_certified, shown.failures
    assert shown.about["prompts"]["count"] == 1
    assert shown.about["prompts"]["sha256"] != other.about["prompts"]["sha256"]
    assert "1ab" not in shown.to_json()


def test_a_strategy_is_certified_as_it_is():
    """Its drafters, in its mode, by name."""
    strategy = Strategy(name="two", mode="first", drafters=(DrafterUse("grammar"), DrafterUse("prompt_lookup")))
    certificate = certify_strategy(strategy, plan=BRIEF)
    assert certificate.is_certified, certificate.failures
    assert set(certificate.about["drafters"]) == {"grammar", "prompt_lookup"}
    assert certificate.about["strategy"]["mode"] == "first"


def test_adaptive_lengths_are_enumerated_too():
    """They follow the clock, which would make any drafter one that proposes differently each time."""
    strategy = Strategy(name="it", length=Length("adaptive", 4), drafters=(DrafterUse("prompt_lookup"),))
    certificate = certify_strategy(strategy, plan=BRIEF)
    assert certificate.is_certified, certificate.failures
    assert certificate.missing == ()
    (law,) = [check for check in certificate.checks if check.name == "exact law: temperature"]
    assert law.figures["num_proposed"] > 0


def test_what_tables_lack_is_told():
    """A drafter of the target's tokenizer cannot run on ids alone: nothing is shown without a target, and that is said."""
    strategy = Strategy(name="mine", drafters=(DrafterUse("draft_model", {"model": "/home/someone/my-draft"}),))
    certificate = certify_strategy(strategy, plan=SMALL)
    assert certificate.verdict == "not certified"
    assert certificate.missing == (
        "tables: not run on table targets: draft_model needs the target's tokenizer, which a table has not; give a target",
    )
    assert "someone" not in certificate.to_json()

    def needs_text(facts):
        if facts.tokenizer is None:
            raise specframe.InvalidStrategy("no tokenizer")
        return Oracle([1, 2])

    certificate = certify(needs_text, plan=SMALL)
    assert certificate.verdict == "not certified"
    assert "InvalidStrategy: no tokenizer" in certificate.sentence


def test_what_raises_fails_and_the_rest_goes_on():
    """An engine that breaks is a finding, not an error of the certificate."""

    class Broken(Generation):
        def _verify(self, *args):
            raise ZeroDivisionError("broken")

    certificate = certify(FIRST_PARTY["prompt_lookup"], generation=Broken, plan=SMALL)
    assert "it raised ZeroDivisionError: broken" in {check.told for check in certificate.failures}
    assert {check.name for check in certificate.checks if check.status == "passed"} >= {"contract: room"}


def test_a_drafter_that_fails_is_told_of_once_and_by_place(caplog):
    """The log has a traceback for every failure, thousands in a certification, and the table would scroll away."""

    def choose(context, index):
        if len(context) > 11:
            raise LookupError("in the third round")
        return 0

    certificate = certify(lambda facts: Adversary(choose), plan=BRIEF)
    failed = {check.name: check.told for check in certificate.failures}
    assert (
        "propose raised LookupError: in the third round (test_certifier.py, line "
        in failed["contract: it stays on and proposes"]
    )
    assert caplog.records == []
    Engine(random_table(), {"it": Adversary(choose)}).generate([1] * 12, max_new_tokens=4)
    assert len(caplog.records) == 1  # muted for no longer than it takes


def test_an_engine_brings_its_kernel(tmp_path, monkeypatch):
    """A certificate of an engine under blocks says so, and its rows are compared within the block."""
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path))
    engine = Engine(TransformersTarget(shared_model()), {"dice": RandomOffers(2)}, strategy=Strategy(kernel="block:4"))
    certificate = certify_strategy(Strategy(name="dice"), engine=engine, plan=BRIEF)
    checks = {check.name: check for check in certificate.checks}
    assert checks["target: kernel"].figures["kernel"] == "block:4"
    assert set(checks["target: kernel"].figures["differences"]) == {1, 2, 4}
    assert certificate.about["kernel"] == "block:4"


CERTIFICATE = Certificate(
    subject="<it>",
    about={"strategy": {"name": "x"}},
    plan={"name": "full"},
    versions={"specframe": "0.1"},
    manifests={},
    classes={},
    checks=(
        Check("a", "passed", "fine", {"deviation": 1e-15}, {"outputs": {"p": 0.5, "adjusted": 1.0, "num_values": 9}}),
        Check("b", "failed", "<script>", {"largest_deviation": float("inf")}),
        Check("c", "skipped", "no model"),
    ),
    made="2026-01-01T00:00:00+00:00",
    seconds=1.0,
)


def test_a_certificate_is_json_of_a_stated_schema():
    """Nothing in it is beyond JSON, and the verdict stands at the top."""
    record = json.loads(CERTIFICATE.to_json())
    assert list(record)[:4] == ["schema", "version", "verdict", "sentence"]
    assert (record["schema"], record["version"], record["verdict"]) == ("specframe.certificate", 1, "not certified")
    assert record["checks"][1]["figures"]["largest_deviation"] == "inf"
    assert record["missing"] == ["c: no model"]
    assert record["sentence"] == "<it> is not certified: 1 of 3 checks failed (b)."


def test_the_page_is_whole_and_escaped():
    """One file that asks no network, whatever a drafter is called, with the verdict before everything else."""
    text = page(CERTIFICATE)
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert "http" not in text
    assert text.index("not certified") < text.index("Checks")
    assert 'name="viewport"' in text
    assert "p-value, outputs" in text
    assert text.count("<tr>") == text.count("</tr>")


def test_a_certificate_of_nothing_certifies_nothing():
    """No checks, no verdict."""
    empty = attrs.evolve(CERTIFICATE, checks=())
    assert not empty.is_certified
    assert "nothing could be shown" in empty.sentence
