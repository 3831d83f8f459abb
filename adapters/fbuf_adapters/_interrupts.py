"""What a Ctrl-C must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from typing import Any


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Have a Ctrl-C wait for the end of the block.

    A function of fbuf consumes the state it is given. An exception between that and the assignment
    of the new state would lose both.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    came: list[tuple[Any, Any]] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[-1])
