"""Records and statistics: identities between counters, and figures that are what their names say."""

from __future__ import annotations

import pytest

from specframe.records import DrafterShare, RoundRecord, check_counts, draft_prefill_s, summarise


def share(name="d", proposed=0, evaluated=0, accepted=0, kept=None, entropies=()):
    return DrafterShare(
        name=name,
        limit=8,
        start=0,
        num_proposed=proposed,
        num_evaluated=evaluated,
        num_accepted=accepted,
        num_kept=accepted if kept is None else kept,
        propose_s=0.5,
        seconds=1.0,
        entropies=entropies,
    )


def record(*shares, emitted=None, round_id=1, **changes):
    counts = {
        name: sum(getattr(part, name) for part in shares)
        for name in ("num_proposed", "num_evaluated", "num_accepted", "num_kept")
    }
    counts["num_emitted"] = counts["num_kept"] + 1 if emitted is None else emitted
    return RoundRecord(
        round_id=round_id,
        drafters=shares,
        num_forwards=1,
        min_margin=None,
        num_rounding=0,
        draft_s=1.0,
        forward_s=2.0,
        sync_s=32.0,
        decide_s=4.0,
        commit_s=8.0,
        emit_s=16.0,
        **{**counts, **changes},
    )


@pytest.mark.parametrize(
    "good",
    [
        record(),
        record(share(proposed=4, evaluated=4, accepted=4)),
        record(share(proposed=4, evaluated=3, accepted=2)),
        record(share(proposed=4, evaluated=2, accepted=2), emitted=2),
        record(share("a", 2, 2, 2), share("b", 3, 1, 0)),
    ],
    ids=["plain", "all stand", "one fails", "output ends inside", "two drafters"],
)
def test_rounds_that_can_happen_pass(good):
    """Prevents an identity from refusing an honest round."""
    check_counts(good)


@pytest.mark.parametrize(
    "bad",
    [
        record(share(proposed=2, evaluated=3, accepted=2)),
        record(share(proposed=4, evaluated=2, accepted=3)),
        record(share(proposed=4, evaluated=4, accepted=2)),
        record(share(proposed=4, evaluated=3, accepted=2, kept=3)),
        record(share(proposed=4, evaluated=3, accepted=2), emitted=2),
        record(share(proposed=4, evaluated=4, accepted=4), emitted=6),
        record(share(proposed=4, evaluated=4, accepted=4), num_proposed=5),
        record(share("a", 2, 2, 2), share("b", 3, 1, 0), num_accepted=1, num_kept=1, num_emitted=2),
    ],
    ids=[
        "more judged than proposed",
        "more accepted than judged",
        "two rejected",
        "more kept than accepted",
        "rejected and not replaced",
        "two own tokens",
        "proposed by nobody",
        "accepted twice",
    ],
)
def test_rounds_that_cannot_happen_fail(bad):
    """Prevents a counter from meaning something else than it says (case L1): the negative controls of the identities."""
    with pytest.raises(AssertionError):
        check_counts(bad)


def test_statistics_of_a_trace_by_hand():
    """Prevents a sum over the wrong rounds, and a speed that counts what was proposed."""
    stats = summarise(
        [
            record(round_id=0),
            record(share("a", 4, 3, 2, entropies=(0.5, None, 1.5))),
            record(share("a", 2, 2, 2, entropies=(0.1, 0.2)), share("b", 1, 1, 0)),
            record(share("a"), share("b", 3, 3, 3), emitted=3),
        ]
    )
    assert (stats.num_rounds, stats.num_tokens, stats.num_proposed, stats.num_accepted) == (4, 10, 10, 7)
    assert stats.tokens_per_call == 10 / 4
    assert stats.first_token_s == 63.0
    assert stats.draft_prefill_s == 0.0
    a, b = stats.drafters["a"], stats.drafters["b"]
    assert (a.num_proposed, a.num_evaluated, a.num_accepted, a.seconds) == (6, 5, 4, 3.0)
    assert [position.num_rejected for position in a.positions] == [0, 0, 1, 0]
    assert a.entropies == ((0.5, True), (1.5, False), (0.1, True), (0.2, True))
    assert b.entropies == ()
    assert [position.num_rejected for position in b.positions] == [1, 0, 0]
    assert [position.num_rejected for position in stats.positions] == [0, 0, 2, 0]
    assert sum(position.num_kept for position in stats.positions) + 3 == stats.num_tokens  # three own tokens
    assert stats.seconds == {
        "prefill": 2.0, "draft": 4.0, "verify": 6.0, "sync": 128.0, "decide": 16.0, "commit": 32.0, "emit": 64.0
    }  # fmt: skip
    assert stats.total_s == 4 * 63.0


def test_a_drafts_prefill_is_what_its_first_proposal_took_longer_than_others():
    """Prevents a longer first proposal, or a round without one, from passing for a prefill."""
    assert draft_prefill_s([(0, 9.0), (4, 5.0), (4, 1.0), (2, 0.5), (4, 2.0), (0, 7.0), (4, 2.0)]) == 3.0
    assert draft_prefill_s([(4, 5.0), (2, 0.5), (2, 0.5)]) == 0.0  # nothing to compare it with
    assert draft_prefill_s([(4, 1.0), (4, 2.0), (4, 2.0)]) == 0.0
    assert draft_prefill_s([(0, 3.0)]) == draft_prefill_s([]) == 0.0
