"""Keep an exception of a signal handler, such as Ctrl-C, from cutting a change in two.

Python runs signal handlers in its main thread alone, between two instructions of Python. A handler
may raise: that of Ctrl-C does, and so may one of a time limit or of preemption. The exception then
comes up between any two instructions of the code that happens to run.

A change of a buffer consumes the memory of the old state. If an exception came between the call and
the assignment of the new state, the object would hold the old one, whose memory is gone. There are
two means against that:

1. `uninterrupted()` replaces the signal handlers by ones that only record the signal. At the end of
   its block it calls the real handlers. It covers any Python code. But to swap handlers takes 5 to
   20 us, a tenth of a call of a small buffer. So only slow operations use it: saving, collecting,
   rows on the host.
2. `Calls` makes the call one instruction. A compiled program is a C function, and so are `map` and
   `deque`. `at_once(map(keep, map(program, arguments)))` returns a call of `deque` that runs the
   program and keeps its result. These C functions call each other, without an instruction of Python
   between them. A handler runs before all of it or after.

   The first call of a program traces and compiles, which is much Python. An exception in it can
   leave JAX unable to compute in this thread. Handlers run in the main thread alone, so `Calls`
   makes a first call in another thread, and the main thread waits for its end. An exception during
   the wait is raised after that end. Then the program is known, and its later calls run directly.

A handler may also raise nothing, and call the same object. Under 1. it runs before or after the
block. Under 2. a program must read the state in the instruction that calls it: `map` takes it from
the list that holds it. To read a state in more than one instruction, use `of_newest`.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import functools
import importlib
import itertools
import signal
import threading
import time
import traceback
import types
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, TypeVar

import jax

S = TypeVar("S")
T = TypeVar("T")

# The C module: `signal` converts handlers and numbers to enums, which takes microseconds.
_signal: Any = importlib.import_module("_signal")
_SIGNALS = sorted(map(int, signal.valid_signals()))
"""All signals. Only a few have a handler in Python, such as for Ctrl-C or preemption."""


def raised_by_signal_handler(error: BaseException) -> bool:
    """Tell whether a signal handler has raised an exception, such as that of a time limit.

    A handler that has since replaced itself is not recognised.
    """
    handlers = [_code_of(handler) for number in _SIGNALS if (handler := _signal.getsignal(number))]
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code object of a handler; None if it is not in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):  # a callable object
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


class _Later:
    """A stand-in for a handler, which defers signals during a block.

    If it stays installed, it calls the handler.
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
    """Defer signals to the end of the block.

    A function of fbuf consumes the state it is given. An exception before the assignment of the new
    state would lose both states.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # Python runs handlers in the main thread alone
        return
    waiting: list[Any] = []
    put: list[tuple[int, _Later]] = []
    try:
        for number in _SIGNALS:
            handler = _signal.getsignal(number)
            if isinstance(handler, _Later):
                if handler.waiting is not None:  # the outer block defers it
                    continue
                handler = handler.handler
            if callable(handler):
                put.append((number, _Later(handler, waiting)))
                _signal.signal(*put[-1])
        yield
    finally:
        for _, later in put:
            later.waiting = None
        try:
            for number, later in put:
                if _signal.getsignal(number) is later:  # otherwise the block has set a new handler
                    _signal.signal(number, later.handler)
        finally:
            _handle(waiting)


def _handle(waiting: list[Any]) -> None:
    """Call the handlers of all deferred signals, even if one raises."""
    if waiting:
        handler, number, frame = waiting.pop(0)
        try:
            handler(number, frame)
        finally:
            _handle(waiting)


def of_newest(newest: Callable[[], S], read: Callable[[S], T]) -> T:
    """Read the newest state, and read again if a signal handler has consumed it meanwhile.

    Args:
        newest: Returns the state.
        read: Reads it, and changes nothing; it fails if the state is consumed.
    """
    while True:
        state = newest()
        try:
            return read(state)
        except (RuntimeError, ValueError):
            if newest() is state:
                raise


def at_once(steps: Iterator[Any]) -> Callable[[], Any]:
    """Return a call that exhausts `steps` in one instruction; see `Calls`.

    Args:
        steps: An iterator of C functions alone, such as nested `map`s of compiled programs.
    """
    return functools.partial(collections.deque, steps, 0)


class Calls:
    """Calls of JAX that no exception interrupts, one at a time: hold a lock."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()
        self._under_way: _Call | None = None

    def __call__(self, program: Hashable, call: Callable[[], Any]) -> Any:
        """Make a call.

        Args:
            program: A key of its compiled program.
            call: The call. Once its program is compiled, all of it is one instruction.
        """
        self.settle()
        if program in self._known:
            return call()
        result = self.apart(call)
        self._known.add(program)
        return result

    def apart(self, call: Callable[[], Any]) -> Any:
        """Make a call of several instructions."""
        self.settle()
        if threading.current_thread() is not threading.main_thread():
            return call()
        while True:
            self._under_way = made = _Call(call)
            result = made.make()
            self._under_way = None
            if result:  # a signal handler on the same buffer may have cancelled it
                return result[0]

    def settle(self) -> None:
        """Wait for a call that was under way when an exception came."""
        call = self._under_way
        if call is not None and call.thread != _thread.get_ident():  # otherwise inside that call
            call.finish()
            self._under_way = None


_WAIT = 0.01
"""Seconds between two checks for the end of a call."""


class _Call:
    """A call in its own thread.

    It uses bare locks alone: an exception inside the methods of `threading.Event` can leave these
    locked for good.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.thread: int | None = None
        self._call = call
        self._claims = [()]
        """A token: the side that pops it, thread or canceller, must release `_done`."""
        config: Any = jax.config  # JAX makes the names of its options at run time
        self._x64 = bool(config.jax_enable_x64)
        self._results: list[Any] = []
        self._errors: list[BaseException] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def make(self) -> list[Any]:
        """Return a list with the result of the call; an empty list if the call was cancelled.

        An exception in the waiting thread is raised when the call has ended.
        """
        try:
            _thread.start_new_thread(self._run, ())
            with self._done:
                pass
        except BaseException:
            self.finish()
            raise
        if self._errors:
            raise self._errors[0]
        return self._results

    def finish(self) -> None:
        """Wait for the end of the call; cancel it if it has not begun."""
        given_up = map(self._claims.pop, (0,))
        try:  # in one instruction
            collections.deque(itertools.starmap(self._done.release, given_up), 0)
        except IndexError:
            # A signal handler may call while this thread holds the lock, and an exception may come
            # at any time. So nothing is acquired here that would need a release.
            while self._done.locked() and not (self._results or self._errors):
                time.sleep(_WAIT)

    def _run(self) -> None:
        try:
            self._claims.pop()
        except IndexError:  # cancelled
            return
        self.thread = _thread.get_ident()
        try:
            with jax.enable_x64(self._x64):  # which may be set for one thread alone
                self._results.append(self._call())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._done.release()
