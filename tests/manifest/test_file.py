"""Manifests on disk: written the same way every time, and refused with a clear error when they are not whole."""

from __future__ import annotations

import contextlib

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specframe import InvalidManifest
from specframe.manifest import Manifest, collect, dumps, loads, open_source, read, write
from specframe.manifest.identity import Boundaries, Model, Numerics, Positions

SMALL = Manifest(
    model=Model("LlamaForCausalLM", "llama", 32, 2, 64, False, "computation-v1:sha256:" + "0" * 64),
    numerics=Numerics("float32"),
    boundaries=Boundaries(stop_strings=('"\\\n\x7f\u00e9\U0001f642',)),
    positions=Positions(rope={"rope_theta": 1e-05, "long_factor": [1.5, 2.0], "odd key": "x"}),
    license="MIT",
)


def test_what_is_written_is_read_back(copy_of, tmp_path):
    """A field that is lost on the way to disk is not pinned."""
    manifest = collect(open_source(copy_of("model")), weights=True)
    for whole in (manifest, SMALL):
        write(whole, tmp_path / "m.toml")
        again = read(tmp_path / "m.toml")
        assert again == whole if whole is SMALL else again.flat() == whole.flat()
        assert again.digest == whole.digest
        assert dumps(again) == dumps(whole)


VALUES = st.recursive(
    st.integers(-(2**62), 2**62) | st.floats(allow_nan=False, allow_infinity=False) | st.booleans() | st.text(),
    lambda inner: st.lists(inner, min_size=1, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4), st.text(min_size=1), st.integers(0, 2**40))
def test_any_values_survive_the_file(rope, string, limit):
    """Strings with quotes, control characters and emoji, exponents and nested lists are all in somebody's configuration."""
    positions = Positions(context_limit=limit, rope=rope)
    manifest = attrs.evolve(SMALL, positions=positions, boundaries=Boundaries(stop_strings=(string,)))
    assert loads(dumps(manifest)) == manifest


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[: len(text) // 2], "not valid TOML|changed or cut off|is missing"),
        (lambda text: text[: text.index("[numerics]")], "'numerics' is missing"),
        (lambda text: text[: text.index("[positions]")], "changed or cut off"),
        (lambda text: "", "not a manifest: it has no 'format'"),
        (lambda text: "\x00\x01", "not valid TOML"),
        (lambda text: text.replace("format = 1", "format = 2"), "format 2; this specframe reads format 1: upgrade"),
        (lambda text: text.replace("format = 1", "format = true"), "no 'format' number"),
        (lambda text: text.replace('dtype = "float32"', 'dtype = "float16"'), "changed or cut off after it was made"),
        (lambda text: text.replace('dtype = "float32"', 'dtyp = "float32"'), "'numerics.dtype' is missing"),
        (lambda text: text + "speed = 3\n", "changed or cut off"),
        (lambda text: text.replace("origin = 0", "orign = 0"), "unknown key 'positions.orign'; allowed: .*origin"),
        (lambda text: text.replace("hidden_size = 32", 'hidden_size = "32"'), "'model.hidden_size' must be"),
        (lambda text: text.replace("hidden_size = 32", "hidden_size = 33"), "changed or cut off"),
        (lambda text: text.replace("computation-v1", "computation-v9"), "'computation-v9'; this specframe knows"),
        (lambda text: text.replace("computation-v1", "motion-v1"), "'model.computation' has the unknown scheme"),
        (lambda text: text.replace("sha256:0", "sha256:"), "'model.computation' is not a digest"),
        (lambda text: text.replace("digest = ", "digset = "), "unknown key 'digset'"),
    ],
)  # fmt: skip
def test_a_file_that_is_not_whole_is_one_clear_error(tmp_path, change, told):
    """A manifest that was cut off, edited or made by a later version must not pass for what it was."""
    path = tmp_path / "pin.toml"
    text = dumps(SMALL)
    assert change(text) != text
    path.write_text(change(text), encoding="utf-8")
    with pytest.raises(InvalidManifest, match=told) as caught:
        read(path)
    assert "manifest 'pin.toml'" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


@given(st.data())
def test_every_cut_and_every_changed_digit_is_noticed(data):
    """Whatever is cut off or flipped, no other manifest comes out of it."""
    text = dumps(SMALL)
    position = data.draw(st.integers(text.index("format"), len(text) - 2))
    if data.draw(st.booleans()):
        damaged = text[:position]
    else:
        damaged = text[:position] + data.draw(st.characters(codec="utf-8")) + text[position + 1 :]
    with contextlib.suppress(InvalidManifest):
        assert attrs.evolve(loads(damaged), license="MIT") == SMALL


def test_files_that_cannot_be_read_are_told(tmp_path):
    """A missing file and a binary one are not tracebacks."""
    with pytest.raises(InvalidManifest, match="cannot be read: No such file"):
        read(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidManifest, match="not a text file"):
        read(tmp_path / "binary.toml")


def test_the_licence_may_be_edited():
    """It is told, but no part of the identity."""
    edited = loads(dumps(SMALL).replace('license = "MIT"', 'license = "Apache-2.0"'))
    assert edited.license == "Apache-2.0"
    assert edited.digest == SMALL.digest
