"""Loading a target by name: the demo, a folder, a hub id or a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specframe.engine import Engine
from specframe.errors import InvalidRequest, InvalidStrategy, UnsupportedModel
from specframe.strategy import KERNELS, Strategy
from specframe.transformers_target import TransformersTarget, check_type


def load(
    model: str | Path, *, strategy: str | Path | Strategy = "none", dtype: Any = None, kernel: str | None = None
) -> Engine:
    """Load a model and return an engine on it.

    ``model``: ``demo`` (SmolLM2-135M-Instruct), a folder, a hub id, or a ``.gguf`` file; ``strategy`` as for ``Engine``;
    ``dtype``: a torch dtype or its name, by default the model's own; ``kernel``: overrides the strategy's. Strategy and
    model type are checked before weights load.
    """
    from specframe import plugins as plugin_loader
    from specframe.resolve import resolve_strategy

    plugins = plugin_loader.load()
    resolved = resolve_strategy(strategy, plugins)
    if kernel is not None and kernel not in KERNELS:
        raise InvalidStrategy(
            f"'kernel' must be one of {', '.join(KERNELS)} (got {kernel!r}); 'block' is not in this version"
        )
    for use in resolved.drafters:
        plugins.drafter(use.use)
    return Engine(load_target(model, dtype=dtype), strategy=resolved)


def load_target(model: str | Path, *, dtype: Any = None) -> TransformersTarget:
    """Load a transformers target; see ``load``. Raises ``UnsupportedModel`` for a model that is not a causal one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from specframe import demo

    if isinstance(dtype, str):
        name, dtype = dtype, getattr(torch, dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise InvalidRequest("dtype", "must name a torch dtype, such as float32 or bfloat16", name)
    if str(model) == "demo":
        folder: str | Path = demo.demo_folder()
    elif str(model).endswith(".gguf"):
        folder = demo.convert_gguf(Path(model))
    else:
        folder = model
    # Type first: a model that cannot be decoded is refused before its weights load.
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise InvalidRequest(
            "model", "must be 'demo', a model folder, a .gguf file or a model id", str(model), str(error)
        ) from error
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModel(f"a model of type '{config.model_type}' is not a causal language model")
    check_type(AutoModelForCausalLM._model_mapping[type(config)], config)
    with demo.quiet_unless_terminal():
        weights = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype or "auto")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
    except (OSError, ValueError):  # a folder without a tokenizer serves token ids
        tokenizer = None
    return TransformersTarget(weights.eval(), tokenizer)
