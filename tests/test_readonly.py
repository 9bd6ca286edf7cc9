"""What drafters are given: whatever they do to it, the text stays that of plain decoding."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from models import PROMPT, engine_on, random_table, tiny_model

from specframe import DrafterUse, Engine, Needs, ProposalError, Strategy, TextGrammar, TransformersTarget, pure
from specframe.grammar import read_only
from specframe.plugins import DrafterEntry, Plugin, Plugins
from specframe.settings import kept_settings
from specframe.testing import RandomOffers, RecordedSession

SAMPLING = {"temperature": 0.9, "seed": 5}


class EveryThird:
    """Allow two thirds of the ids, others after every token; masks are cached, and handed out as they are."""

    start = 0

    def __init__(self, size=12):
        self.masks = [np.arange(size) % 3 != state for state in range(3)]

    def mask(self, state):
        return self.masks[state]

    def advance(self, state, token):
        return (state + 1) % 3

    def is_final(self, state):
        return False


class Meddling(RandomOffers):
    """Does something in every call of one method, and keeps what that raised."""

    def __init__(self, method, meddle):
        super().__init__(seed=3)
        self.method, self.meddle, self.errors = method, meddle, []

    def open(self, request):
        if self.method == "open":
            self.do(request)
        session = super().open(request)
        if self.method != "open":
            inner = getattr(session, self.method)

            def meddling(argument):
                self.do(request, argument)
                return inner(argument)

            setattr(session, self.method, meddling)
        return session

    def do(self, *given):
        try:
            self.meddle(*given)
        except Exception as error:
            self.errors.append(type(error))


@pytest.mark.parametrize("method", ["open", "propose", "commit"])
def test_a_mask_cannot_be_written(method):
    """A grammar may cache its masks, which are part of the target's distribution."""
    drafter = Meddling(method, lambda request, *_: request.grammar.mask(0).fill(True))
    expected = engine_on(random_table()).generate([1, 2], max_new_tokens=14, grammar=EveryThird(), **SAMPLING)
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=14, grammar=EveryThird(), **SAMPLING)
    assert result.token_ids == expected.token_ids
    assert set(drafter.errors) == {ValueError}


def test_a_grammar_is_otherwise_as_it_is():
    """A drafter that follows the grammar must see the same states, and whether there is text in it."""
    plain = EveryThird()
    seen = read_only(plain)
    assert (seen.start, seen.advance(0, 5), seen.is_final(0)) == (0, 1, False)
    assert np.array_equal(seen.mask(1), plain.mask(1))
    assert not isinstance(seen, TextGrammar)
    plain.start_inside, plain.forced = 2, lambda state: (state,)
    text = read_only(plain)
    assert isinstance(text, TextGrammar)
    assert (text.start_inside, text.forced(1)) == (2, (1,))
    assert plain.mask(1).flags.writeable


class Counting:
    """A processor with state: it forbids another id at each call, and can be put back."""

    def __init__(self):
        self.num_calls = 0

    def __call__(self, ids, scores):
        self.num_calls += 1
        scores = scores.clone()
        scores[:, self.num_calls % scores.shape[-1]] = -np.inf
        return scores

    def snapshot(self):
        return self.num_calls

    def restore(self, state):
        self.num_calls = state


@pytest.mark.parametrize("method", ["open", "propose", "commit"])
def test_a_callers_processors_are_out_of_reach(method):
    """A drafter that called one with state would shift what it does to the target's rows."""
    drafter = Meddling(method, lambda request, *_: request.policy.processors[0](None, None))
    expected = engine_on(random_table()).generate([1, 2], max_new_tokens=14, processors=[Counting()], **SAMPLING)
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=14, processors=[Counting()], **SAMPLING)
    assert result.token_ids == expected.token_ids
    assert set(drafter.errors) == {IndexError}


def overwrite(given, name, value):
    setattr(given, name, value)


