"""An interrupt at any line: the target is free afterwards, and the next request is as on a new engine."""

from __future__ import annotations

import itertools
import random

import pytest
from interrupts import interrupted
from scenes import SAMPLINGS, Scene

from specframe.testing import LogitsDrafter

STRIDES = {"table": 11, "transformers": 47}
FULL_STRIDES = {"table": 1, "transformers": 9}


@pytest.mark.parametrize("kind", STRIDES)
def test_an_interrupt_at_any_line_leaves_nothing_behind(kind, request):
    """Prevents a lock, a transaction or an attention function that stays where Ctrl-C found it."""
    stride = (FULL_STRIDES if request.config.getoption("--full") else STRIDES)[kind]
    scene = Scene(kind, SAMPLINGS["coupled"])
    scene.beside = {"drawing": LogitsDrafter(lambda ids: [0.0] * scene.target.facts.vocab_size, num_tokens=1)}
    fresh = scene.again(scene.engine())
    for line in itertools.count(0, stride):
        engine = scene.afresh()
        is_over = interrupted(lambda engine=engine: scene.again(engine), line)
        assert scene.again(engine) == fresh, line
        if is_over:
            break
    assert line > 1000


# What interrupts a generator that is being finalised goes nowhere: Python prints it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", STRIDES)
def test_a_second_interrupt_while_the_first_is_dealt_with_leaves_nothing_behind(kind, request):
    """Impatient users press Ctrl-C twice: the second one comes while the session is being closed."""
    num_pairs = 1000 if request.config.getoption("--full") else 40
    scene = Scene(kind, SAMPLINGS["greedy"])
    fresh = scene.again(scene.engine())
    source = random.Random(0)
    for _ in range(num_pairs):
        engine = scene.afresh()
        line, later = source.randrange(3000), source.randrange(12)
        interrupted(lambda engine=engine: scene.again(engine), line, later)
        assert scene.again(engine) == fresh, (line, later)
