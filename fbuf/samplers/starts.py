"""Which rows a window may start at, known at every moment without looking at more than was written.

A window is `length` rows of one lane, one after the other. A row is a start if its whole window is
there, inside one episode, without a removed row or a dummy. It becomes one when the last row of its
window is written, and is none any more once it is overwritten, or a row of its window is removed.
So what a write changes is as long as the write; no later window contains the overwritten row.

Unless a window is strict, the first row of an episode is a start from the first, and its window
ends where the episode does.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.windows import Window
from fbuf.storage.ring import DUMMY, ENDS, Ring, Span
from fbuf.xla.rows import read_rows


def completed(ring: Ring, span: Span, window: Window) -> tuple[jax.Array, jax.Array]:
    """The starts whose windows the rows of an add have completed.

    Returns:
        For each row the slot of its window's start, int32 `[B]` in range, and whether it is one.
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
        # The first row has been a start ever since it was written.
        is_start = jnp.where(
            begins, span.drawable, is_start & (in_episode.position > window.length)
        )
    if window.stride > 1:
        is_start &= (slots // ring.lanes) % window.stride == 0
    return slots, is_start


def containing(ring: Ring, slots: jax.Array, window: Window) -> jax.Array:
    """The starts of all windows that contain these rows, and `capacity` for no row: `[B * L]`."""
    inside = ring.clamp(slots)
    earlier = jnp.arange(window.length, dtype=jnp.int32)[None]
    starts = ring.later(inside[:, None], -earlier)
    contains = jnp.broadcast_to(slots[:, None] < ring.capacity, starts.shape)
    if not window.strict:  # a start of another episode may be as near
        flags = read_rows(ring.flags, starts.reshape(-1)).reshape(starts.shape)
        ended = (flags & (ENDS | DUMMY) > 0).at[:, 0].set(False)
        contains &= lax.cummax(ended.astype(jnp.int32), axis=1) == 0
        contains &= earlier <= ring.older(inside)[:, None]
    return jnp.where(contains, starts, ring.capacity).reshape(-1)
