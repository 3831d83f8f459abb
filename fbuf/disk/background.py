"""Writing in threads: one at a time for each directory, and no failure is lost."""

from __future__ import annotations

import atexit
import os
import pathlib
import sys
import threading
from collections.abc import Callable


class _Job:
    """Something that is done in a thread, and what became of it."""

    def __init__(self, folder: pathlib.Path, work: Callable[[], None]) -> None:
        self.failure: BaseException | None = None
        self._work = work
        # Not a daemon: a checkpoint that was begun is written before Python ends.
        self._thread = threading.Thread(target=self._run, name=f"fbuf.save {folder}")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error

    def wait(self) -> None:
        self._thread.join()


_lock = threading.Lock()
_jobs: dict[pathlib.Path, _Job] = {}


def start(folder: pathlib.Path, work: Callable[[], None]) -> None:
    """Begin with some work for a directory. What was begun for it before has been waited for."""
    with _lock:
        _jobs[folder] = _Job(folder, work)


def wait(folder: pathlib.Path | None) -> None:
    """Wait for the work for a directory, or for all, and raise the first failure of it."""
    with _lock:
        waited = [f for f in _jobs if folder is None or f == folder]
        jobs = [_jobs.pop(f) for f in waited]
    failures = []
    for job in jobs:
        job.wait()
        if job.failure is not None:
            failures.append(job.failure)
    if failures:
        raise failures[0]


@atexit.register
def _at_exit() -> None:
    """Who never waits hears of a failure at the end."""
    try:
        wait(None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        sys.stderr.flush()
        sys.stdout.flush()
        # The only way left to make the exit code say so.
        os._exit(1)
