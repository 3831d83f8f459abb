"""Warnings of rows whose next observation a call has lost: views that need it mask them for good.

Calls from Python on a whole buffer warn. `fbuf.add` does not wait for the device, and only sets
`fbuf.Fault.LOST_NEXT`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np

from fbuf.checks.warn import warn
from fbuf.state import State
from fbuf.storage.faults import Fault
from fbuf.storage.lost_next import lost
from fbuf.xla.place import allocating

S = TypeVar("S")

ROOM = "twice the capacity divided by the mean length of an episode is safe"
"""The advice on `max_ends`."""


def of_call(where: str, remedy: str, change: Callable[..., S], *states: Any) -> S:
    """Return the result of a function of buffers, and warn if it has lost next observations.

    Args:
        where: The function that was called.
        remedy: The advice on how to keep them.
        change: A function of the buffers that returns one.
        states: The buffers: each a `State`, whose faults report lost next observations.
    """
    if not all(_is_seen(state) for state in states):
        return change(*states)
    with allocating():
        bit = jnp.uint32(Fault.LOST_NEXT)
        before = [state.fault & bit for state in states]
        clean = [dataclasses.replace(state, fault=state.fault & ~bit) for state in states]
    new: Any = change(*clean)
    if int(jax.device_get(new.fault)) & Fault.LOST_NEXT:
        of_states(where, [new], remedy)
    fault = new.fault
    for of in before:
        fault |= of
    return dataclasses.replace(new, fault=fault)


def of_states(where: str, states: Sequence[State[Any]], remedy: str, before: int = 0) -> None:
    """Warn of the rows that views mask for lack of their next observation, if there are any.

    Args:
        where: The function that was called.
        states: The buffer, or all shards of one; their rows are not read.
        remedy: The advice on how to keep the next observations.
        before: The number of such rows before the call.
    """
    rows, ends = counted(states)
    if rows <= before:
        return
    warn(
        f"{where}: the next observations of {rows:,} of {ends:,} ends of episodes are not known; "
        "views that need them, such as fbuf.Transition, mask these rows for good; " + remedy
    )


def counted(states: Sequence[State[Any]]) -> tuple[int, int]:
    """Count the rows that views always mask, and all ends, in the shards of a buffer."""
    counts = [lost(state.ring, state.next_obs) for state in states if _is_seen(state)]
    return sum(rows for rows, _ in counts), sum(ends for _, ends in counts)


def _is_seen(state: Any) -> bool:
    """Tell whether a value is a single buffer with next observations, and not traced."""
    fault = state.fault
    if state.next_obs is None or isinstance(fault, jax.core.Tracer):
        return False
    if isinstance(fault, jax.Array):  # the call itself refuses a consumed buffer
        return not fault.ndim and not fault.is_deleted()
    return isinstance(fault, np.ndarray) and not fault.ndim
