"""Vector environments of all kinds: modes of reset, closing, and reports of failures."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import time
import weakref
from typing import Any, Literal, get_args

from gymnasium.vector import AutoresetMode

from fbuf_adapters.gymnasium._errors import CollectorError

Autoreset = Literal["same_step", "next_step", "disabled"]
"""The modes by their names in `fbuf.init`."""

_PATIENCE = 5.0
"""Seconds for processes to end."""


def autoreset(envs: Any) -> Autoreset:
    """Return the mode of environments at the end of an episode.

    Raises:
        ValueError: If they do not say it. A wrong guess would store wrong transitions silently.
    """
    # Gymnasium's own vector environments write their mode into metadata that all environments of a
    # class share, so the last one made would speak for all. Their attribute is their own.
    mode = getattr(envs.unwrapped, "autoreset_mode", None)
    if mode is None:
        mode = (envs.metadata or {}).get("autoreset_mode")
    name = mode.name if isinstance(mode, AutoresetMode) else str(mode)
    name = name.lower().replace("nextstep", "next_step").replace("samestep", "same_step")
    for known in get_args(Autoreset):
        if name == known:
            return known
    said = "does not say" if mode is None else f"says {mode!r}"
    raise ValueError(
        f"Collector: {type(envs.unwrapped).__name__}.metadata['autoreset_mode'] {said} what the "
        "environments do at the end of an episode; set it to one of "
        "gymnasium.vector.AutoresetMode: SAME_STEP if the step that ends an episode returns the "
        "first observation of the next one (and info['final_obs']); NEXT_STEP if the step after it "
        "does; DISABLED if reset(options={'reset_mask': ...}) does"
    )


def limit_time(envs: Any, seconds: float) -> None:
    """Set a time limit for steps and resets, if the environments support that.

    Gymnasium's `AsyncVectorEnv` has a limit in `step_wait` and `reset_wait`, but its `step` and
    `reset` do not set it. The two are replaced on the object, so that they hold in wrappers, too.
    """
    base = envs.unwrapped
    for name in ("step_wait", "reset_wait"):
        wait = getattr(type(base), name, None)
        if wait is not None and "timeout" in inspect.signature(wait).parameters:
            # A proxy, so that unused environments are freed at once.
            setattr(base, name, functools.partial(_waited, weakref.proxy(base), wait, seconds))


def _waited(base: Any, wait: Any, seconds: float) -> Any:
    try:
        return wait(base, timeout=seconds)
    except (multiprocessing.TimeoutError, TimeoutError) as error:
        hanging = [number for number, pipe in enumerate(base.parent_pipes) if not pipe.poll()]
        end_processes(base)  # a late answer would go to a later call
        who = ", ".join(map(str, hanging))
        raise CollectorError(
            f"Collector: environment {who} hangs, for {seconds:g} s now (timeout={seconds:g}); the "
            "processes of the environments have been ended, so make new ones, and another collector"
        ) from error


def close(envs: Any) -> None:
    """Close environments, and first end processes that would not answer."""
    base = envs.unwrapped
    if getattr(base, "processes", []) and not getattr(base, "closed", False) and not _answer(base):
        end_processes(envs)
        if hasattr(base, "_state"):  # it would wait for the answer of an ended process
            base._state = type(base._state)("default")
        envs.close(terminate=True)
        return
    envs.close()


def end_processes(envs: Any) -> None:
    """End the processes of environments, if any, so that a waiting call fails."""
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
    """Return whether all processes live, and are idle."""
    waiting = getattr(getattr(base, "_state", None), "value", "default")
    pipes: list[Any] = getattr(base, "parent_pipes", [])
    alive = all(process.is_alive() for process in base.processes)
    return alive and waiting == "default" and None not in pipes


def failed(envs: Any, error: BaseException) -> str | None:
    """Return a text with the environment that raised or ended; None if unknown."""
    if isinstance(error, CollectorError):  # its message names the environment
        return None
    base = envs.unwrapped
    processes: list[Any] = getattr(base, "processes", [])
    for number, process in enumerate(processes):
        if base.parent_pipes[number] is None:
            return f"environment {number} raised in its process"
        if process.exitcode is not None:
            return f"the process of environment {number} ended with exit code {process.exitcode}"
    # Gymnasium's loops over environments in one process count in `i`.
    trace = None if processes else error.__traceback__
    while trace is not None:
        found = trace.tb_frame.f_locals
        if found.get("self") is base and isinstance(found.get("i"), int):
            return f"environment {found['i']} raised"
        trace = trace.tb_next
    return None
