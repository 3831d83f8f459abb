"""Faults: errors inside compiled steps, kept as sticky bits in the state.

An exception from inside a donated call would lose the buffer. So a bad value is skipped and a bit
is set. The host may read the bit at any time.
"""

from __future__ import annotations

import enum

import jax
import jax.custom_batching
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.xla.loop import in_room
from fbuf.xla.platform import by_platform
from fbuf.xla.varying import varying


class Fault(enum.IntFlag):
    """The bits of `State.fault`. Once set, a bit stays until `fbuf.clear`.

    Examples:
        >>> import fbuf
        >>> fbuf.Fault(3)
        <Fault.BAD_PRIORITY|ID_OUT_OF_RANGE: 3>
    """

    BAD_PRIORITY = 1
    """A priority was NaN, infinite, negative, or too large to be summed in float32."""
    ID_OUT_OF_RANGE = 2
    """An id named a slot that the buffer does not have."""
    STALE_ID = 4
    """An id named a row that has been overwritten or removed since it was drawn."""
    LOST_NEXT = 8
    """More episodes ended than the buffer has places for last observations (`max_ends`)."""
    FULL = 16
    """A buffer made with `fbuf.Fifo` was full of unread rows, and left out new ones."""
    LOST_UNREAD = 32
    """A buffer made with `fbuf.Fifo` has lost rows that nobody had read."""
    CALLS_DIFFER = 64
    """Processes drew a batch together, but gave different keys or steps; it is masked."""
    BROKEN_EPISODE = 128
    """A row's observation was not the next one of the row before in an open episode (`next_of`)."""
    NOTHING_TO_DRAW = 256
    """The buffer was full, and no row in it could be drawn."""
    FOREIGN_ID = 512
    """An id named a row of another buffer, or of this one before it was loaded."""


MEANING = {
    Fault.BAD_PRIORITY: (
        "a priority was NaN, infinite, negative or too large; it was skipped (an added row got "
        "the default priority). Look at the TD errors that you passed"
    ),
    Fault.ID_OUT_OF_RANGE: (
        "an id named a slot outside the buffer; it was skipped. Pass the ids that fbuf.sample "
        "returned for this buffer, unchanged"
    ),
    Fault.STALE_ID: (
        "an id named a row that was overwritten or removed since; it was skipped. This is normal "
        "when learning lags behind acting"
    ),
    Fault.LOST_NEXT: (
        "more episodes ended than the buffer keeps last observations of; draws of their last rows "
        "by a view that needs those are masked. Make the buffer with a larger max_ends: "
        "twice the capacity divided by the mean length of an episode is safe"
    ),
    Fault.FULL: (
        "the buffer was full of unread rows and left out new ones. Pop more often, or look at "
        "fbuf.space before you add"
    ),
    Fault.LOST_UNREAD: (
        "rows were lost before anybody had read them: they were overwritten, or the buffer was "
        "made smaller. Pop more often, or make the buffer larger"
    ),
    Fault.CALLS_DIFFER: (
        "processes called fbuf.sample with different keys or steps, and the batch was "
        "masked. Make the key of the same seed in each, and split it in the same way"
    ),
    Fault.BROKEN_EPISODE: (
        "a row was added whose observation is not the next_observation of the row before, and no "
        "episode ended between them: n-step returns and windows go across. If you have reset an "
        "environment, give truncated=True with its last row, or call fbuf.end_episode. If your "
        "observations change between steps (normalised anew, say), store them as they come"
    ),
    Fault.NOTHING_TO_DRAW: (
        "the buffer is full, and not one row can be drawn, so every batch is masked: all "
        "episodes are shorter than the sampler's window, or their starts were overwritten, or "
        "all priorities are 0"
    ),
    Fault.FOREIGN_ID: (
        "an id named a row of another buffer, or was drawn before this one was loaded; it was "
        "skipped. Give each buffer the ids of its own batches"
    ),
}


def bits_where(condition: jax.Array, fault: Fault) -> jax.Array:
    """Return the bit for each True of `condition`: uint32, shaped like the condition."""
    return jnp.where(condition, jnp.uint32(fault), jnp.uint32(0))


@jax.custom_batching.custom_vmap
def collected(fault: jax.Array, bits: jax.Array) -> jax.Array:
    """Return the sticky bits together with the bits of `[B]` entries: uint32 scalar."""
    if bits.shape[0] == 1:
        return fault | bits[0]  # a reduction over one entry XLA leaves out, and its start with it
    # Starting from the sticky bits it is one kernel; vmap does not take such a start. To JAX the
    # result varies over a mesh like the entries, which may be a sampler's constants.
    return lax.reduce(varying(bits, fault), fault, lax.bitwise_or, (0,))


@collected.def_vmap
def _(size: int, batched: list[bool], fault: jax.Array, bits: jax.Array) -> tuple[jax.Array, bool]:
    faults = fault if batched[0] else jnp.broadcast_to(fault, (size,))
    rows = bits if batched[1] else jnp.broadcast_to(bits, (size, *bits.shape))
    joined = lambda rows: lax.reduce(rows, np.uint32(0), lax.bitwise_or, (1,))
    in_a_thread = lambda rows, faults: joined(in_room(rows, faults, 1))  # no second one is woken
    made = by_platform(rows, faults, cpu=in_a_thread, default=lambda rows, faults: joined(rows))
    return faults | made, True
