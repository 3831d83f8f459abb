"""Sampling, then adding, in one compiled step: the one order that must be said.

An update of priorities names the rows that were drawn, and so comes after their reading by itself.
An `add` names none. XLA then cannot see that the rows are read before they are overwritten, and
copies the storage. `fbuf.after` says it; whoever leaves it out is warned while tracing.
"""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import jax.core

from fbuf.state import State

_read: dict[int, weakref.ref[Any]] = {}
"""The fault bits of traced states that were sampled. They stand for a state: whatever comes after
the reading of a batch has others."""


def sampled(state: State[Any]) -> None:
    """Take note that a traced state was read."""
    fault = state.fault
    if isinstance(fault, jax.core.Tracer):
        key = id(fault)
        _read[key] = weakref.ref(fault, lambda _: _read.pop(key, None))


def warn_if_sampled(function: str, state: State[Any]) -> None:
    """Warn if a traced state was read, and nothing tells that this comes before what follows."""
    found = _read.get(id(state.fault))
    if found is not None and found() is state.fault:
        warnings.warn(
            f"fbuf.{function}: this compiled step samples the state before it changes it, and XLA "
            "may then copy the whole storage at every step. Call state = fbuf.after(state, batch) "
            f"before fbuf.{function}, or call fbuf.{function} before you sample",
            stacklevel=4,
        )
