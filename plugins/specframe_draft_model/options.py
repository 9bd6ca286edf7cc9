"""The options of the draft model: pure data, checked when made. Knows nothing about models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from specframe import InvalidStrategy

DEMO = "demo"
DEMO_FOLDER = Path(__file__).parent / "demo"
TRUNCATIONS = ("none", "tail-v1")


def _at_least_1(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidStrategy(f"'{attribute.name}' must be an integer >= 1 (got {value!r})")


def _is_probability(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise InvalidStrategy(f"'{attribute.name}' must be a number in [0, 1) (got {value!r})")


def _is_truncation(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value not in TRUNCATIONS:
        raise InvalidStrategy(f"'{attribute.name}' must be one of {', '.join(TRUNCATIONS)} (got {value!r})")


def _place(model: str | None) -> str | None:
    """Return where a draft is: the name ``demo`` stands for the one that comes with this package."""
    if model != DEMO:
        return model
    if not DEMO_FOLDER.is_dir():
        raise InvalidStrategy(
            "the draft for the demo target is not part of this version; give 'model' (see 'specframe train-draft') or 'layers'"
        )
    return str(DEMO_FOLDER)


@attrs.frozen
class DraftModelOptions:
    """Which model drafts, and how much.

    ``model``: a folder, GGUF file or model id, or ``demo``, the draft for the demo target; ``layers``: instead of a model the
    target's first so many layers and its head, sharing its weights. With neither, ``demo``.

    ``dtype``, ``device``: of the draft, by default the model's own dtype and the target's device; ``max_tokens``: at most so
    many a round, None for the round's room; ``min_confidence``: draw no token where the draft gives its likeliest id a smaller
    probability at temperature 1, 0 to draw always; ``context``: the most tokens that the draft sees, None for what its model
    takes; ``truncation``: past that, ``none`` (the drafter is off for the rest of the request) or ``tail-v1`` (it starts again
    on the last half). Raises ``InvalidStrategy``.
    """

    model: str | None = attrs.field(default=None)
    layers: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least_1))
    dtype: str | None = None
    device: str | None = None
    max_tokens: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least_1))
    min_confidence: float = attrs.field(default=0.0, validator=_is_probability)
    context: int | None = attrs.field(default=None, validator=attrs.validators.optional(_at_least_1))
    truncation: str = attrs.field(default="none", validator=_is_truncation)

    def __attrs_post_init__(self) -> None:
        if self.model is not None and self.layers is not None:
            raise InvalidStrategy(
                f"'model' and 'layers' exclude each other: a draft of its own, or the target's first layers (got "
                f"{self.model!r} and {self.layers})"
            )
        if self.layers is not None and (self.dtype is not None or self.device is not None):
            raise InvalidStrategy("'dtype' and 'device' do not go with 'layers': the layers are the target's own")
        model = DEMO if self.model is None and self.layers is None else self.model
        object.__setattr__(self, "model", _place(model))
