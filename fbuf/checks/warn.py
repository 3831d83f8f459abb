"""Warnings that name the caller's line, and not one of this package."""

from __future__ import annotations

import inspect
import sys
import threading
import types
import warnings

_BETWEEN = ("fbuf", "fbuf_adapters", "jax", "torch", "contextlib", "functools", "threading")
"""Modules between the line that warns and that of the caller: JAX traces functions of fbuf."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of a call, where the caller made the call.

    Args:
        message: The text.
        category: The class of the warning.
    """
    frame = _outside(inspect.currentframe())
    if frame is None:  # a thread of fbuf, for which the main thread may be waiting
        # The only way to a frame of another thread.
        frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
        waiting = frames.get(threading.main_thread().ident or 0)
        frame = _outside(waiting) if waiting is not None and _is_between(waiting) else None
    if frame is None:
        warnings.warn(message, category, stacklevel=2)
        return
    name, known = frame.f_globals.get("__name__", ""), "__warningregistry__"
    registry = frame.f_globals.setdefault(known, {})
    path = frame.f_code.co_filename
    warnings.warn_explicit(message, category, path, frame.f_lineno, name, registry)


def _outside(frame: types.FrameType | None) -> types.FrameType | None:
    """Return the frame of the caller of this package; None if there is none."""
    while frame is not None and _is_between(frame):
        frame = frame.f_back
    return frame


def _is_between(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN
