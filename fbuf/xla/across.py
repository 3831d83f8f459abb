"""Maximum, minimum and sum over devices and shards.

`axes` are the axes of a mesh, inside `shard_map`, or of `vmap`; the last one is the innermost.
Without axes every value stays as it is.
"""

from __future__ import annotations

import jax
from jax import lax


def largest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the largest value along axes."""
    for axis in reversed(axes):  # one by one: JAX takes no two of different kinds together
        value = lax.pmax(value, axis)
    return value


def smallest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the smallest value along axes."""
    for axis in reversed(axes):
        value = lax.pmin(value, axis)
    return value


def summed(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """Return the sum along axes."""
    for axis in reversed(axes):
        value = lax.psum(value, axis)
    return value
