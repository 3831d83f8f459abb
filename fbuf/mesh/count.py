"""Counting the rows of all shards, also where their number exceeds int32."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.mesh.state import ShardedState
from fbuf.samplers.chance import wide
from fbuf.xla.across import summed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Count:
    """A number of rows that may be 2**31 or more, as two words; `int(count)` is the number.

    Attributes:
        high: uint32 scalar; the upper 32 bits.
        low: uint32 scalar; the lower 32 bits.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> int(fbuf.sharded.Count(jnp.uint32(1), jnp.uint32(5)))
        4294967301
    """

    high: jax.Array
    """uint32 scalar; the upper 32 bits."""
    low: jax.Array
    """uint32 scalar; the lower 32 bits."""

    def __int__(self) -> int:
        """Return the number; wait until it is known."""
        return int(jax.device_get(self.high)) << 32 | int(jax.device_get(self.low))


def is_wide(state: ShardedState[Any]) -> bool:
    """Tell whether int32 cannot count the rows."""
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
