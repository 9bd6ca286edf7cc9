"""What a run was made on and with: the class of the machine, and the versions of what computes.

A class, not a fingerprint: no host name, no serial number, no path.
"""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def hardware_class() -> dict[str, str]:
    """Return processor, memory and accelerator as far as the system tells them."""
    import psutil
    import torch

    return {
        "architecture": platform.machine(),
        "system": platform.system(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "memory_gib": str(round(psutil.virtual_memory().total / 2**30)),
        "accelerator": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
    }


def runtime_versions() -> dict[str, str]:
    """Return the versions of Python (to its second part) and of the libraries that compute."""
    return {
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": version("torch"),
        "transformers": version("transformers"),
    }
