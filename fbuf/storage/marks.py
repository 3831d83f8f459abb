"""Marks of rows in their flags: last of an episode, removed, changed."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage.ring import NEXT_BEGINS, REMOVED, TRUNCATED, WRITTEN, Ring
from fbuf.xla.rows import read_rows, write_rows

_FEW = 64
"""The most rows whose sum is written as separate additions."""


def end(
    ring: Ring, lanes: jax.Array, resets: jax.Array | None = None, bits: int = TRUNCATED
) -> tuple[Ring, jax.Array]:
    """Truncate the open episode of some lanes, bool `[lanes]`.

    Args:
        ring: The ring.
        lanes: The lanes to truncate.
        resets: bool `[lanes]`; the lanes that reset next, if rows behind the end are left out; see
            `fbuf.storage.append.resets_after`. None: these lanes do not reset.
        bits: The bits to set in the last rows.

    Returns:
        The ring, and the slots of the rows that now end an episode; `capacity` for lanes without an
        open episode.
    """
    slots = ring.newest()
    flags = read_rows(ring.flags, ring.clamp(slots))
    is_open = (flags & NEXT_BEGINS == 0) & lanes
    slots = jnp.where(is_open, slots, ring.capacity)
    now_open = ring.open
    if now_open is not None:
        closed = lambda leaf: jnp.where(lanes, jnp.zeros_like(leaf), leaf)
        now_open = jax.tree.map(closed, now_open)
        if resets is not None:
            now_open = dataclasses.replace(now_open, resets=resets)
    written = write_rows(ring.flags, slots, flags | jnp.uint8(bits))
    return dataclasses.replace(ring, flags=written, open=now_open), slots


def remove(ring: Ring, slots: jax.Array) -> Ring:
    """Mark rows as removed: int32 `[B]` distinct slots of stored rows, or `capacity`."""
    assert ring.removed is not None
    flags = _flagged(ring, slots, REMOVED)
    now_open = ring.open
    if now_open is not None:
        lane = jnp.where(slots < ring.capacity, slots % ring.lanes, ring.lanes)
        intact = now_open.intact.at[lane].min(ring.newer(slots), mode="drop")
        now_open = dataclasses.replace(now_open, intact=intact)
    removed = ring.removed + jnp.sum(slots < ring.capacity, dtype=jnp.int32)
    return dataclasses.replace(ring, removed=removed, flags=flags, open=now_open)


def fewer_removed(ring: Ring, slots: jax.Array, gone: jax.Array) -> jax.Array | None:
    """Return the count of removed rows after rows were overwritten: int32 scalar, or None.

    Args:
        ring: The ring.
        slots: int32 `[B]`; the written slots, not computed from the overwritten rows.
        gone: bool `[B]`; whether each overwritten row had been removed.
    """
    return None if ring.removed is None else _fewer(ring.removed, gone, slots)


def written(ring: Ring, slots: jax.Array) -> Ring:
    """Mark rows as changed: int32 `[B]` distinct slots of stored rows, or `capacity`."""
    return dataclasses.replace(ring, flags=_flagged(ring, slots, WRITTEN))


def _flagged(ring: Ring, slots: jax.Array, bit: int) -> jax.Array:
    """Return the flags, with a bit set for rows."""
    old = read_rows(ring.flags, ring.clamp(slots))
    return write_rows(ring.flags, slots, old | jnp.uint8(bit))


@jax.custom_batching.custom_vmap
def _fewer(removed: jax.Array, gone: jax.Array, slots: jax.Array) -> jax.Array:
    """Subtract the removed rows that were overwritten in these slots from a count."""
    gone = gone.astype(jnp.int32)
    if gone.shape[0] > _FEW:
        return removed - jnp.sum(gone, dtype=jnp.int32)
    # Separate additions are one kernel on a GPU; a sum would be another kernel.
    return functools.reduce(
        lax.sub,
        [lax.index_in_dim(gone, at, keepdims=False) for at in range(gone.shape[0])],
        removed,
    )


@_fewer.def_vmap
def _(
    size: int, batched: list[bool], removed: jax.Array, gone: jax.Array, slots: jax.Array
) -> tuple[jax.Array, bool]:
    # One count for all buffers has only counted slots that all of them share. If all write the same
    # slots, they overwrite equally many removed rows, and one size remains right.
    if batched[0] or batched[2]:
        return removed - jnp.sum(gone, axis=-1, dtype=jnp.int32), True
    return _fewer(removed, gone[0] if batched[1] else gone, slots), False
