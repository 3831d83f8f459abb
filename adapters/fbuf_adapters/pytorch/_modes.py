"""Take the grad, inference and autocast modes of a call to the thread that makes batches ahead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

Modes = tuple[Any, ...]

_USUAL: Modes = (True, False)


def current() -> Modes:
    """The modes of the calling thread: grad, inference, and autocast on CPU and on GPUs."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        return modes
    cached = torch.is_autocast_cache_enabled()
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return *modes, *((kind, torch.get_autocast_dtype(kind), cached) for kind in on)


def under(modes: Modes, call: Callable[[], Any]) -> Any:
    """Make a call under these modes."""
    if modes == _USUAL:
        return call()
    grad, inference, *autocasts = modes
    with contextlib.ExitStack() as stack:
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        for kind, dtype, cached in autocasts:
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cached))
        return call()
