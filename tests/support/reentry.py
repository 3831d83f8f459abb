"""A signal handler that calls an object in the midst of one of its calls, at a line of choice.

Signals come wherever they like. Here a trace function raises one before a line of the main thread.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import fbuf

_ROOTS = str(Path(fbuf.__file__).parents[1] / "adapters"), str(Path(fbuf.__file__).parent)


def call_at_line(number: int, call: Callable[[], Any], handler: Callable[[], Any]) -> bool:
    """Make a call, and have the handler called before line `number` that it runs of fbuf.

    Returns:
        Whether there was such a line.
    """
    left = number

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(_ROOTS):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                signal.raise_signal(signal.SIGUSR1)
        return trace

    before, other = sys.gettrace(), signal.signal(signal.SIGUSR1, lambda *_: handler())
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        signal.signal(signal.SIGUSR1, other)
    return left <= 0
