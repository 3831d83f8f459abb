"""Telling whether there is a row to draw."""

from __future__ import annotations

from typing import Any, overload

import jax

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch.call import operation_of_both
from fbuf.sharded_state import ShardedState
from fbuf.state import State


@overload
def can_sample(state: State[Any], min_size: Array | int = 1) -> jax.Array: ...
@overload
def can_sample(state: ShardedState[Any], min_size: Array | int = 1) -> jax.Array: ...
@operation_of_both(checks={"min_size": check.count})
def can_sample(state: State[Any], min_size: Array | int = 1) -> jax.Array:
    """Tell whether there is a row to draw, and at least `min_size` rows are stored.

    A row can be drawn if its priority is above 0. With a window, all steps of the window must be
    stored, too. With `fbuf.Fifo`: tell whether a row is unread, which may be a removed one.

    Args:
        state: The buffer; never consumed.
        min_size: The number of rows that must be stored, an int of at least 0, may be traced. Use
            it to wait for enough rows before learning. Removed rows do not count. With more than
            the capacity the result is never True.

    Returns:
        bool scalar.

    Raises:
        ValueError: If `min_size` is negative.
        TypeError: If `min_size` is not an int.
        RuntimeError: If `state` has been consumed.

    Over a mesh: whether any shard has a row to draw, and all together have `min_size` rows. The
    result is the same on all devices, for two collectives of 4 bytes.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> bool(fbuf.can_sample(state)), bool(fbuf.can_sample(state, 4))
        (True, False)
    """
    enough = state.ring.live() >= min_size
    return enough & state.sampler.can_sample(state.index, state.ring)
