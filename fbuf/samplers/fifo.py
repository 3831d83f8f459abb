"""Rows that are used once, in the order in which they were written."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._pytree import pytree
from fbuf.checks import values as check
from fbuf.samplers.protocol.queues import QueueSampler
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ring import Ring, Span
from fbuf.xla.filled import zeros


@pytree
class FifoIndex:
    """The number of steps between the reader and the writer.

    Attributes:
        unread: int32 `[heads]`; the number of steps of each head that no `fbuf.pop` has handed out.
            They are its newest ones.
    """

    unread: jax.Array


@dataclasses.dataclass(frozen=True)
class Fifo(QueueSampler):
    """Read every row once, the oldest first: a queue for on-policy data.

    `state, batch = fbuf.pop(state, count)` reads the oldest unread rows of each environment, and
    `fbuf.sample` is not for such a buffer. Rows that were read stay stored until new rows
    replace them: until then their ids are good for `fbuf.read` and `fbuf.write`.

    A buffer full of unread rows takes no more rows. Then `fbuf.add` writes the first rows of a
    batch that fit, leaves out the other ones, and sets `Fault.FULL`. It truncates the newest row,
    because the next row to be written will not follow it. The next row need not be the first step
    of its episode, but `is_first` of `fbuf.Sequence` is True there. Look at `fbuf.space` before you
    add.

    Attributes:
        overwrite: A full buffer keeps the newest rows instead. Rows that nobody has read are lost,
            and `Fault.LOST_UNREAD` is set. Keyword only.

    Cost: that of the rows alone; 4 bytes for each head.

    Raises:
        TypeError: If `overwrite` is not a bool.
        ValueError: When traced, if you call `fbuf.sample` or `fbuf.update_priority`, or give
            `fbuf.add` a priority.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=4, sampler=fbuf.Fifo())
        >>> state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))
        >>> state, batch = fbuf.pop(state, 2)
        >>> batch.data, int(fbuf.unread(state)), int(fbuf.space(state))
        (Array([0, 1], dtype=int32), 1, 3)
        >>> state, batch = fbuf.pop(state, 2)
        >>> batch.data, batch.mask
        (Array([2, 0], dtype=int32), Array([ True, False], dtype=bool))

    References:
        Espeholt et al., arXiv:1802.01561 (IMPALA, whose learner reads a queue);
        Cassirer et al., arXiv:2102.04736 (queues in Reverb).
    """

    _: dataclasses.KW_ONLY
    overwrite: bool = False

    def __post_init__(self) -> None:
        check.boolean("Fifo", "overwrite", self.overwrite)

    def init(self, ring: Ring) -> FifoIndex:
        """Return an index without unread steps."""
        return FifoIndex(zeros(ring.heads, np.int32))

    def add(self, index: FifoIndex, ring: Ring, span: Span) -> tuple[FifoIndex, jax.Array]:
        """Count the new rows as unread, besides the earlier unread rows that are still stored."""
        steps = span.count // ring.lanes_per_head
        behind = index.unread.astype(jnp.uint32) + steps.astype(jnp.uint32)
        length = jnp.uint32(ring.lane_length)
        lost = bits_where((behind > length).any(), Fault.LOST_UNREAD)
        unread = jnp.minimum(behind, length).astype(jnp.int32)
        return FifoIndex(unread), jnp.broadcast_to(lost, span.slots.shape)

    def remove(self, index: FifoIndex, ring: Ring, slots: jax.Array) -> FifoIndex:
        """Keep the rows' places in the order; `fbuf.pop` masks them there."""
        return index

    def unread(self, index: FifoIndex, ring: Ring) -> jax.Array:
        """Return the number of unread steps of each head."""
        return index.unread

    def space(self, index: FifoIndex, ring: Ring) -> jax.Array:
        """Count the steps that hold no unread row."""
        return ring.lane_length - index.unread

    def popped(self, index: FifoIndex, steps: jax.Array) -> FifoIndex:
        """Return the index with fewer unread steps."""
        return FifoIndex(index.unread - steps)

    def room(self, index: FifoIndex, ring: Ring) -> jax.Array | None:
        """Count the steps without an unread row; any number if unread rows may be lost."""
        return None if self.overwrite else self.space(index, ring)

    def stats(self, index: FifoIndex, ring: Ring) -> dict[str, jax.Array]:
        """Return the number of unread rows of all environments together."""
        return {"unread": jnp.sum(index.unread, dtype=jnp.int32) * ring.lanes_per_head}
