"""What an exception of a signal handler, such as Ctrl-C, must not cut in two."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

_NAMES = "SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2"
_SIGNALS = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
"""Those whose handlers raise in programs: Ctrl-C, preemption, a limit of time."""


class _Later:
    """Stands for a handler, and has signals wait as long as a block is under way.

    It goes on to stand for the handler, should it be left there.
    """

    def __init__(self, handler: Callable[..., Any], waiting: list[Any]) -> None:
        self.handler = handler
        self.waiting: list[Any] | None = waiting

    def __call__(self, number: int, frame: Any) -> None:
        if self.waiting is None:
            self.handler(number, frame)
        else:
            self.waiting.append((self.handler, number, frame))


@contextlib.contextmanager
def uninterrupted() -> Generator[None]:
    """Have signals wait for the end of the block.

    A function of fbuf consumes the state it is given. An exception between that and the assignment
    of the new state would lose both.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread alone
        return
    waiting: list[Any] = []
    put: list[tuple[int, _Later]] = []
    try:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if isinstance(handler, _Later):
                if handler.waiting is not None:  # the block around this one has it wait
                    continue
                handler = handler.handler
            if callable(handler):
                put.append((number, _Later(handler, waiting)))
                signal.signal(*put[-1])
        yield
    finally:
        for _, later in put:
            later.waiting = None
        try:
            for number, later in put:
                if signal.getsignal(number) is later:  # else the block has set another one
                    signal.signal(number, later.handler)
        finally:
            _handle(waiting)


def _handle(waiting: list[Any]) -> None:
    """Call the handlers of signals that have waited, all of them, though one may raise."""
    if waiting:
        handler, number, frame = waiting.pop(0)
        try:
            handler(number, frame)
        finally:
            _handle(waiting)
