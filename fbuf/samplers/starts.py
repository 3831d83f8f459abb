"""Track which rows may start a window, at a cost in proportion to the rows written.

A window is `length` consecutive rows of one lane. A row is a start if its whole window is stored,
inside one episode, without a removed row or a dummy. A row becomes a start when the last row of its
window is written. It ceases to be one when it is overwritten, or when a row of its window is
removed. So a write changes as many starts as it has rows: no later window contains an overwritten
row.

Unless a window is strict, the first row of an episode is a start at once, and its window ends with
the episode.
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.windows import Window
from fbuf.storage.ring import NEXT_BEGINS, Ring, Span
from fbuf.xla.rows import read_rows


def completed(ring: Ring, span: Span, window: Window) -> tuple[jax.Array, jax.Array]:
    """Find the starts whose windows the rows of an add have completed.

    Returns:
        The first slot of the window that ends with each row, int32 `[B]` in range, and whether the
        slot is a start.
    """
    in_episode = span.in_episode
    assert in_episode is not None
    earlier = window.length - 1
    written = ring.clamp(span.slots)
    slots = ring.later(written, -earlier)
    # In a chunk longer than a lane the start can be overwritten before its window is complete.
    is_start = span.drawable & (in_episode.newer + earlier < ring.lane_length)
    is_start &= in_episode.intact >= window.length
    if window.first_only:
        is_start &= in_episode.position == window.length
    if not window.strict:
        begins = in_episode.position == 1
        slots = jnp.where(begins, written, slots)
        # The first row has been a start since it was written.
        is_start = jnp.where(
            begins, span.drawable, is_start & (in_episode.position > window.length)
        )
    if window.stride > 1:
        is_start &= (slots // ring.lanes) % window.stride == 0
    return slots, is_start


def of_moved_rows(
    ring: Ring, slots: jax.Array, window: Window
) -> Iterator[tuple[int, jax.Array, jax.Array]]:
    """Yield the starts whose windows rows may have completed, for `take_over`.

    Args:
        ring: The ring.
        slots: int32 `[B]`; the rows, or `capacity`.
        window: The window.

    Yields:
        How many steps earlier the starts are; their slots, int32 `[B]` in range; and which of them
        there are.
    """
    inside = ring.clamp(slots)
    for earlier in {window.length - 1} | (set() if window.strict else {0}):
        there = (slots < ring.capacity) & (ring.older(inside) >= earlier)
        yield earlier, ring.later(inside, -earlier), there


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
