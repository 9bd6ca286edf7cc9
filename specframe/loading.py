"""Loading a model by name: the demo, a folder, a hub id or a GGUF file; what does not fit is refused before weights load."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import torch

from specframe.borrowing import borrow, borrowed_parts, expecting_gaps, lent_dtype
from specframe.engine import Engine
from specframe.errors import IncompatibleManifest, LoadError, SpecframeError, UnsupportedModel, described
from specframe.manifest.collector import check_dtype, collect, output_ids, stamps, strings_of, with_weights
from specframe.manifest.diff import WEIGHED, require_equal
from specframe.manifest.identity import Manifest
from specframe.manifest.remember import stamp
from specframe.manifest.source import Source, open_source
from specframe.manifest.tensors import weigh, weigh_folder, weight_files
from specframe.prepack import is_wanted
from specframe.proposal import Views
from specframe.resolve import check_needs, has_needs, read_pin, resolve_checked
from specframe.strategy import Strategy
from specframe.transformers_target import TransformersTarget, check_type


def load(
    model: str | Path,
    *,
    strategy: str | Path | Strategy = "none",
    dtype: Any = None,
    device: Any = None,
    kernel: str | None = None,
    prepack: bool | None = None,
    trust_remote_code: bool = False,
) -> Engine:
    """Load a model and return an engine on it.

    ``model``: ``demo`` (SmolLM2-135M-Instruct), a folder, a hub id, or a ``.gguf`` file; ``strategy`` as for ``Engine``;
    ``dtype``: a torch dtype or its name, by default the model's own; ``device``: as torch takes it; ``kernel``: overrides
    the strategy's; ``prepack``: whether linear layers run on copies of their weights in oneDNN's order, which takes their
    memory again and makes forwards on an x86 CPU faster, None where that takes at most a quarter of the machine's memory;
    ``trust_remote_code``: whether code that comes with the model may run. Strategy, model type, what the drafters need and
    what the strategy pins are checked before weights load. Raises ``LoadError`` for damaged files, and
    ``IncompatibleManifest`` where the pair does not fit or the run is not the pinned one.
    """
    resolved, plugins = resolve_checked(strategy, kernel=kernel)
    pin = read_pin(resolved)

    def admit(source: Source, identity: Manifest) -> None:
        check_needs(resolved, plugins, lambda: identity, target_strings=lambda: strings_of(source))
        if pin is not None:
            # Weights last: to weigh them takes longer than everything else.
            require_equal(pin, identity, name=_pin_name(resolved), leave_out=WEIGHED)
            if pin.weights.digest is not None and source.folder is not None:
                whole = source.whole().folder
                assert whole is not None
                weighed = weigh_folder(whole)
                require_equal(pin, with_weights(identity, weighed), name=_pin_name(resolved))

    is_early = pin is not None or has_needs(resolved, plugins)
    loaded = _load(model, dtype, device, admit, is_early=is_early, prepack=prepack, trust_remote_code=trust_remote_code)
    return Engine(loaded.target, strategy=resolved, plugins=plugins, identity=loaded.weigh)


def load_target(
    model: str | Path,
    *,
    dtype: Any = None,
    device: Any = None,
    prepack: bool | None = None,
    trust_remote_code: bool = False,
) -> TransformersTarget:
    """Load a transformers target; see ``load``. Raises ``UnsupportedModel`` for a model that is not a causal one."""
    return _load(model, dtype, device, _admit_all, prepack=prepack, trust_remote_code=trust_remote_code).target


class LoadedDraft(NamedTuple):
    """A draft model; ``target_ids``: the target id of every output column, -1 for none, or None where column i is id i."""

    runner: TransformersTarget
    target_ids: tuple[int, ...] | None


def load_draft(model: str | Path, *, views: Views | None = None, dtype: Any = None, device: Any = None) -> LoadedDraft:
    """Load a draft model, named as for ``load``; its folder may hold a map of a reduced head and leave tensors to the target.

    ``views``: what the target lends, ``facts.views``; the dtype of a draft that borrows is the target's. Raises
    ``LoadError`` for tensors that are missing or do not fit, ``InvalidRequest`` for another dtype than the target's.
    """
    loaded = _load(model, dtype, device, _admit_all, views=views)
    return LoadedDraft(loaded.target, tuple(loaded.output_ids) if loaded.output_ids is not None else None)


class _Loaded(NamedTuple):
    """What came of a name. ``weigh`` makes the whole identity; ``output_ids``: the map of a reduced head."""

    target: TransformersTarget
    weigh: Callable[[], Manifest]
    output_ids: list[int] | None


def _admit_all(source: Source, identity: Manifest) -> None:
    """Refuse nothing."""


def _load(
    model: str | Path,
    dtype: Any,
    device: Any,
    admit: Callable[[Source, Manifest], None],
    *,
    is_early: bool = False,
    views: Views | None = None,
    prepack: bool | None = None,
    trust_remote_code: bool = False,
) -> _Loaded:
    """Load a model that ``admit`` does not refuse.

    ``admit`` is given the manifest without weights before they load; ``is_early``: also before a GGUF file is converted;
    ``views``: what a draft may borrow.
    """
    from transformers import AutoModelForCausalLM

    from specframe.demo import quiet_unless_terminal

    dtype_name = check_dtype(dtype)
    source = open_source(model, trust_remote_code=trust_remote_code)
    if source.gguf is not None:
        if is_early:  # its metadata tell what its weights would be refused for
            admit(source, collect(source, dtype=dtype_name))
        source = source.whole()
    assert source.folder is not None
    admitted = stamps(source.folder)
    # Type first: a model that cannot be decoded is refused before its weights load.
    config = source.read_config(str(model))
    check_type(_model_class(config, source), config)
    parts = borrowed_parts(config, views, str(model))
    if views is not None and parts:
        dtype_name = lent_dtype(views, parts, dtype_name)
    identity = collect(source, dtype=dtype_name)
    admit(source, identity)
    folder = source.whole().folder
    assert folder is not None
    if source.hub is not None:  # its weights have only come now
        admitted = stamps(folder)
    columns = output_ids(folder)
    made_by: Any = AutoModelForCausalLM
    if columns is not None:
        made_by = _with_columns(_model_class(config, source), len(columns))
    try:
        with quiet_unless_terminal(), expecting_gaps() if parts else nullcontext():
            loaded: Any = made_by.from_pretrained(
                folder,
                config=config,
                dtype=dtype_name or "auto",
                output_loading_info=True,
                trust_remote_code=trust_remote_code,
                weights_only=True,
            )
        weights, told = loaded
        if device is None or torch.device(device).type == "cpu":
            _own(weights)
        borrowed = borrow(weights, views, parts, columns, str(model)) if views is not None else frozenset()
        weights = weights.to(device) if device is not None else weights
    except SpecframeError:
        raise
    except Exception as error:  # damaged files, too little memory, no such device
        raise LoadError(f"model '{model}' could not be loaded ({described(error)})") from error
    if missing := sorted({*told["missing_keys"]} - borrowed):  # transformers would make them up
        name, *others = missing
        raise LoadError(
            f"model '{model}' lacks {1 + len(others)} of its tensors, such as {name}; bring the whole folder"
        )
    width = weights.get_output_embeddings().weight.shape[0]
    if columns is not None and width != len(columns):
        raise LoadError(
            f"'{model}' maps {len(columns)} columns of a head that has {width}; a reduced head is not tied to embeddings"
        )
    tokenizer = _load_tokenizer(attrs.evolve(source, folder=folder))
    if stamps(folder) != admitted:
        raise LoadError(f"files of model '{model}' changed while it was loaded; load it again")
    target = TransformersTarget(weights.eval(), tokenizer, prepack=is_wanted(weights, prepack))
    target.facts = attrs.evolve(target.facts, identity=identity)
    return _Loaded(target, _weigh_later(folder, identity), columns)


def _own(model: Any) -> None:
    """Copy weights out of the mapped files: one that is changed in place would change the model, or end the process."""
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()


def _with_columns(model_class: Any, num_columns: int) -> Any:
    """Return a model class whose head has so many columns; its configuration tells how many embeddings there are."""

    def __init__(self: Any, *arguments: Any, **options: Any) -> None:
        model_class.__init__(self, *arguments, **options)
        head = self.get_output_embeddings()
        self.set_output_embeddings(torch.nn.Linear(head.in_features, num_columns, bias=head.bias is not None))

    return type(model_class.__name__, (model_class,), {"__init__": __init__})


def _model_class(config: Any, source: Source) -> Any:
    """Return the class that a model is loaded as: the library's, or one that comes with the model and is trusted."""
    from transformers import AutoModelForCausalLM
    from transformers.dynamic_module_utils import get_class_from_dynamic_module
    from transformers.models.auto.auto_factory import add_generation_mixin_to_remote_model

    if source.trust_remote_code and "AutoModelForCausalLM" in (named := getattr(config, "auto_map", {})):
        try:
            own = get_class_from_dynamic_module(named["AutoModelForCausalLM"], str(source.folder))
        except Exception as error:  # whatever that code does
            told = described(error)
            raise LoadError(f"the code that comes with the model cannot be imported ({told})") from error
        return add_generation_mixin_to_remote_model(own)
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise UnsupportedModel(f"a model of type '{config.model_type}' is not a causal language model")
    return AutoModelForCausalLM._model_mapping[type(config)]


def _load_tokenizer(source: Source) -> Any:
    """Return the tokenizer, or None for a folder without one, which serves token ids."""
    assert source.folder is not None
    try:
        return source.read_tokenizer()
    except SpecframeError:
        raise
    except Exception as error:
        raise LoadError(f"the tokenizer of '{source.folder.name}' could not be loaded ({described(error)})") from error


def _weigh_later(folder: Path, identity: Manifest) -> Callable[[], Manifest]:
    """Return what weighs the files that were loaded; files that changed since are not what runs."""
    files = weight_files(folder)
    loaded = list(map(stamp, files))

    def whole() -> Manifest:
        if not all(file.is_file() for file in files) or list(map(stamp, files)) != loaded:
            raise IncompatibleManifest("the model's weight files changed after it was loaded; load it again")
        return with_weights(identity, weigh(files)) if files else identity

    return whole


def _pin_name(strategy: Strategy) -> str:
    return Path(strategy.identity.manifest or "").name
