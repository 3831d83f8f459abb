"""Counting rows."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.dispatch.call import operation
from fbuf.state import State


@operation()
def size(state: State[Any]) -> jax.Array:
    """Count the rows in the buffer, without removed ones.

    Args:
        state: The buffer; never consumed.

    Returns:
        int32 scalar, from 0 to the capacity.

    Raises:
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> int(fbuf.size(fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))))
        2
    """
    return state.ring.live()
