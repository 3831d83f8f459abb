"""Reading and writing rows of an array: the one place where storage is touched."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.loop import blank, fetched, is_large, zero_after

_SMALL_ROW = 32
_SMALL_BATCH = 512


def read_rows(leaf: jax.Array, slots: jax.Array) -> jax.Array:
    """The rows of `[capacity, ...]` at `[B]` slots, each of which must be in range.

    XLA on CPU hands every gather from a large array to its thread pool, which costs more than
    reading a few small rows one by one (`benchmarks/ablations/row_access.py`).
    """

    def loop(leaf: jax.Array, slots: jax.Array) -> jax.Array:
        def body(i: jax.Array, rows: jax.Array) -> jax.Array:
            row = lax.dynamic_index_in_dim(leaf, slots[i], allow_negative_indices=False)
            return lax.dynamic_update_index_in_dim(rows, row, i, 0, allow_negative_indices=False)

        if is_large(leaf.size, leaf.dtype):
            slots = fetched(leaf, slots, slots)
        zero = zero_after(slots)
        rows = blank(zero, rows_shape, leaf.dtype)
        return lax.fori_loop(zero, slots.shape[0], body, rows)

    def gather(leaf: jax.Array, slots: jax.Array) -> jax.Array:
        return leaf.at[slots].get(mode="promise_in_bounds")

    rows_shape = (slots.shape[0], *leaf.shape[1:])
    row_bytes = leaf.dtype.itemsize * (leaf.size // leaf.shape[0])
    if slots.shape[0] == 0:
        return jnp.zeros(rows_shape, leaf.dtype)
    if slots.shape[0] == 1:
        # A single row XLA would read again wherever it is used, also after the array is written,
        # and would copy the whole array to be able to.
        return read_rows(leaf, jnp.concatenate([slots, slots]))[:1]
    if row_bytes > (_SMALL_ROW if slots.shape[0] <= _SMALL_BATCH else 1):
        return gather(leaf, slots)
    return lax.platform_dependent(leaf, slots, cpu=loop, default=gather)


def write_rows(leaf: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """The array with `[B]` rows written to distinct slots; a slot of `capacity` is left out."""
    return leaf.at[slots].set(rows, mode="drop", unique_indices=True)
