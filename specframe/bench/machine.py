"""What kind of machine a measurement was made on: enough to tell two apart, no more.

What a system does not tell is "not available".
"""

from __future__ import annotations

from pathlib import Path

import psutil

from specframe.machine import hardware_class, runtime_versions

NOT_AVAILABLE = "not available"
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def machine_class() -> dict[str, str]:
    """Return processor, memory, accelerator, library versions, and power as far as the system tells them."""
    return {**hardware_class(), **runtime_versions(), "power": _power(), "frequency_governor": _governor()}


def _power() -> str:
    battery = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
    if battery is None or battery.power_plugged is None:
        return NOT_AVAILABLE
    return "mains" if battery.power_plugged else "battery"


def _governor() -> str:
    try:
        return _GOVERNOR.read_text(encoding="ascii").strip()
    except OSError:
        return NOT_AVAILABLE
