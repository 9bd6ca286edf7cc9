"""Equality with plain decoding: wrong round loops are caught, near-ties are counted, and a certified block allows none."""

from __future__ import annotations

import pytest
from models import shared_model
from wrong import EndPassedOver, FirstUnverified, RowsShifted

from specframe import TransformersTarget
from specframe.generation import Generation
from specframe.target import SINGLE, Kernel
from specframe.testing import QUICK, Adversary, LogitsDrafter, Oracle, TableTarget, parity, random_table
from specframe.testing.runs import Subject, request_of, run

PROMPTS = [(5, 6, 7, 8), (9, 9, 2)]


def subject(generation=Generation):
    def make(target):
        own, other = target.row, random_table(vocab_size=target.facts.vocab_size, order=1, seed=9)

        def row(ids):  # right two times of three
            return other.row(ids) if len(ids) % 3 == 0 else own(ids)

        return {"d": LogitsDrafter(row, num_tokens=3)}

    return Subject("drawing", make, generation=generation)


def test_the_shipped_loop_is_plain_decoding_under_every_policy():
    """Greedy and coupled, with penalties and masks, and stops within blocks."""
    for name, check in parity.checks(subject(), QUICK).items():
        found = check()
        assert found.status == "passed", (name, found)
        assert found.figures["num_accepted"] < found.figures["num_proposed"]


@pytest.mark.parametrize("generation", [FirstUnverified, RowsShifted, EndPassedOver])
@pytest.mark.parametrize("check", ["greedy equality: plain", "coupled equality: temperature"])
def test_wrong_loops_are_caught(generation, check):
    """Row shifted by one, first token unverified, end of sequence passed over."""
    found = parity.checks(subject(generation), QUICK)[check]()
    assert found.status == "failed"
    assert "the text is another one from token" in found.told


def on_target(target, drafter, *, kernel=SINGLE, bound=1e-9, is_greedy=True, generation=Generation, plan=QUICK):
    made = Subject("it", lambda target: {"it": drafter}, generation=generation)
    return parity.on_target(
        target, {"it": drafter}, made, PROMPTS, plan, kernel=kernel, bound=bound, is_greedy=is_greedy
    )


@pytest.mark.parametrize("is_greedy", [True, False])
def test_a_real_target_is_compared(is_greedy):
    """In float64 a tiny model gives plain decoding's texts, and a shifted row does not."""
    target = TransformersTarget(shared_model())
    drafter = LogitsDrafter(random_table(vocab_size=64, seed=1).row, num_tokens=2)
    found = on_target(target, drafter, is_greedy=is_greedy)
    assert found.status == "passed", found
    assert (found.figures["compared"], found.figures["near_ties"]) == (2, [])
    assert on_target(target, drafter, is_greedy=is_greedy, generation=RowsShifted).status == "failed"


class Undecided(TableTarget):
    """Ids 1 and 2 are within 1e-6 of each other; which is likelier depends on how many rows a call has."""

    def open(self, *args, **kwargs):
        session = super().open(*args, **kwargs)
        verify_linear = session.verify_linear

        def tilted(ticket, pending, proposal, **options):
            verification = verify_linear(ticket, pending, proposal, **options)
            verification.logits[:, 1] += 2e-6 * (len(proposal) > 0)
            return verification

        session.verify_linear = tilted
        return session


def test_near_ties_are_counted_below_the_bound_only():
    """A text that parts where the margin is below the bound is counted; above it, or in a certified block, it fails."""
    target = Undecided(lambda ids: [0.0, 1.0, 1.0 + 1e-6], vocab_size=3)
    drafter = Adversary(lambda context, index: 2 if index == 0 else None)
    prompts = [(0, 1), (1, 0)]
    made = Subject("it", lambda target: {"it": drafter})

    def compared(**options):
        arguments = {"kernel": SINGLE, "is_greedy": True, **options}
        return parity.on_target(target, {"it": drafter}, made, prompts, QUICK, **arguments)

    found = compared(bound=1e-5)
    assert found.status == "passed"
    assert [tie["token"] for tie in found.figures["near_ties"]] == [1, 1]
    assert compared(bound=1e-7).status == "failed"
    certified = compared(bound=1e-5, kernel=Kernel(8, is_certified=True))
    assert certified.status == "failed"
    assert "certified block kernel" in certified.told


def test_a_drafter_that_proposes_nothing_shows_nothing():
    """Equal texts without a proposal are no evidence."""
    found = on_target(TransformersTarget(shared_model()), Adversary(lambda context, index: None))
    assert found.status == "failed"
    assert "nothing to verify" in found.told


def test_texts_part_at_the_first_difference():
    """Also where one is the beginning of the other."""
    assert parity.first_difference((1, 2, 3), (1, 2, 3)) == 3
    assert parity.first_difference((1, 2, 3), (1, 5, 3)) == 1
    assert parity.first_difference((1, 2), (1, 2, 3)) == 2


def test_an_oracle_is_accepted_whole():
    """The figures of a certificate count what was proposed and accepted."""
    target = random_table(vocab_size=6, order=1)
    request = request_of(target, (1, 2), {"max_new_tokens": 9})
    plain = run(target, {}, subject().rounds(), request)
    found = run(target, {"o": Oracle(plain.token_ids)}, subject().rounds(max_tokens=4), request)
    assert found.output == plain.output
    assert found.num_accepted == found.num_proposed > 0
