"""The place of a buffer on the time axis, as flashbax counts it: in steps of all environments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

import fbuf

Result = TypeVar("Result")


def of_each(function: Callable[[fbuf.State[Any]], Result], buffer: fbuf.State[Any]) -> Result:
    """Apply a function of a buffer to each of those that `vmap` or `pmap` has stacked."""
    for _ in range(jnp.ndim(buffer.fault)):
        function = jax.vmap(function)
    return function(buffer)


def next_step(buffer: fbuf.State[Any]) -> jax.Array:
    """Return the step that is written next, from 0 on: int32 scalar."""
    return buffer.ring.head[0] // buffer.ring.lanes


def stored_steps(buffer: fbuf.State[Any]) -> jax.Array:
    """Count the stored steps: int32 scalar."""
    return buffer.ring.stored[0] // buffer.ring.lanes


def is_full(buffer: fbuf.State[Any]) -> jax.Array:
    """Return whether every step holds rows: bool scalar."""
    return stored_steps(buffer) == buffer.ring.lane_length


def stored_rows(buffer: fbuf.State[Any]) -> Any:
    """Return the rows where they lie, leaves `[environments, steps, ...]`; zeros for no row."""
    # Programs ask for the shapes of these rows alone. A noted read would make the next change of
    # the buffer wait until all rows are read. So the rows are read of a state that has no change.
    buffer = dataclasses.replace(buffer, fault=jnp.bitwise_or(buffer.fault, 0))
    steps, lanes = buffer.ring.lane_length, buffer.ring.lanes
    slots = jnp.arange(buffer.capacity, dtype=jnp.int32).reshape(steps, lanes).T
    return fbuf.read(buffer, fbuf.ids_at(buffer, slots)).data
