"""Counting rows."""

from __future__ import annotations

from typing import Any, overload

import jax

from fbuf.dispatch.call import operation_of_both
from fbuf.sharded_state import Count, ShardedState
from fbuf.state import State


@overload
def size(state: State[Any]) -> jax.Array: ...
@overload
def size(state: ShardedState[Any]) -> jax.Array | Count: ...
@operation_of_both()
def size(state: State[Any]) -> jax.Array:
    """Count the rows in the buffer, without removed ones.

    Args:
        state: The buffer; never consumed.

    Returns:
        int32 scalar, from 0 to the capacity.

    Raises:
        RuntimeError: If `state` has been consumed.

    Over a mesh: the rows of all shards, the same number on all devices, for one collective of 4
    bytes. If the capacity is 2**31 or more it is a `fbuf.sharded.Count`; `int(...)` works for both.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> int(fbuf.size(fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))))
        2
    """
    return state.ring.live()
