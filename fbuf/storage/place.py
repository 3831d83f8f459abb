"""Placing rows in chosen slots, instead of behind the newest row."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf.storage.ring import WRITTEN, Ring, Span
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import once, tie


def place(ring: Ring, flags: jax.Array, slots: jax.Array, before: jax.Array) -> tuple[Ring, Span]:
    """Make room for a batch of rows in chosen slots, and write their flags.

    Args:
        ring: The ring; it counts the writes of each slot.
        flags: uint8 `[B]`; the flags of the new rows.
        slots: int32 `[B]`, distinct; `capacity` marks a row that is not kept. Until the buffer is
            full, new slots are taken in order, from slot 0 on.
        before: An array that must have been read before anything is written, see `fbuf.xla.tie`.

    Returns:
        The ring, and the slots of the rows.
    """
    assert ring.writes is not None
    kept, inside = slots < ring.capacity, ring.clamp(slots)
    writes = once(read_rows(ring.writes, inside))
    held = ring.holds(slots)
    was_removed = held & once(ring.is_removed(inside))
    slots = tie(slots, was_removed, writes, before)
    removed = ring.removed
    if removed is not None:
        removed -= jnp.sum(was_removed, dtype=jnp.int32)
    count = jnp.sum(kept & ~held, dtype=jnp.int32)
    stored = ring.stored[0] + count
    is_full = (stored == ring.capacity) & (count > 0)
    lap = ring.lap[0] + is_full.astype(jnp.int32)
    moved = jnp.stack([stored % ring.capacity, lap, stored]).astype(jnp.int32)
    # To a save, a row that replaces another one is a changed row: it is written again.
    changed, unchanged = jnp.uint8(WRITTEN), jnp.uint8(0)
    placed = dataclasses.replace(
        ring,
        cursor=jnp.concatenate([moved[:, None], ring.cursor[3:]]),
        removed=removed,
        flags=write_rows(ring.flags, slots, flags | jnp.where(held, changed, unchanged)),
        writes=write_rows(ring.writes, slots, writes + 1),
    )
    return placed, Span(
        slots=slots,
        first=slots[0],
        drawable=kept,
        evicted=held & ~was_removed,
        in_episode=None,
        count=count[None],
        fields={},
        most=slots.shape[0],
    )
