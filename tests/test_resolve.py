"""Options of drafters as a command line gives them."""

from __future__ import annotations

import pytest

from specframe import DrafterUse, InvalidStrategy, Strategy
from specframe.resolve import resolve_checked, with_settings

TWICE = Strategy("twice", drafters=(DrafterUse("prompt_lookup", {"max_ngram": 4}), DrafterUse("prompt_lookup")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4", 4),
        ("0.5", 0.5),
        ("true", True),
        ('["a", "b"]', ["a", "b"]),
        ('"4"', "4"),
        ("my/draft", "my/draft"),
        ("a=b", "a=b"),
    ],
)
def test_values_are_those_of_a_strategy_file(text: str, value: object) -> None:
    """A number is a number; quotes are needed only where a text looks like something else."""
    (first, _) = with_settings(TWICE, [f"prompt_lookup.x={text}"]).drafters
    assert first.options == {"max_ngram": 4, "x": value}


def test_the_last_setting_wins_and_the_strategy_stays() -> None:
    """A drafter that is used twice is told apart by the number that statistics show."""
    settings = ["prompt_lookup.max_ngram=5", "prompt_lookup#2.max_ngram=2", "prompt_lookup.max_ngram=6"]
    changed = with_settings(TWICE, settings)
    assert [use.options for use in changed.drafters] == [{"max_ngram": 6}, {"max_ngram": 2}]
    assert [use.options for use in TWICE.drafters] == [{"max_ngram": 4}, {}]


@pytest.mark.parametrize(
    "setting", ["max_ngram=4", "prompt_lookup.max_ngram", "prompt_lookup.=4", "=4", "prompt_lookup.x=", ""]
)
def test_another_form_is_told(setting: str) -> None:
    """With an example of the right one."""
    with pytest.raises(InvalidStrategy, match=r"must be DRAFTER\.NAME=VALUE, as prompt_lookup\.max_ngram=4 \(got"):
        with_settings(TWICE, [setting])


def test_a_drafter_that_the_strategy_does_not_use_is_told() -> None:
    """Dropped silently it would look as if the option had no effect."""
    with pytest.raises(
        InvalidStrategy, match="of no drafter of strategy 'twice'; its drafters: prompt_lookup, prompt_lookup#2"
    ):
        with_settings(TWICE, ["lookup.max_ngram=4"])
    with pytest.raises(InvalidStrategy, match="strategy 'none'; it has no drafters"):
        resolve_checked("none", settings=["prompt_lookup.max_ngram=4"])


def test_settings_are_checked_as_options() -> None:
    """A name or a value that the drafter does not know ends before anything loads."""
    with pytest.raises(InvalidStrategy, match="unknown key 'max_gram'"):
        resolve_checked("prompt_lookup", settings=["prompt_lookup.max_gram=4"])
    with pytest.raises(InvalidStrategy, match="'max_ngram' must be >= 1"):
        resolve_checked("prompt_lookup", settings=["prompt_lookup.max_ngram=0"])
    strategy, _ = resolve_checked("prompt_lookup", kernel="block:8", settings=["prompt_lookup.max_ngram=3"])
    assert (strategy.name, strategy.kernel) == ("prompt_lookup", "block:8")
    assert strategy.drafters[0].options["max_ngram"] == 3