@pytest.mark.parametrize(
    ("method", "meddle"),
    [
        ("open", lambda request: overwrite(request, "prompt_ids", ())),
        ("open", lambda request: request.prompt_ids.__setitem__(0, 3)),
        ("open", lambda request: overwrite(request.policy, "temperature", 0)),
        ("open", lambda request: overwrite(request.facts, "vocab_size", 3)),
        ("open", lambda request: request.stop_ids.add(3)),
        ("propose", lambda request, round: overwrite(round, "room", 99)),
        ("propose", lambda request, round: overwrite(round, "context", [])),
        ("propose", lambda request, round: overwrite(round, "anything", 1)),
        ("propose", lambda request, round: round.context.__setitem__(0, 3)),
        ("propose", lambda request, round: round.context.append(3)),
        ("propose", lambda request, round: round.context[:].append(3)),
        ("commit", lambda request, commit: overwrite(commit, "ids", ())),
        ("commit", lambda request, commit: commit.ids.__setitem__(0, 3)),
    ],
)
def test_what_is_given_cannot_be_changed(method, meddle):
    """A mistake of a drafter's must fail where it is made, and nowhere else."""
    drafter = Meddling(method, meddle)
    expected = engine_on(random_table()).generate([1, 2], max_new_tokens=14, **SAMPLING)
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=14, **SAMPLING)
    assert result.token_ids == expected.token_ids
    assert set(drafter.errors) <= {attrs.exceptions.FrozenInstanceError, AttributeError, TypeError}
    assert drafter.errors


def test_what_is_kept_is_no_way_in_later():
    """A session that keeps everything, and reads and writes it in every later call, sees old text at most."""
    kept, read = [], []

    def keep(request, round):
        for old_request, old_round, view in kept:
            read.append((old_request.prompt_ids, len(view), old_round.room))
            assert not hasattr(view, "append")
        kept.append((request, round, round.context))

    drafter = Meddling("propose", keep)
    expected = engine_on(random_table()).generate([1, 2], max_new_tokens=14, **SAMPLING)
    engine = engine_on(random_table(), drafter)
    for _ in range(2):
        assert engine.generate([1, 2], max_new_tokens=14, **SAMPLING).token_ids == expected.token_ids
    assert not drafter.errors
    assert len(read) > 20


def test_pure_processors_are_not_lost():
    """What drafters do not see is applied to their draws all the same."""
    forbid = pure(lambda ids, scores: scores.index_fill(1, scores.argmax(), -np.inf))
    seen = []
    drafter = Meddling("open", lambda request: seen.append(request.policy))
    expected = engine_on(random_table()).generate([1, 2], max_new_tokens=8, processors=[forbid])
    result = engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=8, processors=[forbid])
    assert result.token_ids == expected.token_ids
    assert (seen[0].processors, seen[0].is_greedy) == ((), True)


class Mapped:
    """Draws a certain column through a map that the drafter keeps, and notes what came of it."""

    def __init__(self, make_map, change):
        self.map, self.change, self.drawn = make_map([3, 5]), change, []

    def open(self, request):
        return RecordedSession(request, self.propose)

    def propose(self, round):
        for row in ([0.0, -30.0], [0.0, -30.0], [0.0, -30.0, -30.0]):
            try:
                self.drawn.append(round.draw(torch.tensor(row), ids=self.map))
            except ProposalError as error:
                self.drawn.append(str(error))
            self.change(self.map)

    def reset(self): ...
    def close(self): ...


def write(given):
    given[0] = given[0] % 11 + 1


@pytest.mark.parametrize("make_map", [torch.tensor, np.array, list], ids=["torch", "numpy", "list"])
def test_a_map_of_ids_that_is_written_between_draws_is_another_map(make_map):
    """One that is remembered as it was would draw ids that the drafter did not mean."""
    drafter = Mapped(make_map, write)
    engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=5)
    assert drafter.drawn[:2] == [3, 4]
    assert "for each of the 3 columns (got [2])" in drafter.drawn[2]


