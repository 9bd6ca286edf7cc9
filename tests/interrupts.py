"""An interrupt at any line of the package, as a signal may come."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import specframe

PACKAGE = str(Path(specframe.__file__).parent)


def interrupted(call: Callable[[], Any], line: int, later: int | None = None, *, folder: str = PACKAGE) -> bool:
    """Make a call, and raise ``KeyboardInterrupt`` before the line of ``folder`` that is executed as the n-th, from 0.

    ``later``: then once more, so many calls of functions of ``folder`` later, while the first is dealt with. Returns whether
    the call ended before any interrupt came.
    """
    lines_left, calls_left = line, later if later is not None else -1

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines_left
        if not frame.f_code.co_filename.startswith(folder):
            return None
        if event == "line" and frame.f_lasti not in _never_signalled(frame.f_code):
            lines_left -= 1
            if lines_left < 0:
                raise KeyboardInterrupt
        return trace

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls_left
        # Not as a generator goes on: an exception of a profile function's would pass its handlers by.
        is_call = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if lines_left < 0 <= calls_left and is_call and frame.f_code.co_filename.startswith(folder):
            calls_left -= 1
            if calls_left < 0:
                raise KeyboardInterrupt

    sys.settrace(trace)
    sys.setprofile(profile)
    try:
        call()
    except KeyboardInterrupt:
        return False
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    return True


@cache
def _never_signalled(code: CodeType) -> frozenset[int]:
    """Return where lines begin at which no signal is looked for: a bare ``try``, and the end of a ``with``.

    Python looks for signals as a function begins, after calls and in loops. An end of a ``with`` is a call of ``__exit__``.
    """
    found, lines, line = set(), set(), None
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname == "BEFORE_WITH":
            lines.add(line)
        is_exit = instruction.opname == "LOAD_CONST" and instruction.argval is None and line in lines
        if is_exit or instruction.opname == "NOP":
            found.add(instruction.offset)
    return frozenset(found)
