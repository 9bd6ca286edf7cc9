"""An interrupt at any line of the package, as a signal may come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import specframe

PACKAGE = str(Path(specframe.__file__).parent)


def interrupted(call: Callable[[], Any], *at_lines: int, folder: str = PACKAGE) -> bool:
    """Make a call, and raise ``KeyboardInterrupt`` before the line of ``folder`` that is executed as the n-th, from 0.

    A second number interrupts so many lines later, while the first interrupt is dealt with. Returns whether the call ended
    before its interrupt came; what it raises otherwise is its own.
    """
    waiting = list(at_lines)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line":
            if waiting[0] == 0:
                del waiting[0]
                if waiting:
                    sys.settrace(trace)  # an exception of its own ends tracing
                raise KeyboardInterrupt
            waiting[0] -= 1
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(before)
    return True
