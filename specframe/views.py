"""What a drafter may read of a transformers target: embeddings, head and first layers, as they are and without a copy."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from transformers import PreTrainedModel

from specframe.errors import PluginError, UnsupportedModel

M = TypeVar("M", bound=torch.nn.Module)


class Loans:
    """The tensors of a model that drafters may read, and whether one was written while a generation ran.

    torch has no read-only tensors, but it counts the writes into one, through whichever view of it; not through ``.data`` or
    numpy. The caller's own writes between generations are the caller's business: ``begin`` takes the counts of then.
    """

    def __init__(self) -> None:
        self._tensors: dict[int, tuple[str, torch.Tensor]] = {}
        self._counts: dict[int, int] = {}
        self._written: str | None = None

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Note a tensor that is lent. One that torch does not count for, made in inference mode, is not watched."""
        if not tensor.is_inference():
            self._tensors[id(tensor)] = name, tensor
            self._counts[id(tensor)] = tensor._version

    def begin(self) -> None:
        """Watch from now on."""
        self._counts = {key: tensor._version for key, (_, tensor) in self._tensors.items()}

    def written(self) -> str | None:
        """Return what was written, or None; once something was, the model stays another one than it was."""
        if self._written is None:
            changed = (name for key, (name, tensor) in self._tensors.items() if tensor._version != self._counts[key])
            self._written = next(changed, None)
        return self._written


class ModelViews:
    """The views of one model that a drafter declared; see ``proposal.Views``. ``loans`` notes what is read."""

    def __init__(self, model: PreTrainedModel, names: frozenset[str], loans: Loans | None = None) -> None:
        self._model, self._names = model, names
        self._loans = loans if loans is not None else Loans()

    @property
    def embeddings(self) -> torch.Tensor:
        """The input embeddings, ``[vocab, hidden]``."""
        self._check("embeddings")
        embeddings: Any = self._model.get_input_embeddings()
        return self._lend("embeddings", embeddings.weight)

    @property
    def head(self) -> torch.Tensor:
        """The output embeddings, ``[vocab, hidden]``."""
        self._check("head")
        head: Any = self._model.get_output_embeddings()
        if getattr(head, "bias", None) is not None:
            raise UnsupportedModel(f"the head of {type(self._model).__name__} has a bias, which cannot be lent alone")
        return self._lend("head", head.weight)

    def first_layers(self, num_layers: int) -> PreTrainedModel:
        """Return a model of the first layers and the head; modules are the target's own, and stay as they are."""
        self._check("layers")
        short = first_layers(self._model, num_layers)
        for weight in short.parameters():
            self._loans.add("layers", weight)
        return short

    def _lend(self, name: str, weight: torch.Tensor) -> torch.Tensor:
        self._loans.add(name, weight)
        return weight.detach()  # so that nothing that a drafter does with it asks for gradients

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
