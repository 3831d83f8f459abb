"""Calls of JAX that no exception breaks off half way.

Python runs signal handlers only in its main thread, and only between its own instructions. A
compiled program is one instruction. But to trace and to compile it is Python, and an exception in
the midst of that can leave JAX unable to compute anything in this thread. So the first call of
every program is made in another thread, and so is what traces at every call.
"""

from __future__ import annotations

import _thread
import collections
import itertools
import threading
from collections.abc import Callable, Hashable
from typing import Any

import jax

from fbuf_adapters.pytorch import _dtypes


class Calls:
    """Makes calls, one at a time: whoever uses it holds a lock."""

    def __init__(self) -> None:
        self._known: set[Hashable] = set()
        self._under_way: _Call | None = None

    def __call__(self, program: Hashable, call: Callable[[], Any]) -> Any:
        """Make a call.

        Args:
            program: What tells its compiled program from all others.
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


class _Call:
    """A call made in a thread of its own.

    It uses bare locks alone: an exception inside the methods of `threading.Event` can leave these
    locked for good.
    """

    def __init__(self, call: Callable[[], Any]) -> None:
        self.thread: int | None = None
        self._call = call
        self._claims = [()]
        """Whoever takes this out, the thread or who gives the call up, sees to `_done`."""
        self._x64 = _dtypes.x64()
        self._results: list[Any] = []
        self._errors: list[BaseException] = []
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def make(self) -> list[Any]:
        """Make it, and return what it returns, in a list; an empty one if it was given up.

        An exception from elsewhere waits for it.
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
            with self._done:
                pass

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
