"""What is the largest on all devices, and in all shards, or in the one place there is."""

from __future__ import annotations

import jax
from jax import lax


def largest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The largest along axes of a mesh or of `vmap`; the value itself if there are none."""
    return lax.pmax(value, axes) if axes else value


def smallest(value: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    """The smallest along axes; the value itself if there are none."""
    return lax.pmin(value, axes) if axes else value
