"""Counting the rows that can still be added."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.dispatch.call import operation
from fbuf.ops.unread import of_environments, queue
from fbuf.state import State


@operation()
def space(state: State[Any]) -> jax.Array:
    """Count the rows of each environment that can be added without losing an unread row.

    Args:
        state: The buffer, made with `sampler=fbuf.Fifo()`; never consumed.

    Returns:
        int32 scalar, or `[num_envs]` if environments do not step together.

    Raises:
        ValueError: When traced, if the sampler is not `fbuf.Fifo`: other buffers always take rows.
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=4, sampler=fbuf.Fifo())
        >>> int(fbuf.space(fbuf.add(state, jnp.arange(3, dtype=jnp.int32))))
        1
    """
    sampler = queue("space", state)
    return of_environments(state, sampler.space(state.index, state.ring))
