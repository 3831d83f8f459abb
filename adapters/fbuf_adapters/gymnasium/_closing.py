"""Closing environments, whatever they are in the middle of, and naming the one that failed."""

from __future__ import annotations

import time
from typing import Any

from fbuf_adapters.gymnasium._errors import CollectorError

_PATIENCE = 5.0
"""Seconds that processes have to end."""


def close(envs: Any) -> None:
    """Close environments. Those in processes that would not answer are ended first."""
    base = envs.unwrapped
    processes: list[Any] = getattr(base, "processes", [])
    if processes and not getattr(base, "closed", False) and not _answer(base):
        end(envs)
        if hasattr(base, "_state"):  # it would wait for the answer of a process that is gone
            base._state = type(base._state)("default")
        envs.close(terminate=True)
        return
    envs.close()


def end(envs: Any) -> None:
    """End the processes of environments, if they have any: a call that waits for one then fails."""
    processes: list[Any] = getattr(envs.unwrapped, "processes", [])
    for process in processes:
        process.terminate()
    until = time.monotonic() + _PATIENCE
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
        if process.exitcode is None:  # in C code, which no signal handler interrupts
            process.kill()
            process.join(_PATIENCE)


def _answer(base: Any) -> bool:
    """Whether all processes are there, and none is in the middle of a call."""
    waiting = getattr(getattr(base, "_state", None), "value", "default")
    pipes: list[Any] = getattr(base, "parent_pipes", [])
    alive = all(process.is_alive() for process in base.processes)
    return alive and waiting == "default" and None not in pipes


def failed(envs: Any, error: BaseException) -> str | None:
    """Which environment raised, or whose process has ended, in words; None if nobody knows."""
    if isinstance(error, CollectorError):  # which says it
        return None
    base = envs.unwrapped
    processes: list[Any] = getattr(base, "processes", [])
    for number, process in enumerate(processes):
        if base.parent_pipes[number] is None:
            return f"environment {number} raised in its process"
        if process.exitcode is not None:
            return f"the process of environment {number} ended with exit code {process.exitcode}"
    if processes:
        return None
    # Gymnasium's loops over environments count in `i`.
    trace = error.__traceback__
    while trace is not None:
        found = trace.tb_frame.f_locals
        if found.get("self") is base and isinstance(found.get("i"), int):
            return f"environment {found['i']} raised"
        trace = trace.tb_next
    return None
