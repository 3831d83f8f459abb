"""Writing in threads: one at a time for each directory, without a lost failure."""

from __future__ import annotations

import _thread
import atexit
import os
import pathlib
import threading
from collections.abc import Callable


class _Job:
    """A thread that writes, and the exception that it raised.

    `wait` uses a bare lock. After an interrupted `Thread.join`, Python believes that a running
    thread has ended.
    """

    def __init__(self, folder: pathlib.Path, work: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._running = _thread.allocate_lock()
        self._running.acquire()
        # Not a daemon: Python ends only after the checkpoint is written.
        threading.Thread(target=self._run, args=(work,), name=f"fbuf.save {folder}").start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failure = error
        finally:
            self._running.release()

    def wait(self) -> None:
        with self._running:
            pass


_lock = threading.Lock()
_turns: dict[pathlib.Path, threading.Lock] = {}
_jobs: dict[pathlib.Path, _Job] = {}


def turn(folder: pathlib.Path) -> threading.Lock:
    """Return the lock of saves to a directory, so that only one save runs at a time."""
    with _lock:
        return _turns.setdefault(folder, threading.Lock())


def start(folder: pathlib.Path, work: Callable[[], None]) -> None:
    """Start work for a directory; the caller has waited for earlier work there."""
    with _lock:
        _jobs[folder] = _Job(folder, work)


def wait(folder: pathlib.Path | None) -> None:
    """Wait for the work for one directory or all, and raise each failure once."""
    with _lock:
        jobs = {f: job for f, job in _jobs.items() if folder is None or f == folder}
    failures: list[BaseException] = []
    for waited, job in jobs.items():
        job.wait()
        with _lock:
            if _jobs.get(waited) is job:  # no caller has raised it
                del _jobs[waited]
                if job.failure is not None:
                    failures.append(job.failure)
    if len(failures) > 1:
        raise BaseExceptionGroup("several saves have failed", failures)
    if failures:
        raise failures[0]


if hasattr(os, "register_at_fork"):  # a process that was forked off has none of the threads
    os.register_at_fork(after_in_child=_jobs.clear)


@atexit.register
def _at_exit() -> None:
    """Raise a failure that no caller has raised, so that Python prints it."""
    wait(None)
