"""Room for the ends of episodes: count what is left, and enlarge it.

A buffer keeps the last next observations of a number of ends (`fbuf.storage.next_obs`). The store
of an object that lives on the host can grow before an end is lost. The rows stay where they are,
and so do their ids.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf.state import State
from fbuf.storage import store
from fbuf.storage.next_obs import NextObs
from fbuf.storage.ring import REMOVED, Ring


def room_for_ends(state: State[Any]) -> int:
    """Return the number of ends of episodes that fit the store, of all heads."""
    assert state.next_obs is not None
    return state.next_obs.owner.shape[0] - state.ring.lanes


def free_for_ends(state: State[Any]) -> jax.Array:
    """Return the number of ends that any head can take without a loss: int32. O(ends) reads."""
    kept, ring = state.next_obs, state.ring
    assert kept is not None
    room = room_for_ends(state) // ring.heads
    used = jnp.where(_used(kept, ring), _turns(kept, ring), room)
    return used.min()


def with_room_for_ends(state: State[Any], ends: int) -> State[Any]:
    """Return the buffer with room for more ends, `ends` of all heads; all else is as it was.

    O(ends) time. The rows are not read, and their arrays are those of `state`.
    """
    kept, ring = state.next_obs, state.ring
    assert kept is not None
    room, more = room_for_ends(state) // ring.heads, ends // ring.heads
    head = jnp.arange(ring.heads, dtype=jnp.int32)[None]
    place = jnp.arange(room, dtype=jnp.int32)[:, None] + ring.lanes + room * head
    # The next place to overwrite becomes the first one, and new places come last.
    moved = ring.lanes + more * head + _turns(kept, ring)
    lanes = jnp.arange(ring.lanes, dtype=jnp.int32)
    before = jnp.concatenate([lanes, place.reshape(-1)])
    after = jnp.concatenate([lanes, moved.reshape(-1)])
    old_owner, old_place = kept.owner[before], kept.kept_at
    owner = jnp.full(ring.lanes + more * ring.heads, -1, jnp.int32).at[after].set(old_owner)
    # A row points at its place, unless another row has taken the slot.
    points = (old_owner >= 0) & (old_place[jnp.maximum(old_owner, 0)] == before)
    slots = jnp.where(points & (before >= ring.lanes), old_owner, ring.capacity)
    rows = store.empty(kept.rows.item, ring.lanes + more * ring.heads)
    turns = kept.cursor[1] + 1
    grown = NextObs(
        rows=rows.write(after, kept.rows.read(before)),
        owner=owner,
        kept_at=old_place.at[slots].set(after, mode="drop"),
        cursor=jnp.stack([jnp.full_like(turns, room % more), turns]),
        field=kept.field,
    )
    return dataclasses.replace(state, next_obs=grown)


def _turns(kept: NextObs, ring: Ring) -> jax.Array:
    """Return the number of ends until each place is overwritten: int32 `[room, heads]`."""
    room = (kept.owner.shape[0] - ring.lanes) // ring.heads
    return (jnp.arange(room, dtype=jnp.int32)[:, None] - kept.cursor[:1]) % room


def _used(kept: NextObs, ring: Ring) -> jax.Array:
    """Return a mask of the places of stored rows: bool `[room, heads]`."""
    owner = kept.owner[ring.lanes :]
    inside = jnp.maximum(owner, 0)
    place = jnp.arange(ring.lanes, kept.owner.shape[0], dtype=jnp.int32)
    used = (owner >= 0) & (kept.kept_at[inside] == place) & ring.holds(inside)
    used &= ring.flags[inside] & REMOVED == 0
    return used.reshape(ring.heads, -1).T
