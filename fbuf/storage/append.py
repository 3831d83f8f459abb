"""Append rows to a ring: choose their slots, write their flags, and place them in episodes."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.storage import episodes, marks
from fbuf.storage.episodes import InEpisode, Open
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED, Ring, Span
from fbuf.xla.loop import zero_after
from fbuf.xla.platform import by_platform
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import tie


def fitting(
    ring: Ring, mask: jax.Array | None, room: jax.Array, batch: int
) -> tuple[jax.Array, jax.Array]:
    """Choose the rows of a batch that fit, given the free steps of each head.

    Args:
        ring: The ring.
        mask: bool `[B]`; the rows to write, as for `append`.
        room: int32 `[heads]`; the free steps of each head.
        batch: `B`.

    Returns:
        bool `[B]` twice: the first of these rows, which fit, and the rows that do not fit.
    """
    meant = jnp.ones(batch, bool) if mask is None else mask
    meant = meant.reshape(-1, ring.heads)
    rank = jnp.cumsum(meant, axis=0, dtype=jnp.uint32) - 1
    fits = rank < room.astype(jnp.uint32)[None] * ring.lanes_per_head
    return (meant & fits).reshape(-1), (meant & ~fits).reshape(-1)


def resets_after(ring: Ring, flags: jax.Array, mask: jax.Array | None) -> jax.Array | None:
    """Return whether each lane resets next, after the rows of the mask.

    Returns:
        bool `[lanes]`; None if the ring does not follow episodes.
    """
    if ring.open is None:
        return None
    return _follow(ring, ring.open, flags, mask, None)[0].resets


def append(
    ring: Ring,
    flags: jax.Array,
    mask: jax.Array | None,
    before: jax.Array,
    dummy: jax.Array | None = None,
) -> tuple[Ring, Span]:
    """Make room for a batch of rows and write their flags.

    Args:
        ring: The ring.
        flags: uint8 `[B]`; the flags of the new rows, step by step, and in a step lane by lane.
        mask: bool `[B]`; the rows to write, which then lie side by side. None is all of them. With
            one head for several lanes it is equal for all rows of a step.
        before: An array that must have been read before anything is written, see `fbuf.xla.tie`.
        dummy: bool `[B]`; the dummies among rows that come from another ring.

    Returns:
        The ring, and the slots of the rows. If more rows come than fit, the last ones are kept.
    """
    rank, count, kept = _ranks(ring, flags.shape[0], mask)
    size, each = jnp.uint32(ring.head_capacity), flags.shape[0] // ring.heads
    head = ring.head.astype(jnp.uint32)
    # Unsigned, for head + batch may pass 2**31; exact, for both are below it.
    lane = jnp.arange(ring.heads, dtype=jnp.uint32)[None]
    _, offset = _laps_and_offset(head[None] + rank, ring.head_capacity, each)
    slots = offset * ring.heads + lane
    slots = jnp.where(kept, slots, ring.capacity).astype(jnp.int32).reshape(-1)
    inside = slots < ring.capacity
    # Rows from before the last clear no longer count as removed.
    held = ring.holds(slots)
    gone, reads = held & False, (before,)
    if ring.removed is not None:
        old = read_rows(ring.flags, ring.clamp(slots))
        # The barrier makes XLA read the flags once. A second read at a later use would need a copy
        # of the flags before the write.
        replaced = lax.optimization_barrier(jnp.where(inside, old, 0))
        # The head moves once these slots are known. Otherwise too much would be ready at once, and
        # XLA on CPU would wake other threads: see `fbuf.xla.loop`.
        head = by_platform(head, replaced, cpu=_after, default=lambda head, _: head)
        gone = held & (replaced & REMOVED > 0)
        reads = replaced, before
    dropped = jnp.maximum(count, size) - size
    _, first = _laps_and_offset(head + dropped, ring.head_capacity, each)
    laps, end = _laps_and_offset(head + count, ring.head_capacity, each)
    removed = marks.fewer_removed(ring, slots, gone)
    slots = tie(slots, *reads)
    now_open, in_episode = ring.open, None
    if now_open is not None:
        now_open, in_episode = _follow(ring, now_open, flags, mask, dummy)
        flags = jnp.where(in_episode.dummy, jnp.uint8(REMOVED | DUMMY), flags)
        if removed is not None:
            removed += jnp.sum(in_episode.dummy & inside, dtype=jnp.int32)
        inside &= ~in_episode.dummy
    lap = ring.lap.astype(jnp.uint32) + laps
    stored = jnp.minimum(ring.stored.astype(jnp.uint32) + count, size)
    moved = jnp.stack([end, lap, stored]).astype(jnp.int32)
    written = dataclasses.replace(
        ring,
        cursor=jnp.concatenate([moved, ring.cursor[3:]]),
        removed=removed,
        flags=write_rows(ring.flags, slots, flags),
        open=now_open,
    )
    return written, Span(
        slots=slots,
        first=first.astype(jnp.int32)[0],
        drawable=inside,
        evicted=held & ~gone,
        in_episode=in_episode,
        count=count.astype(jnp.int32),
        fields={},
        most=min(flags.shape[0], ring.capacity),
        meant=mask,
    )


def _after(head: jax.Array, read: jax.Array) -> jax.Array:
    """Return the head, tied to a read that must come first."""
    return head + zero_after(read).astype(jnp.uint32)


def _laps_and_offset(number: jax.Array, size: int, added: int) -> tuple[jax.Array, jax.Array]:
    """Divide uint32 numbers below `size + added` by `size`: the quotient, and the rest."""
    if added > size:
        return number // jnp.uint32(size), number % jnp.uint32(size)
    # XLA makes a division by itself. A comparison is fused into its user.
    around = number >= size
    return around.astype(jnp.uint32), jnp.where(around, number - jnp.uint32(size), number)


def _ranks(
    ring: Ring, batch: int, mask: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Rank the rows of a batch under each head.

    Returns:
        uint32 `[steps, heads]` ranks; the number of rows, uint32 `[heads]`; and bool `[steps,
        heads]`: whether the row fits.
    """
    if mask is None:
        each = batch // ring.heads
        count = jnp.full(ring.heads, each, jnp.uint32)
        steps = jnp.arange(each, dtype=jnp.uint32)[:, None]
        rank = jnp.broadcast_to(steps, (each, ring.heads))
        return rank, count, rank >= max(each - ring.head_capacity, 0)
    chosen = mask.reshape(-1, ring.heads)
    running = jnp.cumsum(chosen, axis=0, dtype=jnp.uint32)
    count, rank = running[-1], running - 1
    return rank, count, chosen & (count[None] - rank <= ring.head_capacity)


