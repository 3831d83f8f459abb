"""Duplicates in a batch: the last of several entries for one slot, and how many are earlier."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

_SORTED = 1024
"""From more entries than these on, sorting is cheaper than comparing each pair."""


def earlier_of_each(values: jax.Array) -> jax.Array:
    """Count the earlier entries that are equal to each one: int32 `[B]`.

    O(B**2) in two kernels for small B; a stable sort for large B.
    """
    batch = values.shape[0]
    position = jnp.arange(batch, dtype=jnp.int32)
    if batch <= _SORTED:
        earlier = (values[:, None] == values[None, :]) & (position[:, None] > position[None, :])
        return jnp.sum(earlier, axis=1, dtype=jnp.int32)
    ordered, order = lax.sort((values, position), num_keys=1, is_stable=True)
    begins = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    begin = lax.cummax(jnp.where(begins, position, 0))
    return jnp.zeros(batch, jnp.int32).at[order].set(position - begin, unique_indices=True)


def last_of_each(values: jax.Array) -> jax.Array:
    """Mark exactly one entry of each distinct value, the last one: bool `[B]`.

    O(B**2) in two kernels for small B; a stable sort for large B.
    """
    batch = values.shape[0]
    position = jnp.arange(batch, dtype=jnp.int32)
    if batch <= _SORTED:
        later = (values[:, None] == values[None, :]) & (position[:, None] < position[None, :])
        return ~later.any(axis=1)
    ordered, order = lax.sort((values, position), num_keys=1, is_stable=True)
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    return jnp.zeros(batch, bool).at[order].set(last, unique_indices=True)
