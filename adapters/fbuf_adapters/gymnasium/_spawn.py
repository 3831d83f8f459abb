"""Processes that begin with a fresh interpreter, no GPU and no ear for Ctrl-C."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from multiprocessing import resource_tracker
from typing import Any

UNGUARDED = 75
"""The exit code of a process that was about to start processes while it was starting itself."""

# One thread each, for there are many of them; and a GPU is the learner's.
_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
_changing = threading.Lock()


def end_if_unguarded() -> None:
    """End this process if it is a new one that imports the main script of its parent.

    What it prints would be lost among the output of all others. The parent sees the exit code.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(UNGUARDED)


def script_without_a_file() -> str | None:
    """The name of a main script that new processes would look for in vain; None if there is none.

    Python calls a script that it reads from standard input `<stdin>`.
    """
    main = sys.modules["__main__"]
    name = getattr(main, "__file__", None)
    if name is None or main.__spec__ is not None or os.path.exists(name):
        return None
    return name


def spawn(target: Callable[..., None], job: Any, name: str) -> tuple[Any, Any]:
    """Start a process with `target(job, connection)`; return it and the other end."""
    context = multiprocessing.get_context("spawn")
    own, other = context.Pipe()
    # Daemonic: Python's own way of ending processes ends it, too, if all of ours fails.
    process = context.Process(target=target, args=(job, other), name=name, daemon=True)
    resource_tracker.ensure_running()  # which would let signals through again
    try:
        with _environment(), _without_interrupts():
            process.start()
    except BaseException:
        own.close()
        raise
    finally:
        other.close()  # so that ours ends with the process
    return process, own


@contextlib.contextmanager
def _environment() -> Generator[None]:
    with _changing:
        before = {name: os.environ.get(name) for name in _ENVIRONMENT}
        os.environ.update(_ENVIRONMENT)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


@contextlib.contextmanager
def _without_interrupts() -> Generator[None]:
    """A process inherits it, until it can ignore them itself. Here they come later."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
