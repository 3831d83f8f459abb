"""Slots of the rows of each lane, counted from its newest row."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from fbuf.storage.ids import NO_SLOT
from fbuf.storage.ring import Ring


def slots_back(ring: Ring, back: jax.Array, there: jax.Array) -> jax.Array:
    """Return the slots of rows some steps before the newest row of their lane.

    Args:
        ring: The ring.
        back: int32 `[lanes or 1, n]`; the number of steps.
        there: bool `[lanes, n]`; a mask of the rows that exist.

    Returns:
        int32 `[lanes, n]`, or `[n]` without environments; `NO_SLOT` for a missing row.
    """
    slots = jnp.where(there, ring.later(ring.clamp(ring.newest())[:, None], -back), NO_SLOT)
    return slots if ring.num_envs is not None else slots[0]


def oldest_slots(ring: Ring, rows: jax.Array, given: jax.Array, count: int) -> jax.Array:
    """Return the slots of the oldest of the newest `rows` rows of each lane.

    Args:
        ring: The ring.
        rows: int32 `[lanes]` or `[heads]`; the number of newest rows.
        given: int32, as `rows`; the number of rows to return, at most `count`.
        count: The length of the result.

    Returns:
        int32 `[lanes, count]`, or `[count]` without environments; `NO_SLOT` behind the last row.
    """
    step = jnp.arange(count, dtype=jnp.int32)[None]
    of_lane = lambda steps: jnp.broadcast_to(steps, (ring.lanes,))[:, None]
    back = jnp.maximum(of_lane(rows) - 1 - step, 0)
    return slots_back(ring, back, step < of_lane(given))
