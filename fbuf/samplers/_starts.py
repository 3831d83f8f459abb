"""Which rows a window may start at, known at every moment without looking at more than was written.

A window is `length` rows of one lane, one after the other. A row is a start if its whole window is
there, inside one episode, without a removed row or a dummy. It becomes one when the last row of its
window is written, and is none any more once it is overwritten, or a row of its window is removed.
So what a write changes is as long as the write; no later window contains the overwritten row.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from fbuf import _check, _ring
from fbuf._ring import Ring, Span


@dataclasses.dataclass(frozen=True)
class Window:
    """What makes a row a start.

    Attributes:
        length: Rows of a window, at least 1.
        stride: Only every so-manieth step of a lane is a start.
        first: Only the first row of an episode is one.
        episodes: It matters which starts are in one episode.
    """

    length: int
    stride: int
    first: bool
    episodes: bool = False

    @property
    def every_row(self) -> bool:
        """Whether every row that is there is a start."""
        return self.length == 1 and self.stride == 1 and not self.first and not self.episodes


def completed(ring: Ring, span: Span, window: Window) -> tuple[jax.Array, jax.Array]:
    """The starts whose windows the rows of an add have completed.

    Returns:
        For each row the slot of its window's start, int32 `[B]` in range, and whether it is one.
    """
    places = span.places
    assert places is not None
    earlier = window.length - 1
    slots = _ring.later(ring, jnp.minimum(span.slots, ring.capacity - 1), -earlier)
    # In a chunk longer than a lane the start can be overwritten before its window is complete.
    there = span.drawable & (places.newer + earlier < ring.lane_length)
    there &= places.intact >= window.length
    if window.first:
        there &= places.position == window.length
    if window.stride > 1:
        there &= (slots // ring.lanes) % window.stride == 0
    return slots, there


def containing(ring: Ring, slots: jax.Array, window: Window) -> jax.Array:
    """The starts of all windows that contain these rows, and `capacity` for no row: `[B * L]`."""
    earlier = jnp.arange(window.length, dtype=jnp.int32)[None]
    starts = _ring.later(ring, jnp.minimum(slots, ring.capacity - 1)[:, None], -earlier)
    return jnp.where(slots[:, None] < ring.capacity, starts, ring.capacity).reshape(-1)


def check_options(sampler: str, window: object, stride: object, starts: object) -> None:
    """Refuse what says no window."""
    for name, value in (("window", window), ("stride", stride)):
        _check.positive_int(sampler, name, value, 2**31 - 1)
    if starts not in ("any", "first"):
        raise ValueError(f"fbuf.{sampler}: starts must be 'any' or 'first', got {starts!r}")


def check(sampler: str, ring: Ring, window: Window) -> None:
    """Refuse windows that no lane could ever hold."""
    if window.length > ring.lane_length:
        raise ValueError(
            f"fbuf.init: {sampler}(window={window.length}) is longer than a lane, which has "
            f"{ring.lane_length} rows (capacity {ring.capacity} for {ring.lanes} environments); "
            "make the capacity larger or the window shorter"
        )
    if ring.lane_length % window.stride:
        raise ValueError(
            f"fbuf.init: {sampler}(stride={window.stride}) must divide the length of a lane, "
            f"{ring.lane_length} rows (capacity {ring.capacity} for {ring.lanes} environments), or "
            "steps would lie closer together where the ring closes"
        )


def power(beta: jax.Array | float) -> jax.Array:
    """An exponent of importance weights; 0 for one that cannot be right."""
    beta = jnp.asarray(beta, jnp.float32)
    return jnp.where(beta < jnp.inf, jnp.maximum(beta, 0), 0)


def no_priorities(function: str, sampler: str) -> str:
    """What to say to whom gives priorities to a sampler that keeps none."""
    return (
        f"fbuf.{function}: the buffer's sampler is {sampler}, which keeps no priorities; leave "
        "priority and alpha out, or make the buffer with sampler=fbuf.Prioritized()"
    )


def no_step(step: object, sampler: str) -> None:
    """Refuse a step where every draw is independent of the others."""
    if step is not None:
        raise ValueError(
            f"fbuf.sample: the buffer's sampler is {sampler}, which draws with replacement; leave "
            "step out, or make the buffer with sampler=fbuf.Shuffled()"
        )
