"""Detect changes by other writers since a writer last added rows.

A writer of steps continues behind its newest row. If another writer has added rows meanwhile, or
the buffer is another one, the next row is no continuation. A writer therefore keeps its last cursor
and compares it: any add, clear, load or resize changes the numbers of the heads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.storage.ring import Ring, empty

_SAVE_ID = 3
"""The cursor's row with the save id: a save changes it, but no row of the buffer."""


def nowhere(lanes: int) -> jax.Array:
    """Return the place of a writer that has written nothing: int32 `[rows, lanes]`."""
    like = jax.eval_shape(lambda: empty(1, None, True, "same_step", False, removable=False)).cursor
    return jnp.full((like.shape[0], lanes), -1, jnp.int32)


def place(ring: Ring) -> jax.Array:
    """Return the place behind the newest row of each lane: int32 `[rows, lanes]`, a copy."""
    return jnp.copy(jnp.broadcast_to(ring.cursor, (ring.cursor.shape[0], ring.lanes)))


def changed(cursor: jax.Array, left: jax.Array, lanes: int, shards: int = 1) -> jax.Array:
    """Return a mask of the lanes whose newest rows another writer has changed: bool `[lanes]`.

    Args:
        cursor: int32 `[shards * rows, heads]`; the current cursors, one shard after another.
        left: The cursors that the writer kept, or a `place`.
        lanes: The number of lanes of all shards.
        shards: The number of shards.
    """
    differs = (cursor != left).reshape(shards, -1, max(cursor.shape[1], left.shape[1]))
    other = differs[:, :_SAVE_ID].any(axis=1) | differs[:, _SAVE_ID + 1 :].any(axis=1)
    return jnp.broadcast_to(other, (shards, lanes // shards)).reshape(lanes)
