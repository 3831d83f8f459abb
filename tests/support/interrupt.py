"""Ctrl-C while something is waited for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

import pytest


def interrupted(wait: Callable[[], object]) -> None:
    """Call what waits, and interrupt it."""
    thread = threading.main_thread().ident
    assert thread is not None
    timer = threading.Timer(0.05, signal.pthread_kill, (thread, signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:  # what did not wait is not interrupted later
        timer.cancel()
        timer.join()
