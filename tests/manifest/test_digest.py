"""Digests: canonical, versioned, and independent of everything that is not content."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from folders import edit
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specframe import LoadError, SamplingPolicy, pure
from specframe.manifest import COVERS, collect, dumps, grammar_digest, open_source, sampling_digest
from specframe.manifest.digest import canonical, digest, problem
from specframe.manifest.tensors import weigh, weigh_loaded, weight_files

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def shuffled(value, draw):
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: shuffled(value[key], draw) for key in keys}
    if isinstance(value, list):
        return tuple(shuffled(item, draw) for item in value)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53 else value


@given(PLAIN, st.data())
def test_canonical_bytes_do_not_depend_on_order_or_spelling(value, data):
    """Dictionary order, tuple against list and 1 against 1.0 are no content."""
    assert canonical(shuffled(value, data.draw)) == canonical(value)


@given(PLAIN, PLAIN)
def test_canonical_bytes_differ_where_values_do(first, second):
    """A collision would let two identities pass for one."""
    if canonical(first) == canonical(second):
        assert comparable(first) == comparable(second)


def comparable(value):
    # To Python True is 1; to a configuration it is not.
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return [comparable(item) for item in value] if isinstance(value, list) else (type(value) is bool, value)


def test_a_digest_names_what_it_covers():
    """A hex string alone cannot be compared over versions."""
    for scheme, covered in COVERS.items():
        assert covered
        made = digest(scheme, {"a": 1})
        assert made.startswith(f"{scheme}:sha256:")
        assert problem(made) is None
    assert len({digest(scheme, None) for scheme in COVERS}) == len(COVERS)
    with pytest.raises(AssertionError):
        digest("unheard-v1", None)


def test_a_value_without_a_canonical_form_is_an_error():
    """An object's repr would put an address into the identity."""
    with pytest.raises(TypeError, match="no canonical form"):
        canonical({"a": object()})


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_a_manifest_does_not_depend_on_dictionary_order(copy_of, seed):
    """Another writer of the same configuration sorts its keys differently."""
    random = Random(seed)
    folder = copy_of(f"model-{seed}")
    try:
        expected = collect(open_source(folder))
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"):
            edit(folder / name, lambda data: reorder(data, random))
        assert collect(open_source(folder)) == expected
    finally:
        shutil.rmtree(folder)


def reorder(value, random):
    if isinstance(value, dict):
        return {key: reorder(value[key], random) for key in random.sample(list(value), len(value))}
    return [reorder(item, random) for item in value] if isinstance(value, list) else value


SCRIPT = (
    "import sys; from specframe.manifest import *; "
    "sys.stdout.write(dumps(collect(open_source(sys.argv[1]), weights=True)))"
)
MARKERS = ("marker-path", "marker-user", "marker-host")


def test_a_manifest_is_the_same_in_another_process_and_place_and_holds_none_of_it(copy_of, tmp_path):
    """Hash seeds, folders, user and host differ between any two machines; a manifest is made to be shared."""
    here = dumps(collect(open_source(copy_of("model")), weights=True))
    folder = tmp_path / "marker-path" / "home" / "marker-user"
    folder.parent.mkdir(parents=True)
    Path(copy_of("moved")).rename(folder)
    edit(folder / "config.json", lambda data: data | {"_name_or_path": str(folder)})
    edit(folder / "tokenizer_config.json", lambda data: data | {"name_or_path": str(folder)})
    surroundings = os.environ | {
        "PYTHONHASHSEED": "1",
        "USER": "marker-user",
        "LOGNAME": "marker-user",
        "HOME": str(tmp_path / "marker-path"),
        "HOSTNAME": "marker-host",
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C",
        "SPECFRAME_CACHE_DIR": str(tmp_path / "marker-path" / "cache"),
    }
    arguments = [sys.executable, "-W", "error::UserWarning", "-c", SCRIPT, str(folder)]
    there = subprocess.run(arguments, capture_output=True, check=True, env=surroundings, cwd=tmp_path).stdout.decode()
    assert there == here
    assert not any(marker in there for marker in (*MARKERS, str(tmp_path), os.uname().nodename))


def test_what_is_kept_holds_no_path(copy_of, cache_folder):
    """The cache folder may be shared too."""
    folder = copy_of("marker-path")
    collect(open_source(folder), weights=True)
    kept = list((cache_folder / "manifests").iterdir())
    assert len(kept) == 2
    assert not any("marker-path" in file.name + file.read_text() for file in kept)


