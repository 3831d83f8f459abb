"""Take the modes of a call to the thread that makes batches ahead: each is of one thread.

These are grad and inference mode, autocast, and the default device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

Modes = tuple[Any, ...]

_USUAL: Modes = (True, False, torch.device("cpu"))


def current() -> Modes:
    """The modes of the calling thread: grad, inference, default device, autocasts."""
    # A tensor tells its device in a tenth of the time of `torch.get_default_device`.
    device = torch.empty(0).device
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), device
    if not (torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")):
        return modes
    cached = torch.is_autocast_cache_enabled()
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    return *modes, *((kind, torch.get_autocast_dtype(kind), cached) for kind in on)


def under(modes: Modes, call: Callable[[], Any]) -> Any:
    """Make a call under these modes."""
    if modes == _USUAL:
        return call()
    grad, inference, device, *autocasts = modes
    with contextlib.ExitStack() as stack:
        if inference:
            stack.enter_context(torch.inference_mode())
        stack.enter_context(torch.set_grad_enabled(grad))
        stack.enter_context(device)
        for kind, dtype, cached in autocasts:
            stack.enter_context(torch.autocast(kind, dtype=dtype, cache_enabled=cached))
        return call()
