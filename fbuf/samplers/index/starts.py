"""Track which rows may start a window, at a cost in proportion to the rows written.

A window is `length` consecutive rows of one lane. A row is a start if its whole window is stored in
one episode, without removed rows or dummies. A row becomes a start when the last row of its window
is written. It ceases to be one when it is overwritten, or when a row of its window is removed. So a
write changes as many starts as it has rows: no later window contains an overwritten row.

Unless a window is strict, the first row of an episode is a start at once. Its window ends with the
episode.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.protocol.conditions import Window
from fbuf.storage.episodes import InEpisode
from fbuf.storage.ring import NEXT_BEGINS, Ring, Span
from fbuf.xla.rows import read_rows


def completed(ring: Ring, span: Span, window: Window) -> tuple[jax.Array, jax.Array]:
    """Find the starts whose windows the rows of an add have completed.

    Returns:
        The first slot of the window that ends with each row, int32 `[B]` in range. Then a mask of
        the slots that are starts.
    """
    in_episode = span.in_episode
    assert in_episode is not None
    earlier = window.length - 1
    written = ring.clamp(span.slots)
    slots = ring.later(written, -earlier)
    # In a chunk longer than a lane the start can be overwritten before its window is complete.
    is_start = span.drawable & (in_episode.newer + earlier < ring.lane_length)
    is_start &= _completes(in_episode, window)
    if not window.strict:
        begins = in_episode.position == 1
        slots = jnp.where(begins, written, slots)
        is_start = jnp.where(begins, span.drawable, is_start)
    if window.stride > 1:
        is_start &= (slots // ring.lanes) % window.stride == 0
    return slots, is_start


def overwritten_at_once(ring: Ring, span: Span, window: Window) -> jax.Array:
    """Count the starts that an add has both made and overwritten: int32 scalar."""
    in_episode, earlier = span.in_episode, window.length - 1
    assert in_episode is not None
    steps = in_episode.newer.shape[0] // ring.lanes
    if steps + earlier <= ring.lane_length:
        return jnp.int32(0)
    back = in_episode.newer + earlier
    is_start = _completes(in_episode, window)
    if not window.strict:
        begins = in_episode.position == 1
        back, is_start = jnp.where(begins, in_episode.newer, back), begins | is_start
    is_start &= ~in_episode.dummy & (back >= ring.lane_length)
    if span.meant is not None:
        is_start &= span.meant
    if window.stride > 1:  # rows that were not kept count as steps, but have no slot
        newest = jnp.broadcast_to(ring.newest(), (steps, ring.lanes)).reshape(-1)
        is_start &= (ring.later(ring.clamp(newest), -back) // ring.lanes) % window.stride == 0
    return int32_sum(is_start)


def _completes(in_episode: InEpisode, window: Window) -> jax.Array:
    """Return whether each row is the last one of a window: bool `[B]`.

    Unless windows are strict, the first row of an episode is a start before its window is complete.
    So the window is left out.
    """
    complete = in_episode.intact >= window.length
    if window.first_only:
        complete &= in_episode.position == window.length
    return complete if window.strict else complete & (in_episode.position > window.length)


def of_moved_rows(
    ring: Ring, slots: jax.Array, window: Window
) -> Iterator[tuple[int, jax.Array, jax.Array]]:
    """Yield the starts whose windows rows may have completed, for `take_over`.

    Args:
        ring: The ring.
        slots: int32 `[B]`; the rows, or `capacity`.
        window: The window.

    Yields:
        The number of steps from each start to its row; the slots, int32 `[B]` in range; a mask of
        the real starts.
    """
    inside, last = ring.clamp(slots), window.length - 1
    for earlier in {last} | (set() if window.strict else {0}):
        there = (slots < ring.capacity) & (ring.older(inside) >= earlier)
        if earlier and not window.strict:  # a start of another episode may be as near
            there &= _in_one_episode(ring, inside, earlier)
        yield earlier, ring.later(inside, -earlier), there


def _in_one_episode(ring: Ring, slots: jax.Array, earlier: int) -> jax.Array:
    """Return whether the `earlier` rows before each slot are of its episode: bool `[B]`."""

    def turn(back: jax.Array, alike: jax.Array) -> jax.Array:
        flags = read_rows(ring.flags, ring.later(slots, -back))
        return alike & (flags & NEXT_BEGINS == 0)

    return lax.fori_loop(jnp.int32(1), jnp.int32(earlier + 1), turn, slots >= 0)


def containing(ring: Ring, slots: jax.Array, window: Window) -> jax.Array:
    """Find the starts of all windows with these rows, `capacity` for no row: `[B * L]`."""
    inside = ring.clamp(slots)
    earlier = jnp.arange(window.length, dtype=jnp.int32)[None]
    starts = ring.later(inside[:, None], -earlier)
    contains = jnp.broadcast_to(slots[:, None] < ring.capacity, starts.shape)
    if not window.strict:  # a start of another episode may be as near
        flags = read_rows(ring.flags, starts.reshape(-1)).reshape(starts.shape)
        ended = (flags & NEXT_BEGINS > 0).at[:, 0].set(False)
        contains &= lax.cummax(ended.astype(jnp.int32), axis=1) == 0
        contains &= earlier <= ring.older(inside)[:, None]
    return jnp.where(contains, starts, ring.capacity).reshape(-1)


def int32_sum(counts: jax.Array) -> jax.Array:
    """Return the sum of counts, in int32 also where JAX has 64-bit types: a scalar."""
    return jnp.sum(counts, dtype=jnp.int32)
