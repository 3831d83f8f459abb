"""Counting unread rows."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.dispatch.call import operation
from fbuf.samplers.protocol.queues import QueueSampler
from fbuf.state import State


@operation()
def unread(state: State[Any]) -> jax.Array:
    """Count the rows of each environment that `fbuf.pop` has not handed out yet.

    Removed rows and dummies of resets among them count, as they do for `fbuf.pop`.

    Args:
        state: The buffer, made with `sampler=fbuf.Fifo()`; never consumed.

    Returns:
        int32 scalar, or `[num_envs]` if environments do not step together.

    Raises:
        ValueError: When traced, if the sampler is not `fbuf.Fifo`.
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=4, sampler=fbuf.Fifo())
        >>> int(fbuf.unread(fbuf.add(state, jnp.arange(3, dtype=jnp.int32))))
        3
    """
    sampler = queue("unread", state)
    return of_environments(state, sampler.unread(state.index, state.ring))


def of_environments(state: State[Any], steps: jax.Array) -> jax.Array:
    """Return a number of each head, in the shape of the result."""
    ring = state.ring
    return steps if ring.num_envs is not None and not ring.lockstep else steps[0]


def queue(function: str, state: State[Any]) -> QueueSampler:
    """Return the sampler; refuse a buffer whose rows are drawn."""
    if not isinstance(state.sampler, QueueSampler):
        raise ValueError(
            f"fbuf.{function}: this buffer draws its rows by {type(state.sampler).__name__}; make "
            "one whose rows are read once, with sampler=fbuf.Fifo()"
        )
    return state.sampler
