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
    """The exception of a cancelled task."""


class Task:
    """A result that a worker computes once.

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
        """Compute the result, unless cancelled."""
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
        """Cancel the task if it has not begun."""
        self._cancelled = True

    def raised(self, error: BaseException) -> bool:
        """Tell whether the task has raised this exception."""
        return error is self._error

    def result(self) -> Any:
        """Wait for the result, or raise the exception of the task."""
        with self._done:
            pass
        if self._error is not None:
            raise self._error
        return self._made


class Worker:
    """A thread that runs tasks in order. It ends with this object."""

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
        """Add a task."""
        self._tasks.put(task)
        return task

    def close(self) -> None:
        """Finish all tasks so far, and end."""
        self._tasks.put(None)
        if self._thread is not threading.current_thread():
            with self._running:  # an interrupted join would not wait again
                pass


def _work(tasks: queue.SimpleQueue[Task | None], running: _thread.LockType) -> None:
    with contextlib.ExitStack() as at_end:
        at_end.callback(running.release)
        while (task := tasks.get()) is not None:
            task.run()
            del task  # otherwise its result would live until the next task


_ALL: weakref.WeakSet[Worker] = weakref.WeakSet()


if hasattr(os, "register_at_fork"):  # a process that was forked off has none of the threads
    os.register_at_fork(after_in_child=_ALL.clear)


@atexit.register
def _end_all() -> None:
    """End all threads: at exit, one inside another library's code may crash the process."""
    for worker in list(_ALL):
        worker.close()