def test_the_date_in_a_template_is_fixed(copy_of):
    """A template that writes today's date would give another manifest tomorrow."""
    folder = copy_of("model")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%H:%M:%S.%f') }}" + template)
    from specframe.manifest import collector

    first, second = (collector._collect(open_source(folder)) for _ in range(2))
    assert first == second
    assert "refused" not in first.template.probes.values()


def test_a_template_that_refuses_a_role_says_so(copy_of):
    """Gemma's raises for a system message; that is part of what it is."""
    folder = copy_of("model")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no') }}{% endif %}{{ m['content'] }}"
        "{% endfor %}"
    )
    probes = collect(open_source(folder)).template.probes
    assert probes["chat-system"] == "refused"
    assert probes["chat-user"].startswith("probe-v1:")


def test_weights_are_weighed_once_per_path_size_and_time(copy_of, monkeypatch):
    """Gigabytes that are read at every start are seconds of waiting; ones that are never read again hide a change."""
    from specframe.manifest import tensors

    folder = copy_of("model")
    files = weight_files(folder)
    first = weigh(files)
    read = []
    monkeypatch.setattr(tensors, "_weigh", lambda files: read.append(files) or ["weights-v1:sha256:0", 0, 0])
    assert weigh(files) == first
    os.utime(files[0], ns=(1, 1))
    assert weigh(files) != first
    assert read == [files]


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1, 2", b'"' * 200])
def test_an_entry_that_is_damaged_is_made_again(copy_of, cache_folder, damage):
    """A full disk or a killed process must not change an identity."""
    folder = copy_of("model")
    first = collect(open_source(folder), weights=True)
    for file in (cache_folder / "manifests").iterdir():
        file.write_bytes(damage)
    assert collect(open_source(folder), weights=True) == first


def test_a_cache_folder_that_cannot_be_written_is_no_error(copy_of, tmp_path, monkeypatch):
    """What is kept saves time and nothing else."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPECFRAME_CACHE_DIR", str(tmp_path / "file"))
    assert collect(open_source(copy_of("model")), weights=True).weights.digest


def test_what_is_kept_does_not_grow_for_ever(cache_folder, monkeypatch):
    """A test suite alone makes thousands of models."""
    from specframe.manifest import remember

    monkeypatch.setattr(remember, "MOST_ENTRIES", 8)
    for index in range(30):
        assert remember.remember("number", index, lambda index=index: index) == index
    assert len(list((cache_folder / "manifests").iterdir())) <= 8
    assert remember.remember("number", 29, lambda: pytest.fail("the newest was forgotten")) == 29


def test_loaded_tensors_weigh_what_their_files_do(copy_of):
    """A target made by hand is pinned by what is in memory."""
    from transformers import AutoModelForCausalLM

    folder = copy_of("model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert weigh_loaded(model) == weigh(weight_files(folder))
    model.lm_head.weight.data[0, 0] += 1
    assert weigh_loaded(model).digest != weigh(weight_files(folder)).digest


def test_weights_that_are_cut_off_are_told(copy_of):
    """A download that stopped is the commonest damage."""
    file = copy_of("model") / "model.safetensors"
    content = file.read_bytes()
    for part, told in ((content[:-100], "cut off"), (content[:40], "header"), (content[:4], "header")):
        file.write_bytes(part)
        with pytest.raises(LoadError, match=told):
            weigh([file])


def test_a_policy_and_a_grammar_have_digests():
    """Receipts say under which law a text was made."""
    policies = [
        SamplingPolicy(),
        SamplingPolicy(temperature=0.7),
        SamplingPolicy(temperature=0.7, top_k=5),
        SamplingPolicy(logit_bias={1: 2.0}),
        SamplingPolicy(processors=[pure(halve)]),
    ]
    digests = [sampling_digest(policy) for policy in policies]
    assert len({*digests}) == len(policies)
    assert digests[1] == sampling_digest(SamplingPolicy(temperature=0.7))
    assert sampling_digest(SamplingPolicy(temperature=1)) == sampling_digest(SamplingPolicy(temperature=1.0))
    assert sampling_digest(SamplingPolicy(logit_bias={1: 2.0, 3: 1.0})) == sampling_digest(
        SamplingPolicy(logit_bias={3: 1.0, 1: 2.0})
    )
    assert grammar_digest("regex", "a+") != grammar_digest("regex", "a*")


def halve(ids, scores):
    return scores * np.float32(0.5)