def test_a_map_of_ids_that_stays_is_checked_for_every_width():
    """A longer row under a map that was checked for a shorter one has columns without an id."""
    drafter = Mapped(torch.tensor, lambda given: None)
    engine_on(random_table(), drafter).generate([1, 2], max_new_tokens=5)
    assert drafter.drawn[:2] == [3, 3]
    assert "for each of the 3 columns (got [2])" in drafter.drawn[2]


SETTINGS = {
    "device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "precision": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("medium")),
    "determinism": (
        torch.get_deterministic_debug_mode,
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    ),
    "oneDNN": (lambda: torch.backends.mkldnn.enabled, lambda: setattr(torch.backends.mkldnn, "enabled", False)),
    "autocast": (
        lambda: torch.is_autocast_enabled("cpu"),
        lambda: torch.autocast("cpu", dtype=torch.bfloat16).__enter__(),
    ),
}


@pytest.fixture
def torchs_own():
    """Put torch's settings back, whatever a test does to them."""
    with kept_settings():
        yield


@pytest.mark.usefixtures("torchs_own")
@pytest.mark.parametrize("method", ["open", "propose", "commit", "close"])
@pytest.mark.parametrize("name", SETTINGS)
def test_what_a_drafter_sets_for_all_of_torch_does_not_reach_the_target(name, method):
    """A mode that is entered and not left would let the target compute something else."""
    read, change = SETTINGS[name]
    model, before = tiny_model().float(), read()
    arguments = {"max_new_tokens": 8, "temperature": 0.9, "seed": 5, "log_probs": True}
    expected = engine_on(TransformersTarget(model)).generate(PROMPT, **arguments)
    drafter = Meddling(method, lambda *given: change()) if method != "close" else Leaving(change)
    result = engine_on(TransformersTarget(model), drafter).generate(PROMPT, **arguments)
    assert read() == before
    assert result.events == ()
    assert result.token_ids == expected.token_ids
    assert result.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    assert not getattr(drafter, "errors", [])


@pytest.mark.usefixtures("torchs_own")
def test_neither_does_what_it_sets_outside_of_requests():
    """As it is made, reset and closed: a drafter that is in a hurry must not make the target less exact."""

    class Setting(RandomOffers):
        def reset(self):
            torch.set_float32_matmul_precision("high")

        close = reset

    def make(options, facts):
        torch.set_float32_matmul_precision("medium")
        return Setting(seed=1)

    entry = DrafterEntry("setting", make, attrs.make_class("Options", []), Needs())
    loaded = Plugins([Plugin("mine", "mine", "1.0", {"setting": entry})])
    engine = Engine(random_table(), strategy=Strategy(drafters=(DrafterUse("setting"),)), plugins=loaded)
    assert torch.get_float32_matmul_precision() == "highest"
    engine.reset()
    assert torch.get_float32_matmul_precision() == "highest"
    engine.close()
    assert torch.get_float32_matmul_precision() == "highest"


class Leaving(RandomOffers):
    """Does something when its session is closed."""

    def __init__(self, change):
        super().__init__(seed=3)
        self.change = change

    def open(self, request):
        session = super().open(request)
        session.close = self.change
        return session


@pytest.mark.parametrize("verifier", ["coupled", "residual"])
def test_numpys_errors_are_not_the_targets(verifier):
    """A drafter, or the caller, may let numpy raise where a number becomes 0; probabilities do."""
    arguments = {"max_new_tokens": 14, "temperature": 0.005, "top_p": 0.9, "typical_p": 0.9, "seed": 5}
    expected = engine_on(random_table(), verifier=verifier).generate([1, 2], **arguments)
    drafter = Meddling("propose", lambda *given: np.seterr(all="raise"))
    before = np.seterr()
    try:
        result = engine_on(random_table(), drafter, verifier=verifier).generate([1, 2], **arguments)
    finally:
        np.seterr(**before)
    assert result.token_ids == expected.token_ids
    assert result.events == ()
