"""A thread that makes batches ahead."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any


class Cancelled(Exception):
    """The result of a task is not needed any more."""


class Task:
    """Something that a worker makes, once.

    It waits on a bare lock: an exception inside the methods of `concurrent.futures.Future` can
    leave these locked for good.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make: Callable[[], Any] | None = make
        self._made: Any = None
        self._error: BaseException | None = None
        self._cancelled = False
        self._done = _thread.allocate_lock()
        self._done.acquire()

    def run(self) -> None:
        """Make it, unless it was cancelled."""
        make, self._make = self._make, None
        try:
            if self._cancelled or make is None:
                raise Cancelled
            self._made = make()
        except BaseException as error:
            self._error = error
        finally:
            self._done.release()

    def cancel(self) -> None:
        """Do not make it if that has not begun."""
        self._cancelled = True

    def raised(self, error: BaseException) -> bool:
        """Tell whether an exception is the one that making it has raised."""
        return error is self._error

    def result(self) -> Any:
        """Wait for what was made, or raise what came up meanwhile."""
        with self._done:
            pass
        if self._error is not None:
            raise self._error
        return self._made


class Worker:
    """A thread that does tasks in the order they come. It ends with this object."""

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._running = _thread.allocate_lock()
        self._running.acquire()
        given = (self._tasks, self._running)
        self._thread = threading.Thread(target=_work, args=given, name=name, daemon=True)
        self._thread.start()
        weakref.finalize(self, self._tasks.put, None)
        _ALL.add(self)

    def submit(self, task: Task) -> Task:
        """Have something made."""
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """Do what was asked for until now, and end."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():
            with self._running:  # a join that was interrupted would not wait again
                pass


def _work(tasks: queue.SimpleQueue[Task | None], running: _thread.LockType) -> None:
    with contextlib.ExitStack() as at_end:
        at_end.callback(running.release)
        while (task := tasks.get()) is not None:
            task.run()
            del task  # or what it made would live until the next one comes


_ALL: weakref.WeakSet[Worker] = weakref.WeakSet()


if hasattr(os, "register_at_fork"):  # a process that was forked off has none of the threads
    os.register_at_fork(after_in_child=_ALL.clear)


@atexit.register
def _end_all() -> None:
    """A thread that is in another library's code when Python ends may bring the process down."""
    for worker in list(_ALL):
        worker.close()
