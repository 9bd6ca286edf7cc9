"""What kind of machine a measurement was made on: enough to tell two apart, no more.

A class, not a fingerprint: no host name, no serial number, no path. What a system does not tell is "not available".
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import psutil

from specframe._version import __version__
from specframe.machine import hardware_class, runtime_versions

NOT_AVAILABLE = "not available"
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def machine_class() -> dict[str, str]:
    """Return processor, memory, accelerator, library versions, and power as far as the system tells them."""
    return {
        **hardware_class(),
        **runtime_versions(),
        "power": _power(),
        "frequency_governor": _governor(),
        "thermal": _thermal(),
    }


def versions() -> dict[str, str]:
    """Return the versions of specframe and of what computes under it."""
    return {
        "specframe": __version__,
        **{name: version(name) for name in ("torch", "transformers", "tokenizers", "numpy")},
    }


def _power() -> str:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None or battery.power_plugged is None:
        return NOT_AVAILABLE
    return "mains" if battery.power_plugged else "battery"


def _thermal() -> str:
    """Say whether a sensor is at or above what its maker calls high, where one tells."""
    sensors = psutil.sensors_temperatures() if hasattr(psutil, "sensors_temperatures") else {}
    told = [(sensor.current, sensor.high) for group in sensors.values() for sensor in group if sensor.high]
    if not told:
        return NOT_AVAILABLE
    return "hot" if any(current >= high for current, high in told) else "below its limits"


def _governor() -> str:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return NOT_AVAILABLE
