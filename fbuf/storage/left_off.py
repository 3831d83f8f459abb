"""Where a writer left off: whether the rows were changed since by somebody else.

A writer of steps goes on behind its newest row. Where another writer has added rows meanwhile, or
the buffer is another one, its next row is no continuation. It keeps the cursor that it left behind,
and compares: any add, clear, load or resize changes the numbers under the heads.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.storage.ring import Ring, empty

_SAVE_ID = 3
"""The row of the cursor that a save changes, which changes no row of the buffer."""


def nowhere(lanes: int) -> jax.Array:
    """Return the place of a writer that has written nothing: int32 `[rows, lanes]`."""
    like = jax.eval_shape(lambda: empty(1, None, True, "same_step", False, removable=False)).cursor
    return jnp.full((like.shape[0], lanes), -1, jnp.int32)


def place(ring: Ring) -> jax.Array:
    """Return the place behind the newest row of each lane: int32 `[rows, lanes]`, a copy."""
    return jnp.copy(jnp.broadcast_to(ring.cursor, (ring.cursor.shape[0], ring.lanes)))


def changed(cursor: jax.Array, left: jax.Array, lanes: int, shards: int = 1) -> jax.Array:
    """Return in which lanes somebody else has changed the newest rows: bool `[lanes]`.

    Args:
        cursor: int32 `[shards * rows, heads]`; the cursors now, one shard after the other.
        left: The cursors that the writer left behind, or a `place`.
        lanes: The number of lanes of all shards.
        shards: The number of shards.
    """
    differs = (cursor != left).reshape(shards, -1, max(cursor.shape[1], left.shape[1]))
    other = differs[:, :_SAVE_ID].any(axis=1) | differs[:, _SAVE_ID + 1 :].any(axis=1)
    return jnp.broadcast_to(other, (shards, lanes // shards)).reshape(lanes)
