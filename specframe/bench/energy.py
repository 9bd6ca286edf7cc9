"""Energy that the machine itself counts: Intel's and AMD's RAPL through Linux, NVIDIA's through NVML, else nothing.

Counters are of whole packages and boards: what else runs on the machine is counted too. They are read before and after, so
that nothing samples while something is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specframe.bench.machine import NOT_AVAILABLE

_POWERCAP = Path("/sys/class/powercap")


class EnergyMeter:
    """Adds up every counter that can be read. ``source`` names them, or is "not available".

    ``powercap``: the folder of RAPL's domains; ``nvml``: the module ``pynvml``, by default if it is installed and works.
    """

    def __init__(self, powercap: Path = _POWERCAP, nvml: Any = None) -> None:
        rapl = [_Rapl(domain) for domain in sorted(powercap.glob("*-rapl:*")) if _is_package(domain)]
        boards = _boards(nvml if nvml is not None else _pynvml())
        self._counters: list[Callable[[], float]] = [*(domain.read for domain in rapl), *boards]
        names = [name for name, found in (("rapl", rapl), ("nvml", boards)) if found]
        self.source = "+".join(names) or NOT_AVAILABLE

    def read(self) -> float | None:
        """Return joules since the meter was made, up to a constant; None where there is no counter, or one has failed."""
        if not self._counters:
            return None
        try:
            return sum(counter() for counter in self._counters)
        except OSError:
            return None


class _Rapl:
    """One package's counter, which begins anew when it is full."""

    def __init__(self, domain: Path) -> None:
        self._file = domain / "energy_uj"
        self._range = int((domain / "max_energy_range_uj").read_text())
        self._last, self._past = int(self._file.read_text()), 0

    def read(self) -> float:
        now = int(self._file.read_text())
        if now < self._last:
            self._past += self._range
        self._last = now
        return (self._past + now) / 1e6


def _is_package(domain: Path) -> bool:
    """Tell whether a domain is a processor, not a part or a sum of some, and can be read, which some leave to root."""
    if not all(os.access(domain / name, os.R_OK) for name in ("name", "energy_uj", "max_energy_range_uj")):
        return False
    return (domain / "name").read_text().startswith("package")


def _pynvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _boards(nvml: Any) -> list[Callable[[], float]]:
    """Return a reader of joules for each board that counts them."""
    if nvml is None:
        return []
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        readers = [_board_reader(nvml, handle) for handle in handles]
        for reader in readers:
            reader()
    except (nvml.NVMLError, OSError):
        return []
    return readers


def _board_reader(nvml: Any, handle: Any) -> Callable[[], float]:
    def read() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1e3  # it counts in millijoules
        except nvml.NVMLError as error:
            raise OSError(str(error)) from error

    return read
