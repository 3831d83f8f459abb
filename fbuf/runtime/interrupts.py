"""Keep an exception of a signal handler, such as Ctrl-C, from cutting a change in two.

Python runs signal handlers in its main thread alone, between two instructions of Python. A handler
may raise: that of Ctrl-C does, and so may one of a time limit or of preemption. The exception then
comes up between any two instructions of the code that happens to run.

A change of a buffer consumes the memory of the old state. If an exception came between the call and
the assignment of the new state, the object would hold the old one, whose memory is gone. There are
two means against that:

1. `uninterrupted()` swaps the signal handlers for ones that only take note of the signal. At the
   end of its block the real handlers are called. It covers any Python code. But to swap handlers
   takes 5 to 20 us, a tenth of a call of a small buffer. So only what takes long uses it: saving,
   collecting, rows on the host.
2. `Calls` makes the call one instruction. A compiled program is a C function, and so are `map` and
   `deque`. `at_once(map(keep, map(program, arguments)))` returns a call of `deque` that runs the
   program and keeps its result. These C functions call each other, without an instruction of Python
   between them. A handler runs before all of it or after.

   The first call of a program traces and compiles, which is much Python. An exception in it can
   leave JAX unable to compute in this thread. Handlers run in the main thread alone, so `Calls`
   makes a first call in another thread, and the main thread waits for its end. If an exception
   comes while it waits, the exception waits for that end, too, and is then raised. The program is
   known from then on, and its later calls are made at once.

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

# The part of `signal` in C: `signal` makes enums of handlers and numbers, which takes microseconds.
_signal: Any = importlib.import_module("_signal")
_SIGNALS = sorted(map(int, signal.valid_signals()))
"""All signals. Few of them have a handler in Python: Ctrl-C, preemption, a time limit."""


def raised_by_signal_handler(error: BaseException) -> bool:
    """Tell whether an exception comes out of a signal handler, as that of a time limit may.

    A handler that has put another one in its place by then is not known.
    """
    handlers = [_code_of(handler) for number in _SIGNALS if (handler := _signal.getsignal(number))]
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> types.CodeType | None:
    """Return the code that runs when a handler is called; None if there is none in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not hasattr(handler, "__code__"):  # an object that can be called
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


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
            handler = _signal.getsignal(number)
            if isinstance(handler, _Later):
                if handler.waiting is not None:  # the block around this one has it wait
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
                if _signal.getsignal(number) is later:  # else the block has set another one
                    _signal.signal(number, later.handler)
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


def of_newest(newest: Callable[[], S], read: Callable[[S], T]) -> T:
    """Return what is read of the newest state, although a signal handler may change that meanwhile.

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
    """Return a call that goes through `steps` in one instruction; see `Calls`.

    Args:
        steps: An iterator of C functions alone, such as nested `map`s of compiled programs.
    """
    return functools.partial(collections.deque, steps, 0)


class Calls:
    """Makes calls of JAX that no exception breaks off half way, one at a time: hold a lock."""

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
        """Make a call that is more than one instruction."""
        self.settle()
        if threading.current_thread() is not threading.main_thread():
            return call()
        while True:
            self._under_way = made = _Call(call)
            result = made.make()
            self._under_way = None
            if result:  # else a signal handler that uses the same buffer has given it up
                return result[0]

    def settle(self) -> None:
        """Wait for a call that was under way when an exception came."""
        call = self._under_way
        if call is not None and call.thread != _thread.get_ident():  # else this is within it
            call.finish()
            self._under_way = None


_WAIT = 0.01
"""Seconds between two looks at whether a call has ended."""


class _Call:
    """A call made in a thread of its own.

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
        """Return a list of the call's result; an empty list if the call was given up.

        An exception that comes meanwhile waits for the end of the call.
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
        """Wait for its end; give it up if it has not begun."""
        given_up = map(self._claims.pop, (0,))
        try:  # in one instruction
            collections.deque(itertools.starmap(self._done.release, given_up), 0)
        except IndexError:
            # A signal handler may call while this thread holds the lock, and an exception may come
            # at any time. So nothing is taken here that would have to be given back.
            while self._done.locked() and not (self._results or self._errors):
                time.sleep(_WAIT)

    def _run(self) -> None:
        try:
            self._claims.pop()
        except IndexError:  # given up
            return
        self.thread = _thread.get_ident()
        try:
            with jax.enable_x64(self._x64):  # which may be set for a thread alone
                self._results.append(self._call())
        except BaseException as error:
            self._errors.append(error)
        finally:
            self._done.release()
