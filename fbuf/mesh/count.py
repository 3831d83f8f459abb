"""Counting the rows of all shards, also where their number exceeds int32."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.samplers.chance import wide
from fbuf.sharded_state import Count, ShardedState
from fbuf.xla.across import summed


def is_wide(state: ShardedState[Any]) -> bool:
    """Tell whether the number of rows exceeds int32."""
    return state.capacity > check.LARGEST_INT


def total(state: ShardedState[Any], counts: jax.Array) -> jax.Array | Count:
    """Return the sum of int32 `[shards_of_device]` counts of rows, over all devices."""
    axes = (state.axis,)
    if not is_wide(state):
        return summed(jnp.sum(counts, dtype=jnp.int32), axes)
    halves = counts.astype(jnp.uint32)
    low = summed(jnp.sum(halves & 0xFFFF, dtype=jnp.uint32), axes)
    high = summed(jnp.sum(halves >> 16, dtype=jnp.uint32), axes)
    return Count(*wide.of_halves(high, low))


def at_least(count: jax.Array | Count, least: jax.Array) -> jax.Array:
    """Tell whether a count is at least an int32: bool scalar."""
    if isinstance(count, Count):
        return (count.high > 0) | (count.low >= least.astype(jnp.uint32))
    return count >= least


def as_float(count: jax.Array | Count) -> jax.Array:
    """Return a count as float32, rounded."""
    if isinstance(count, Count):
        return wide.as_float(wide.Wide(count.high, count.low))
    return count.astype(jnp.float32)
