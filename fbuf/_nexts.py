"""Next observations: read from the following row, and kept aside where there is none.

The observation a step led to is the one the following step began with, and lies in the following
row: to store it a second time would double the memory. In two places that row does not have it: at
the end of an episode, where it belongs to the next one, and at the newest row. Those are kept in a
store of their own, a row for each lane and a ring for the ends of episodes; where each lane has a
head of its own, it has a ring of its own, too.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf import _order, _ring, _rows, _storage
from fbuf._fault import Fault, bits_where
from fbuf._ring import REMOVED, TERMINATED, TRUNCATED, Ring, Span
from fbuf._storage import Storage


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Nexts:
    """What the newest rows and the last rows of episodes led to.

    Attributes:
        rows: `lanes + ends` rows of the field; first that of each lane's newest row, unless that
            ended an episode, then those of ends.
        owner: int32 `[lanes + ends]`; the slot of the row an end belongs to, -1 for none.
        place: int32 `[capacity]`; where in `rows` that of a row lies which ended an episode, -1 for
            nowhere. That it lies there still, the owner tells.
        cursor: int32 `[heads]`; where in the ring of a head the next end goes.
        field: The name of the field; static.
    """

    rows: Storage[Any]
    owner: jax.Array
    place: jax.Array
    cursor: jax.Array
    field: str = dataclasses.field(metadata={"static": True})


def empty(storage: Storage[Any], ring: Ring, field: str, ends: int) -> Nexts:
    """Nothing kept, with room for so many ends, or a few more: as many for each head."""
    ends = -(-ends // ring.heads) * ring.heads
    leaves, tree = jax.tree.flatten(_storage.find("init", "next_of", storage, field))
    specs = [storage.fields[leaf] for leaf in leaves]
    item = [jax.ShapeDtypeStruct(spec.shape, spec.dtype) for spec in specs]
    return Nexts(
        rows=_storage.empty(jax.tree.unflatten(tree, item), ring.lanes + ends),
        owner=jnp.full(ring.lanes + ends, -1, jnp.int32),
        place=jnp.zeros(ring.capacity, jnp.int32),
        cursor=jnp.zeros(ring.heads, jnp.int32),
        field=field,
    )


def add(
    nexts: Nexts, ring: Ring, span: Span, flags: jax.Array, led_to: Any
) -> tuple[Nexts, jax.Array]:
    """Keep what the rows of an add led to, leaves `[B, ...]`, where no following row will have it.

    Args:
        nexts: What is kept.
        ring: The ring with the rows in it.
        span: Their slots.
        flags: uint8 `[B]`; their flags, as they were given.
        led_to: What each led to, leaves `[B, ...]`.

    Returns:
        That, and the fault bits of each row.
    """
    inside = jnp.minimum(span.slots, ring.capacity - 1)
    ends = span.drawable & (flags & (TERMINATED | TRUNCATED) > 0)
    newest = (span.slots < ring.capacity) & (_ring.newer(ring, inside) == 0) & ~ends
    return _keep(nexts, ring, span.slots, ends, newest, led_to)


def end(nexts: Nexts, ring: Ring, slots: jax.Array) -> tuple[Nexts, jax.Array]:
    """Keep what the newest row of each lane led to, now that it is the end of an episode.

    Args:
        nexts: What is kept.
        ring: The ring.
        slots: int32 `[lanes]`; the slots of these rows, `capacity` for lanes that do not end.

    Returns:
        That, and the fault bits of each lane.
    """
    led_to = _storage.read(nexts.rows, jnp.arange(ring.lanes, dtype=jnp.int32))
    ends = slots < ring.capacity
    return _keep(nexts, ring, slots, ends, jnp.zeros_like(ends), led_to)


def _keep(
    nexts: Nexts, ring: Ring, slots: jax.Array, ends: jax.Array, newest: jax.Array, led_to: Any
) -> tuple[Nexts, jax.Array]:
    """Keep what rows at `[B]` slots led to that end an episode, or are the newest of their lane."""
    lanes, heads = ring.lanes, ring.heads
    nowhere = nexts.owner.shape[0]
    room = (nowhere - lanes) // heads
    running = jnp.cumsum(ends.reshape(-1, heads), axis=0, dtype=jnp.uint32)
    rank, count = running - 1, running[-1]
    kept = ends & (count - rank <= room).reshape(-1)
    cursor = nexts.cursor.astype(jnp.uint32)
    first = lanes + room * jnp.arange(heads, dtype=jnp.int32)
    where = first + ((cursor + rank) % jnp.uint32(room)).astype(jnp.int32)
    where = jnp.where(kept, where.reshape(-1), nowhere)
    before = _rows.read(nexts.owner, jnp.minimum(where, nowhere - 1))
    # What is overwritten has been read by then.
    owner = _rows.write(nexts.owner, _order.after(where, _order.never(before)), slots)
    place = _rows.write(nexts.place, slots, jnp.where(kept, where, -1))
    # Someone else's, whose row is still there and looks for it here.
    looks = place.at[jnp.maximum(before, 0)].get(mode="promise_in_bounds") == where
    there = _ring.holds(ring, before)
    there &= _rows.read(ring.flags, jnp.maximum(before, 0)) & REMOVED == 0
    robbed = kept & (before >= 0) & (before != slots) & looks & there
    own = jnp.where(newest, slots % lanes, where)
    return (
        dataclasses.replace(
            nexts,
            rows=_storage.write(nexts.rows, own, led_to),
            owner=owner,
            place=place,
            cursor=((cursor + count) % jnp.uint32(room)).astype(jnp.int32),
        ),
        bits_where(robbed | (ends & ~kept), Fault.LOST_NEXT),
    )


def cleared(nexts: Nexts) -> Nexts:
    """Nothing kept. O(ends)."""
    return dataclasses.replace(nexts, owner=jnp.minimum(nexts.owner, -1), cursor=nexts.cursor & 0)


def read(
    nexts: Nexts, storage: Storage[Any], ring: Ring, slots: jax.Array, flags: jax.Array
) -> tuple[Any, jax.Array]:
    """What rows led to.

    Args:
        nexts: What is kept.
        storage: The rows.
        ring: The ring.
        slots: int32 `[B]`; the slots of the rows.
        flags: uint8 `[B]`; their flags.

    Returns:
        The field, leaves `[B, ...]`, and bool `[B]`: whether it is known.
    """
    ended = flags & (TERMINATED | TRUNCATED) > 0
    newest = _ring.newer(ring, slots) == 0
    place = _rows.read(nexts.place, slots)
    inside = jnp.maximum(place, 0)
    known = ~ended | ((place >= 0) & (_rows.read(nexts.owner, inside) == slots))
    aside = ended | newest
    kept = _storage.read(nexts.rows, jnp.where(ended, inside, slots % ring.lanes))
    leaves, tree = jax.tree.flatten(_storage.find("sample", "next_of", storage, nexts.field))
    following = _storage.read_leaves(storage, _ring.later(ring, slots, 1), leaves)

    def either(kept: jax.Array, following: jax.Array) -> jax.Array:
        return jnp.where(aside.reshape(-1, *(1,) * (kept.ndim - 1)), kept, following)

    return jax.tree.map(either, kept, jax.tree.unflatten(tree, following)), known
