"""Warnings that name the caller's line, and not one of this package."""

from __future__ import annotations

import inspect
import warnings

_BETWEEN = ("fbuf", "fbuf_adapters", "jax", "torch", "contextlib", "functools")
"""Modules between the line that warns and that of the caller: JAX traces functions of fbuf."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn of a call, where the caller made the call.

    Args:
        message: The text.
        category: The class of the warning.
    """
    frame, level = inspect.currentframe(), 1
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
