"""What a drafter may read of a transformers target: embeddings, head and first layers, as they are and without a copy."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from specframe.errors import PluginError, UnsupportedModel

M = TypeVar("M", bound=torch.nn.Module)


class ModelViews:
    """The views of one model that a drafter declared; see ``proposal.Views``."""

    def __init__(self, model: PreTrainedModel, names: frozenset[str]) -> None:
        self._model, self._names = model, names

    @property
    def embeddings(self) -> torch.Tensor:
        """The input embeddings, ``[vocab, hidden]``."""
        self._check("embeddings")
        embeddings: Any = self._model.get_input_embeddings()
        return _lent(embeddings.weight)

    @property
    def head(self) -> torch.Tensor:
        """The output embeddings, ``[vocab, hidden]``."""
        self._check("head")
        head: Any = self._model.get_output_embeddings()
        if getattr(head, "bias", None) is not None:
            raise UnsupportedModel(f"the head of {type(self._model).__name__} has a bias, which cannot be lent alone")
        return _lent(head.weight)

    def first_layers(self, num_layers: int) -> PreTrainedModel:
        """Return a model of the first layers and the head; modules are the target's own, and stay as they are."""
        self._check("layers")
        return first_layers(self._model, num_layers)

    def _check(self, name: str) -> None:
        if name not in self._names:
            raise PluginError(
                f"the drafter reads the target's {name} without declaring it; add '{name}' to needs.views"
            )


def first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """Return a model whose decoder ends after ``num_layers`` layers and that shares every weight with ``model``.

    Raises ``UnsupportedModel`` for a model without a plain stack of layers, or with fewer, and for one whose forward was
    replaced on the instance: it would go on to run all layers.
    """
    total = model.config.get_text_config().num_hidden_layers
    base = model.base_model
    stacks = [name for name, child in base.named_children() if _is_stack(child, total)]
    if len(stacks) != 1 or base is model:
        raise UnsupportedModel(f"{type(model).__name__} is no plain stack of layers; use a draft model of its own")
    if not 1 <= num_layers < total:
        raise UnsupportedModel(
            f"a draft of the target's layers takes 1 to {total - 1} of its {total} (got {num_layers})"
        )
    config = copy.deepcopy(model.config)
    text = config.get_text_config()
    text.num_hidden_layers = num_layers
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:num_layers]
    layers = torch.nn.ModuleList(getattr(base, stacks[0])[:num_layers])
    layers.training = False
    short_base = _with_children(base, {stacks[0]: layers} | _stateful(base))
    short = _with_children(model, {model.base_model_prefix: short_base})
    for module in (short, short_base):
        module.__dict__["config"] = config
    return short


def _lent(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach()  # so that nothing that a drafter does with it asks for gradients


def _is_stack(module: torch.nn.Module, num_layers: int) -> bool:
    return isinstance(module, torch.nn.ModuleList) and len(module) == num_layers


def _stateful(base: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return copies of modules that have no weights but may keep state of a forward, such as RoPE frequencies."""
    return {
        name: copy.deepcopy(child)
        for name, child in base.named_children()
        if next(child.parameters(), None) is None and next(child.buffers(), None) is not None
    }


def _with_children(module: M, children: dict[str, torch.nn.Module]) -> M:
    """Return a module that is like another, weights shared, but for some children; what is registered on it is its own."""
    if "forward" in vars(module):
        raise UnsupportedModel(
            f"the forward of this {type(module).__name__} was replaced (torch.compile, accelerate's hooks), so its first "
            "layers cannot run alone; lend them before that, or use a draft model of its own"
        )
    made = copy.copy(module)
    made.__dict__.update({name: copy.copy(value) for name, value in vars(module).items() if isinstance(value, dict)})
    made.__dict__["_modules"] |= children
    return made
