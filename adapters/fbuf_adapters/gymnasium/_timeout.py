"""A limit to the time that environments in processes take: by themselves they wait for ever."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import weakref
from typing import Any

from fbuf_adapters.gymnasium._closing import end
from fbuf_adapters.gymnasium._errors import CollectorError


def limit(envs: Any, seconds: float) -> None:
    """Have a step or a reset raise when it has taken so long, if the environments have that.

    Gymnasium's `AsyncVectorEnv` has it in `step_wait` and `reset_wait`, which its `step` and
    `reset` call without it. They are replaced on the object, so that it holds in wrappers, too.
    """
    base = envs.unwrapped
    for name in ("step_wait", "reset_wait"):
        wait = getattr(type(base), name, None)
        if wait is not None and "timeout" in inspect.signature(wait).parameters:
            # By a proxy, so that environments that nobody has are gone at once.
            setattr(base, name, functools.partial(_waited, weakref.proxy(base), wait, seconds))


def _waited(base: Any, wait: Any, seconds: float) -> Any:
    try:
        return wait(base, timeout=seconds)
    except (multiprocessing.TimeoutError, TimeoutError) as error:
        hanging = [number for number, pipe in enumerate(base.parent_pipes) if not pipe.poll()]
        end(base)  # one that hangs would answer a later call
        who = ", ".join(map(str, hanging))
        raise CollectorError(
            f"Collector: environment {who} hangs, for {seconds:g} s now (timeout={seconds:g}); the "
            "processes of the environments have been ended, so make new ones, and another collector"
        ) from error
