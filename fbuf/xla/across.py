"""What is the largest, or the sum, on all devices and in all shards, or in the one place there is.

`axes` are those of a mesh, inside `shard_map`, or of `vmap`; the last one is the innermost. With no
axes everything stays as it is.
"""

from __future__ import annotations

import jax
from jax import lax


def largest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The largest along axes."""
    for axis in reversed(axes):  # one by one: JAX takes no two of different kinds together
        value = lax.pmax(value, axis)
    return value


def smallest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The smallest along axes."""
    for axis in reversed(axes):
        value = lax.pmin(value, axis)
    return value


def summed(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The sum along axes."""
    for axis in reversed(axes):
        value = lax.psum(value, axis)
    return value
