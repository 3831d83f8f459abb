"""Which rows a window may start at, known at every moment without looking at more than was written.

A window is `length` rows of one lane, one after the other. A row is a start if its whole window is
there, inside one episode, without a removed row or a dummy. It becomes one when the last row of its
window is written, and is none any more once it is overwritten, or a row of its window is removed.
So what a write changes is as long as the write; no later window contains the overwritten row.

Unless a window is strict, the first row of an episode is a start from the first, and its window
ends where the episode does.
"""

from __future__ import annotations

import dataclasses

import chex
import jax
import jax.numpy as jnp
from jax import lax

from fbuf.checks import values as check
from fbuf.storage.ring import DUMMY, ENDS, Ring, Span
from fbuf.xla.rows import read_rows


@dataclasses.dataclass(frozen=True)
class Window:
    """What makes a row a start.

    Attributes:
        length: Rows of a window, at least 1.
        stride: Only every `stride`-th step of a lane is a start.
        first_only: Only the first row of an episode is one.
        by_episode: It matters which starts are in one episode.
        strict: Every window has all of its rows.
    """

    length: int
    stride: int
    first_only: bool
    by_episode: bool = False
    strict: bool = True

    @property
    def every_row(self) -> bool:
        """Whether every row that is there is a start."""
        return self.length == 1 and self.stride == 1 and not self.first_only and not self.by_episode


def completed(ring: Ring, span: Span, window: Window) -> tuple[jax.Array, jax.Array]:
    """The starts whose windows the rows of an add have completed.

    Returns:
        For each row the slot of its window's start, int32 `[B]` in range, and whether it is one.
    """
    in_episode = span.in_episode
    assert in_episode is not None
    earlier = window.length - 1
    written = jnp.minimum(span.slots, ring.capacity - 1)
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
    inside = jnp.minimum(slots, ring.capacity - 1)
    earlier = jnp.arange(window.length, dtype=jnp.int32)[None]
    starts = ring.later(inside[:, None], -earlier)
    contains = jnp.broadcast_to(slots[:, None] < ring.capacity, starts.shape)
    if not window.strict:  # a start of another episode may be as near
        flags = read_rows(ring.flags, starts.reshape(-1)).reshape(starts.shape)
        ended = (flags & (ENDS | DUMMY) > 0).at[:, 0].set(False)
        contains &= lax.cummax(ended.astype(jnp.int32), axis=1) == 0
        contains &= earlier <= ring.older(inside)[:, None]
    return jnp.where(contains, starts, ring.capacity).reshape(-1)


def check_options(
    sampler: str, window: object, stride: object, first_only: object, strict: object
) -> None:
    """Refuse what says no window."""
    check.integer(sampler, "window", window)
    check.integer(sampler, "stride", stride)
    check.boolean(sampler, "first_only", first_only)
    check.boolean(sampler, "strict", strict)


def check_lanes(sampler: str, ring: Ring, window: Window) -> None:
    """Refuse windows that no lane could ever hold."""
    lane, lanes = ring.lane_length, ring.lanes
    here = f"{lane} rows (capacity {ring.capacity} for {lanes} environments)"
    if window.length > lane:
        raise ValueError(
            f"fbuf.init: {sampler}(window={window.length}) is longer than a lane, which has "
            f"{here}; make the capacity larger or the window shorter"
        )
    if lane % window.stride:
        longer = (lane // window.stride + 1) * window.stride * lanes
        shorter = lane // window.stride * window.stride * lanes
        either = f"{shorter} or {longer}" if shorter else f"{longer}"
        raise ValueError(
            f"fbuf.init: {sampler}(stride={window.stride}) must divide the length of a lane, "
            f"{here}; take a capacity of {either}"
        )


def power(beta: chex.Array | float) -> jax.Array:
    """An exponent of importance weights; 0 for one that cannot be right."""
    beta = jnp.asarray(beta, jnp.float32)
    # No infinity, not even to compare with: `jax_debug_infs` would find it.
    return jnp.where(beta <= float(jnp.finfo(jnp.float32).max), jnp.maximum(beta, 0), 0)
