"""The prefix against a naive list: device copy, truncation, grammar states."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from specframe.errors import GrammarError
from specframe.prefix import Prefix


class SumGrammar:
    """A grammar whose state is the exact tuple of ids seen, so that a wrong state cannot pass for a right one."""

    start = ()

    def __init__(self):
        self.num_advances = 0

    def mask(self, state):
        raise AssertionError("the prefix asks for no mask")

    def advance(self, state, token):
        self.num_advances += 1
        return (*state, token)

    def is_final(self, state):
        return False


class PrefixMachine(RuleBasedStateMachine):
    """Random pushes, truncations and reads; a plain list is the model."""

    def __init__(self):
        super().__init__()
        self.prompt = [7, 8, 9]
        self.model = list(self.prompt)
        self.prefix = Prefix(self.prompt, SumGrammar(), "cpu")

    @rule(tokens=st.lists(st.integers(0, 50), min_size=1, max_size=200))
    def push(self, tokens):
        for token in tokens:
            self.prefix.push(token)
            self.model.append(token)

    @rule(data=st.data())
    def truncate(self, data):
        length = data.draw(st.integers(3, len(self.model)))
        self.prefix.truncate(length)
        del self.model[length:]

    @rule(data=st.data())
    def read_tensor(self, data):
        length = data.draw(st.integers(0, len(self.model)))
        found = self.prefix.tensor(length)
        assert found.dtype == torch.int64
        assert found.tolist() == [self.model[:length]]

    @precondition(lambda self: len(self.model) < 60)  # tuples of states are quadratic in length
    @rule(data=st.data())
    def read_state(self, data):
        length = data.draw(st.integers(3, len(self.model)))
        assert self.prefix.state(length) == tuple(self.model[3:length])

    @invariant()
    def same_ids(self):
        assert self.prefix.ids == self.model
        assert len(self.prefix) == len(self.model)


PrefixMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestPrefixAgainstAList = PrefixMachine.TestCase


def test_rejected_ids_leave_no_trace():
    """Prevents a device copy or a grammar state of rejected ids from being read after a rollback."""
    prefix = Prefix([1, 2], SumGrammar(), "cpu")
    for token in (3, 4, 5):
        prefix.push(token)
    assert prefix.tensor(5).tolist() == [[1, 2, 3, 4, 5]]
    assert prefix.state(5) == (3, 4, 5)
    prefix.truncate(3)
    prefix.push(9)
    assert prefix.tensor(4).tolist() == [[1, 2, 3, 9]]
    assert prefix.state(4) == (3, 9)
    prefix.truncate(2)
    assert prefix.state(2) == ()


def test_grammar_advances_once_per_token():
    """Prevents replaying the grammar from the start for every row, which would make long outputs quadratic."""
    grammar = SumGrammar()
    prefix = Prefix([1], grammar, "cpu")
    for token in range(50):
        prefix.push(token)
        prefix.state(len(prefix))
        prefix.state(len(prefix) - 1)
    assert grammar.num_advances == 50


def test_a_grammar_that_fails_at_once_is_blamed():
    """Prevents an untyped error from a grammar that cannot tell its start."""

    class Broken(SumGrammar):
        start = property(lambda self: 1 // 0)

    with pytest.raises(GrammarError, match="ZeroDivisionError"):
        Prefix([1], Broken(), "cpu")


def test_a_mask_of_another_width_makes_nothing_certain():
    """Prevents a token from being taken without its row, where the row would tell that the mask is wrong."""

    class Narrow(SumGrammar):
        def mask(self, state):
            return np.array([False, True])

    prefix = Prefix([1], Narrow(), "cpu")
    assert prefix.certain(1, vocab_size=2) == 1
    assert prefix.certain(1, vocab_size=3) is None


def test_without_a_grammar_there_is_no_state():
    """Prevents a silent state of nothing."""
    with pytest.raises(AssertionError):
        Prefix([1], None, "cpu").state(1)


@given(num_prompt=st.integers(1, 600), num_more=st.integers(0, 600))
@settings(max_examples=30, deadline=None)
def test_buffer_grows_past_its_first_size(num_prompt, num_more):
    """Prevents a lost copy where the buffer is reallocated."""
    prefix = Prefix(range(num_prompt), None, "cpu")
    assert prefix.tensor(num_prompt).tolist() == [list(range(num_prompt))]
    for token in range(num_more):
        prefix.push(-token)
    expected = [*range(num_prompt), *(-token for token in range(num_more))]
    assert prefix.tensor(len(expected)).tolist() == [expected]


def test_the_prompt_is_copied():
    """Prevents the caller's list from growing with the output."""
    prompt = [1, 2]
    Prefix(prompt, None, "cpu").push(3)
    assert prompt == [1, 2]
