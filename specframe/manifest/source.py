"""A model at rest: what a name stands for, and which of its files can be read without its weights."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs

from specframe import demo
from specframe.errors import InvalidRequest
from specframe.manifest.remember import remember, stamp
from specframe.manifest.tensors import has_weights

_WITHOUT_WEIGHTS = ("*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "README.md")

_CONFIGURATIONS = ("config.json", "adapter_config.json")
_MODEL = "must be 'demo', a model folder, a .gguf file or a model id"
_MODEL_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")  # as a hub names models
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


@attrs.frozen
class Source:
    """A model's folder, or a GGUF file that is not converted yet.

    ``hub``: the model id of a folder that was fetched; ``trust_remote_code``: whether code that comes with the model may run.
    """

    folder: Path | None = None
    gguf: Path | None = None
    hub: str | None = None
    trust_remote_code: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``from_pretrained`` that read configuration and tokenizer from here."""
        # Always said: where it is not, transformers asks the user at the terminal.
        trust = {"trust_remote_code": self.trust_remote_code}
        if self.folder is not None:
            return {"pretrained_model_name_or_path": str(self.folder), **trust}
        assert self.gguf is not None
        return {"pretrained_model_name_or_path": str(self.gguf.parent), "gguf_file": self.gguf.name, **trust}

    def whole(self) -> Source:
        """Return the folder with its weights: a GGUF file is converted now, weights of a model id are fetched."""
        if self.gguf is not None:
            return Source(demo.convert_gguf(self.gguf))
        if self.hub is None:
            return self
        folder = _snapshot(self.hub, weights=True, code=self.trust_remote_code)
        return Source(folder, trust_remote_code=self.trust_remote_code)

    def read_config(self, shown: str) -> Any:
        """Return the model's configuration. Raises ``InvalidRequest`` with the name ``shown``."""
        from transformers import AutoConfig

        try:
            return AutoConfig.from_pretrained(**self.arguments)
        except (OSError, ValueError, TypeError) as error:
            _refuse_code(error, shown)
            raise InvalidRequest("model", _MODEL, shown, str(error)) from error

    def read_tokenizer(self) -> Any:
        """Return the tokenizer, or None for a folder without one, which serves token ids."""
        from transformers import AutoTokenizer

        if self.folder is not None and not has_tokenizer(self.folder):
            return None
        try:
            return AutoTokenizer.from_pretrained(**self.arguments)
        except ValueError as error:
            _refuse_code(error, str(self.folder or self.gguf))
            raise


def open_source(model: str | Path, *, trust_remote_code: bool = False) -> Source:
    """Find a model by name: ``demo``, a folder, a ``.gguf`` file or a model id.

    Of a model id only small files are fetched, code only where it is trusted; a GGUF file that was not converted before
    stays as it is. Raises ``InvalidRequest`` for what is not there, ``MissingPackage`` for a demo that is not installed.
    """
    if not isinstance(model, str | Path):
        raise InvalidRequest("model", _MODEL, model)
    name, path = str(model), Path(model)
    if name == "demo":
        return _gguf(demo.demo_file())
    if name.endswith(".gguf"):
        return _gguf(path)
    if os.path.isdir(path) and name:  # unlike Path's, it answers for names that no system takes
        if not any((path / file).is_file() for file in _CONFIGURATIONS):
            raise InvalidRequest("model", _MODEL, name, "the folder holds no config.json")
        return Source(path, trust_remote_code=trust_remote_code)
    if os.path.exists(path) and name:
        raise InvalidRequest("model", _MODEL, name, "it is a file, and no .gguf file")
    if not _MODEL_ID.fullmatch(name):
        raise InvalidRequest("model", _MODEL, name, "there is no such folder")
    return Source(_snapshot(name, weights=False, code=trust_remote_code), hub=name, trust_remote_code=trust_remote_code)


def has_tokenizer(folder: str | Path) -> bool:
    """Whether a model folder holds a tokenizer, whole or damaged; one without serves token ids."""
    return any((Path(folder) / name).exists() for name in _TOKENIZER_FILES)


def _gguf(path: Path) -> Source:
    try:
        key = [stamp(path), demo.CONVERTER, version("transformers")]
    except (OSError, ValueError) as error:
        told = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest("model", "must be a GGUF file that can be read", str(path), told) from error
    folder = demo.cache_folder() / remember("gguf", key, lambda: demo.folder_name(path))
    return Source(folder) if folder.is_dir() else Source(gguf=path)


def _refuse_code(error: Exception, shown: str) -> None:
    """Raise ``InvalidRequest`` for transformers' refusal of a model that cannot be read without code of its own."""
    if "trust_remote_code" in str(error):
        raise InvalidRequest(
            "model", "must not need code of its own", shown, "read that code; trust_remote_code=True lets it run"
        ) from error


def _snapshot(name: str, *, weights: bool, code: bool = False) -> Path:
    from huggingface_hub import snapshot_download

    patterns = [*_WITHOUT_WEIGHTS, *(("*.safetensors",) if weights else ()), *(("*.py",) if code else ())]
    try:
        folder = Path(snapshot_download(name, allow_patterns=patterns))
        if weights and not has_weights(folder):  # a repository from before safetensors
            folder = Path(snapshot_download(name, allow_patterns=[*patterns, "*.bin"]))
        return folder
    except (OSError, ValueError) as error:
        told = str(error).partition("\n")[0]
        raise InvalidRequest(
            "model", _MODEL, name, f"there is no such folder, and no model of this id could be fetched ({told})"
        ) from error
