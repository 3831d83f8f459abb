"""Calls of a buffer in the midst of another call: those of a signal handler.

Python runs signal handlers between any two instructions. A handler that calls a buffer may do so
when another call of the buffer is half done. A step that it adds then waits for the end of that
call. Calls that would change or read a state that is being changed are refused.
"""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from fbuf_adapters.sb3._checks import WHERE


class Turns:
    """Knows which call is under way.

    Only assignments change it, with nothing called between them and what they protect: Python looks
    for signals after calls.

    Attributes:
        busy: The call that changes or reads the state just now; "" for none.
        adding: Whether a step is half added, or has to wait for another reason.
        later: The steps that wait.
        going_on: Whether these are being added.
        saving: Whether a file is being written.
    """

    def __init__(self) -> None:
        """Begin; nothing is under way."""
        self.busy = ""
        self.adding = self.going_on = self.saving = False
        self.later: collections.deque[Callable[[], None]] = collections.deque()

    def go_on(self) -> None:
        """Add the steps that have waited, if nothing is under way any more."""
        if self.going_on:
            return
        self.going_on = True
        try:
            while self.later and not self.busy and not self.adding:
                self.later.popleft()()
        finally:
            self.going_on = False

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Have steps wait for the end of a block, which sees the same rows all the time."""
        before, self.adding = self.adding, True
        try:
            yield
        finally:
            self.adding = before
            self.go_on()


def amid(name: str, other: str) -> RuntimeError:
    """Return the error of a call in the midst of another one."""
    return RuntimeError(
        f"{WHERE}: {name} is called in the midst of {other}, by a signal handler or by another "
        "thread; have the handler set a flag, and look at it between two calls, as in a callback "
        "of Stable-Baselines3"
    )


C = TypeVar("C", bound=Callable[..., Any])


def alone(name: str, amid_steps: bool = True) -> Callable[[C], C]:
    """Refuse calls of a method in the midst of another one.

    The method is of an object with `turns`. It calls no other method of this kind.

    Args:
        name: The call, in the words of a user.
        amid_steps: Whether it may be called while a step is half added.
    """

    def decorated(method: C) -> C:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **options: Any) -> Any:
            turns = self.turns
            if turns.busy:
                raise amid(name, turns.busy)
            if turns.adding and not amid_steps:
                raise amid(name, "add")
            turns.busy = name
            try:
                return method(self, *args, **options)
            finally:
                turns.busy = ""
                turns.go_on()

        return call  # pyright: ignore[reportReturnType]

    return decorated
