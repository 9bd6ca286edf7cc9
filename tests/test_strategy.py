"""Strategies: valid ones read as written, invalid ones told by file and key."""

import attrs
import pytest

from specframe.errors import InvalidStrategy
from specframe.strategy import DrafterUse, Identity, Length, Strategy, shipped, structure

FULL = """
verifier = "residual"
mode = "first"
kernel = "single"
disable = ["acme"]
[length]
policy = "fixed"
max_tokens = 5
[[drafters]]
use = "prompt_lookup"
options = { max_ngram = 4, min_ngram = 2 }
[[drafters]]
use = "draft_model"
"""


@pytest.fixture
def read(tmp_path):
    def read(text, name="mine.toml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return Strategy.from_toml(path)

    return read


def test_a_full_file(read):
    """Prevents a key from being read into the wrong place, or the order of drafters from being lost."""
    assert read(FULL) == Strategy(
        name="mine",
        verifier="residual",
        mode="first",
        kernel="single",
        disable=("acme",),
        length=Length("fixed", 5),
        drafters=(DrafterUse("prompt_lookup", {"max_ngram": 4, "min_ngram": 2}), DrafterUse("draft_model")),
    )


def test_an_empty_file_is_the_default(read):
    """Prevents a default in the file form from differing from the one in Python."""
    assert read("") == Strategy(name="mine")
    assert Strategy().verifier == "coupled"
    assert Strategy().drafters == ()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("verifer = 'residual'", ["unknown key 'verifer'", "allowed:", "verifier"]),
        ("verifier = 'typical'", ["'verifier' must be one of coupled, residual", "'typical'"]),
        ("verifier = 'greedy'", ["greedy is implied by temperature 0"]),
        ("mode = 'all'", ["'mode' must be one of extend, first", "'all'"]),
        ("mode = 3", ["'mode'", "must be of type str", "got 3"]),
        ("[length]\nmax_tokens = 0", ["'max_tokens' must be an integer >= 1", "got 0"]),
        ("[length]\nmax_tokens = '8'", ["'length.max_tokens'", "must be of type int", "'8'"]),
        ("[length]\nmax_tokens = 2.5", ["'length.max_tokens'", "must be of type int", "2.5"]),
        ("[length]\nmax_tokens = true", ["'length.max_tokens'", "must be of type int", "True"]),
        ("[length]\nmax = 2", ["unknown key 'length.max'", "policy, max_tokens"]),
        ("[length]\npolicy = 'magic'", ["'policy' must be one of fixed, adaptive", "'magic'"]),
        ("[[drafters]]\nuse = 'a'\nname = 'x'", ["unknown key 'drafters[0].name'", "allowed: use, options"]),
        ("[[drafters]]\nuse = 'a'\n[[drafters]]\nuse = 3", ["'drafters[1].use'", "must be of type str"]),
        ("[[drafters]]\noptions = {}", ["'drafters[0].use' is missing"]),
        ("disable = 'acme'", ["'disable'", "must be a list of strings", "'acme'"]),
        ("disable = [1]", ["'disable'", "must be a list of strings"]),
        ("kernel = 'warp'", ["'kernel' must be auto, single, block", "'warp'"]),
        ("length = 8", ["'length'"]),
        ("mode = ", ["not valid TOML"]),
        ("mode = 'extend'\nmode = 'first'", ["not valid TOML"]),
    ],
)
def test_errors_name_file_and_key(read, text, parts):
    """Prevents a mistake in a file from being ignored, or told without the place that it stands at."""
    with pytest.raises(InvalidStrategy) as caught:
        read(text)
    message = str(caught.value)
    assert message.startswith("strategy file 'mine.toml'")
    for part in parts:
        assert part in message
    assert "\n" not in message or "TOML" in message


def test_errors_chain_their_cause_and_hide_paths(tmp_path):
    """Prevents a traceback without a cause, and a user's folder names in a message that may be shared."""
    with pytest.raises(InvalidStrategy, match=r"^strategy file 'nowhere.toml' cannot be read: No such file") as caught:
        Strategy.from_toml(tmp_path / "nowhere.toml")
    assert isinstance(caught.value.__cause__, OSError)
    assert str(tmp_path) not in str(caught.value)


def test_bytes_that_are_no_text(tmp_path):
    """Prevents a binary file from a decoding traceback."""
    path = tmp_path / "bad.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidStrategy, match=r"'bad.toml' is not valid TOML"):
        Strategy.from_toml(path)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Strategy(verifier="typical"),
        lambda: Strategy(mode="both"),
        lambda: Strategy(kernel="warp"),
        lambda: Length(policy="magic"),
        lambda: Length(max_tokens=0),
        lambda: Length(max_tokens=True),
        lambda: Length(max_tokens=2.5),
        lambda: Length(max_tokens="8"),
        lambda: DrafterUse(5),
        lambda: DrafterUse("prompt_lookup", [("max_ngram", 4)]),
    ],
)
def test_python_is_checked_like_files(build):
    """Prevents a strategy made in Python from passing what a file may not say."""
    with pytest.raises(InvalidStrategy, match="must be"):
        build()


def test_strategies_are_frozen():
    """Prevents a run from changing the strategy that a later run uses (case M1)."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Strategy().mode = "first"
    assert Identity().manifest is None


def test_structure_names_its_source():
    """Prevents a drafter's options error from not saying whose options they are."""

    @attrs.frozen
    class Options:
        size: int = 3

        def __attrs_post_init__(self):
            if self.size > 9:
                raise ValueError("'size' must be <= 9")

    assert structure({"size": 4}, Options, "options of drafter 'x'") == Options(4)
    for data, rest in (
        ({"siez": 4}, "unknown key 'siez'; allowed: size"),
        ({"size": "4"}, "'size' must be of type int"),
        ({"size": 10}, "'size' must be <= 9"),
    ):
        with pytest.raises(InvalidStrategy) as caught:
            structure(data, Options, "options of drafter 'x'")
        assert str(caught.value).startswith(f"options of drafter 'x': {rest}")


def test_integers_are_floats_where_a_float_is_wanted():
    """Prevents `scale = 2` in a file from being refused for want of a decimal point."""

    @attrs.frozen
    class Options:
        scale: float = 1.0

    found = structure({"scale": 2}, Options, "x")
    assert (found.scale, type(found.scale)) == (2.0, float)


def test_shipped_strategies_are_valid():
    """Prevents a shipped file from being broken."""
    for name, path in shipped().items():
        assert Strategy.from_toml(path).name == name
