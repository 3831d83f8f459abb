"""Rows in the order of time, and whole episodes. Each function reads every slot."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage.ring import DUMMY, ENDS, NEXT_BEGINS, REMOVED, Ring


def in_order(ring: Ring) -> jax.Array:
    """Return the slots of each lane, the oldest row first: int32 `[lane_length, lanes]`.

    In a lane that is not full, slots that hold no row come first.
    """
    back = jnp.arange(ring.lane_length - 1, -1, -1, dtype=jnp.int32)[:, None]
    # Also the empty slots of a lane are its own, so no slot repeats.
    last = ring.capacity - ring.lanes + jnp.arange(ring.lanes, dtype=jnp.int32)
    return ring.later(jnp.minimum(ring.newest(), last)[None], -back)


def whole_episodes(ring: Ring) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the slots of whole episodes, without dummies, one after another by their ends.

    Episodes without a remaining row are left out.

    Returns:
        int32 `[capacity]` slots, and the number of the episode of each, from 0; and an int32
        scalar, the number of these slots, which come first. O(N log N) time.
    """
    slots = in_order(ring)
    flags, there = ring.flags[slots], ring.holds(slots)
    there &= flags & DUMMY == 0
    time = jnp.arange(ring.lane_length, dtype=jnp.int32)[:, None]
    newest = ring.lane_length - 1
    last = jnp.where(there & (flags & ENDS > 0), time, newest)
    # Episodes that end at the same time are numbered lane by lane, each by a number of its own.
    number = lax.cummin(last, axis=0, reverse=True) * ring.lanes
    number += jnp.arange(ring.lanes, dtype=jnp.int32)[None]
    live = jnp.zeros(ring.capacity, bool).at[number].max(there & (flags & REMOVED == 0))
    there &= live[number]
    number = jnp.where(there, number, ring.capacity).reshape(-1)
    number, slots = lax.sort((number, slots.reshape(-1)), num_keys=1, is_stable=True)
    new = jnp.concatenate([jnp.zeros(1, bool), number[1:] != number[:-1]])
    return slots, jnp.cumsum(new, dtype=jnp.int32), jnp.sum(there, dtype=jnp.int32)


def same_episodes(ring: Ring, slots: jax.Array) -> jax.Array:
    """Find all stored rows of the episodes of some rows, without removed rows and dummies.

    Args:
        ring: The ring.
        slots: int32 `[B]`; of stored rows, or `capacity`.

    Returns:
        bool `[capacity]`. O(N) time and memory.
    """
    length, lanes = ring.lane_length, ring.lanes
    ordered = in_order(ring)
    flags = ring.flags[ordered]
    last = ring.holds(ordered) & (flags & NEXT_BEGINS > 0)
    # The number of an episode is the number of last rows before it.
    number = jnp.cumsum(last, axis=0, dtype=jnp.int32) - last.astype(jnp.int32)
    known, inside = slots < ring.capacity, ring.clamp(slots)
    lane = inside % lanes
    wanted = number[length - 1 - ring.newer(inside), lane]
    named = jnp.zeros((length, lanes), bool)
    named = named.at[jnp.where(known, wanted, length), lane].set(True, mode="drop")
    found = jnp.take_along_axis(named, number, axis=0)
    found &= ring.holds(ordered) & (flags & REMOVED == 0)
    return jnp.zeros(ring.capacity, bool).at[ordered].set(found)
