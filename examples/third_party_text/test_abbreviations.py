"""What it proposes, what it refuses, and its certificate on a target whose text is bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import specframe
from specframe.testing import TableTarget, byte_tokenizer
from specframe_abbreviations import Abbreviations, AbbreviationsOptions, missing, read_table

SAID = b"HTTP (Hypertext Transfer Protocol), DNS (Distributed Name System); "
PROMPTS = ["HTTP (Hyper", "System); HTT", "Protocol), D"]


@pytest.fixture
def target() -> specframe.Target:
    """A target that says one thing over and over; of its tokenizer the first ids are bytes."""
    tokenizer = byte_tokenizer()
    likely = {said: [20.0 * (token == said) for token in range(len(tokenizer))] for said in SAID}
    rows = {(*(SAID + SAID)[end - 5 : end],): likely[(SAID + SAID)[end]] for end in range(5, len(SAID) + 5)}
    return TableTarget(rows, order=5, default=likely[SAID[0]], vocab_size=len(tokenizer), tokenizer=tokenizer)


@pytest.fixture
def options(tmp_path: Path) -> AbbreviationsOptions:
    """A table as its user writes it."""
    file = tmp_path / "terms.toml"
    file.write_text(
        'HTTP = "Hypertext Transfer Protocol"\nDNS = "Domain Name System"\nTCP = "Transmission Control Protocol"\n'
    )
    return AbbreviationsOptions(str(file))


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("over HTTP", " (to)"),
        ("over HTTP (t", "o)"),
        ("over HTTP (to)", ""),
        ("over HTT", ""),
        ("", ""),
    ],
)
def test_what_is_missing_is_found(text: str, rest: str) -> None:
    """Nothing before the abbreviation is whole, nothing after its meaning is."""
    assert missing(text, "HTTP", "HTTP (to)") == rest


def test_it_changes_no_text(target: specframe.Target, options: AbbreviationsOptions) -> None:
    """Where the target means the same, what it offers stands; where it does not, as of DNS here, the target's text does."""
    engine = specframe.Engine(target, {"abbreviations": Abbreviations(options, target.facts)})
    for prompt in PROMPTS:
        result = engine.generate(prompt, max_new_tokens=80)
        assert result.token_ids == specframe.Engine(target).generate(prompt, max_new_tokens=80).token_ids
        drafted = result.stats.drafters["abbreviations"]
        assert 20 < drafted.num_accepted < drafted.num_proposed
        assert result.events == ()


def test_a_table_that_is_none_is_told(tmp_path: Path) -> None:
    """Before anything is generated, with the file's name."""
    with pytest.raises(specframe.InvalidStrategy, match=r"terms\.toml' cannot be read"):
        read_table(str(tmp_path / "terms.toml"))
    (tmp_path / "terms.toml").write_text("HTTP = 1\n")
    with pytest.raises(specframe.InvalidStrategy, match="must hold texts alone"):
        read_table(str(tmp_path / "terms.toml"))


def test_a_target_without_a_tokenizer_is_refused(
    table_target: Callable[..., specframe.Target], options: AbbreviationsOptions
) -> None:
    """Ids alone have no text."""
    with pytest.raises(specframe.InvalidStrategy, match="no tokenizer"):
        Abbreviations(options, table_target().facts)


def test_it_is_certified(
    certify_drafter: Callable[..., Any], target: specframe.Target, options: AbbreviationsOptions
) -> None:
    """On that target, with prompts to which it has something to say."""
    certificate = certify_drafter(lambda facts: Abbreviations(options, facts), target=target, prompts=PROMPTS)
    assert {check.name for check in certificate.checks if check.status == "passed"} >= {
        "target: greedy parity",
        "target: coupled parity",
    }
