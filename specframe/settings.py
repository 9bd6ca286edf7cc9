"""What torch lets anyone set for everyone: read, compared, and put back where a drafter set it; the target computes under it.

Knows torch's settings; nothing about drafters. Torch is imported when they are first read: who only checks a strategy does not
wait for it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

_logger = logging.getLogger("specframe")


class _Setting(NamedTuple):
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


@functools.cache
def _settings() -> tuple[_Setting, ...]:
    import torch

    def autocast(device_type: str) -> _Setting:
        def write(value: tuple[bool, torch.dtype]) -> None:
            torch.set_autocast_enabled(device_type, value[0])
            torch.set_autocast_dtype(device_type, value[1])

        def read() -> tuple[bool, torch.dtype]:
            return torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)

        return _Setting(f"autocast of {device_type}", read, write)

    # Not the default dtype: transformers sets it while it loads a model, perhaps in another thread; the target names its own.
    # The device through a tensor: to ask for it takes eight times as long.
    return (
        _Setting(
            "default device",
            lambda: torch.empty(0).device,
            lambda device: torch.set_default_device(None if device.type == "cpu" else device),
        ),
        _Setting("number of threads", torch.get_num_threads, torch.set_num_threads),
        _Setting("matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        _Setting("deterministic mode", torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        _Setting(
            "use of oneDNN",
            lambda: torch.backends.mkldnn.enabled,
            lambda is_on: setattr(torch.backends.mkldnn, "enabled", is_on),
        ),
        autocast("cpu"),
        autocast("cuda"),
    )


def current_settings() -> tuple[Any, ...]:
    """Return the values of all of them, to compare; in a microsecond or two."""
    return tuple(setting.read() for setting in _settings())


def first_change(before: Sequence[Any]) -> str | None:
    """Say which of them is not what it was when ``before`` was read, and what it is now; None where all are."""
    now = current_settings()
    if now == before:
        return None
    setting, then, found = next(
        change for change in zip(_settings(), before, now, strict=True) if change[1] != change[2]
    )
    return f"{setting.name}, which was {then} and is {found} now"


@contextmanager
def kept_settings() -> Iterator[None]:
    """Put torch's settings back as they were before a ``with`` block, or a function that this decorates."""
    before = current_settings()
    try:
        yield
    finally:
        if (after := current_settings()) != before:
            for setting, value, found in zip(_settings(), before, after, strict=True):
                if found != value:
                    _logger.info("torch's %s was set to %s for everyone; it is %s again", setting.name, found, value)
                    setting.write(value)