def _follow(
    ring: Ring, before: Open, flags: jax.Array, mask: jax.Array | None, dummy: jax.Array | None
) -> tuple[Open, InEpisode]:
    """Place the new rows of the mask in their episodes."""
    # Only rows that were in a ring already can be cut, and are known to be dummies.
    of_rows = flags & ENDS > 0, dummy, None if dummy is None else flags & CUT > 0
    ends, *known = jax.tree.map(lambda leaf: leaf.reshape(-1, ring.lanes), of_rows)
    if mask is None:
        after, found = episodes.follow(before, ends, None, ring.autoreset, *known)
        return after, jax.tree.map(lambda leaf: leaf.reshape(-1), found)
    chosen, lane = mask.reshape(-1, ring.lanes), jnp.arange(ring.lanes, dtype=jnp.int32)
    running = jnp.cumsum(chosen, axis=0, dtype=jnp.int32)
    rank, count = running - 1, running[-1]
    where = jnp.where(chosen, rank, ends.shape[0])
    side_by_side = lambda steps: jnp.zeros_like(steps).at[where, lane].set(steps, mode="drop")
    ends, *known = jax.tree.map(side_by_side, (ends, *known))
    after, found = episodes.follow(before, ends, count, ring.autoreset, *known)
    position = jnp.maximum(rank, 0)
    return after, jax.tree.map(lambda leaf: leaf[position, lane].reshape(-1), found)
