"""Reading and writing rows of an array: the one place where storage is touched."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.xla.loop import by_halves, fetched, gathered

_LONG = 64
"""From so many numbers on XLA's own gather is the fastest: it then reads a row by vectors."""

_FETCHED = 8
"""A row of more numbers is looked at beforehand, if it is of a large array."""


def read_rows(leaf: jax.Array, slots: jax.Array) -> jax.Array:
    """The rows of `[capacity, ...]` at `[B]` slots, each of which must be in range.

    XLA on CPU hands every gather from a large array to its thread pool, which costs more than
    reading a few short rows (`benchmarks/ablations/row_access.py`).
    """
    count, size = slots.shape[0], leaf.size // leaf.shape[0]
    if count == 0:
        return jnp.zeros((0, *leaf.shape[1:]), leaf.dtype)
    if count == 1:
        # A single row XLA would read again wherever it is used, also after the array is written,
        # and would copy the whole array to be able to.
        return read_rows(leaf, jnp.concatenate([slots, slots]))[:1]

    def gather(slots: jax.Array) -> jax.Array:
        return gathered(leaf, (slots,))

    if size >= _LONG:
        return gather(slots)
    if size > _FETCHED:
        slots = fetched(leaf, slots, slots)
    return by_halves(gather, slots)


def write_rows(leaf: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """The array with `[B]` rows written to distinct slots; a slot of `capacity` is left out."""
    return leaf.at[slots].set(rows, mode="drop", unique_indices=True)
