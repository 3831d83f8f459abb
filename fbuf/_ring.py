"""The ring: which slot a row gets, which generation it is, and which rows are there.

Rows are written in order and the oldest is overwritten first, so a row is named by its slot and
its generation, and the generation needs no array: it is the lap during which the slot was last
written. Laps are counted modulo 2**32 (int32 arithmetic wraps), and only ever compared for
equality, so they cannot overflow in a run of any length.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf import _order, _rows

# The bits of a row's flags.
TERMINATED = 1
TRUNCATED = 2
REMOVED = 4

NO_SLOT = -1
"""The slot of an id that names no row, as in the masked part of a sample."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ids:
    """Names of rows: the slot, and the generation that tells a row from its successors there.

    Attributes:
        slot: int32 in `[0, capacity)`, or -1 for "no row".
        generation: int32; which lap of the ring wrote the row. Only equality means anything.

    Example:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.ones(1))
        >>> fbuf.sample(state, jax.random.key(0), 2).ids
        Ids(slot=Array([0, 0], dtype=int32), generation=Array([0, 0], dtype=int32))
    """

    slot: jax.Array
    generation: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ring:
    """Where rows live. Invariant: slots `[0, stored)` have been written since the last clear.

    Attributes:
        cursor: int32 `[3]`; `head`, `lap` and `stored`. One array, for every array of a state
            costs time whenever a function is called from Python.
        removed: int32 scalar; how many stored rows have been removed.
        flags: uint8 `[capacity]`; the bits TERMINATED, TRUNCATED and REMOVED of each row.
    """

    cursor: jax.Array
    removed: jax.Array
    flags: jax.Array

    @property
    def capacity(self) -> int:
        """How many rows there is room for; also right for a batched ring."""
        return self.flags.shape[-1]

    @property
    def head(self) -> jax.Array:
        """The slot the next row goes to. int32 scalar."""
        return self.cursor[0]

    @property
    def lap(self) -> jax.Array:
        """How often the head has passed the end, modulo 2**32. int32 scalar."""
        return self.cursor[1]

    @property
    def stored(self) -> jax.Array:
        """How many slots hold a row, removed ones included. int32 scalar."""
        return self.cursor[2]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Span:
    """The consecutive slots one add has written, around the end of the ring if need be.

    Attributes:
        slots: int32 `[B]`; the slot of each row of the batch, or `capacity` if it was not kept.
        first: int32 scalar; the first slot written.
        last: int32 scalar; the last slot written.
        vacated: bool `[B]`; the slot's flags said REMOVED until now.
        most: How many slots there are at most; static.
    """

    slots: jax.Array
    first: jax.Array
    last: jax.Array
    vacated: jax.Array
    most: int = dataclasses.field(metadata={"static": True})


def empty(capacity: int) -> Ring:
    """A ring without rows."""
    return Ring(
        cursor=jnp.zeros(3, jnp.int32),
        removed=jnp.int32(0),
        flags=jnp.zeros(capacity, jnp.uint8),
    )


def cleared(ring: Ring) -> Ring:
    """The ring without its rows. The lap moves on, so ids from before stay stale. O(1)."""
    return dataclasses.replace(
        ring,
        cursor=jnp.stack([jnp.int32(0), ring.lap + 1, jnp.int32(0)]),
        removed=jnp.zeros_like(ring.removed),
    )


def append(ring: Ring, flags: jax.Array, mask: jax.Array | None) -> tuple[Ring, Span]:
    """Make room for a batch of rows and write their flags.

    Args:
        ring: The ring.
        flags: uint8 `[B]`; the flags of the new rows.
        mask: bool `[B]`; the rows to write, which then lie side by side. None is all of them.

    Returns:
        The ring, and the slots its rows went to. Of more rows than the ring has slots, the last
        `capacity` are kept.
    """
    capacity, batch = ring.capacity, flags.shape[0]
    if mask is None:
        count, rank = jnp.uint32(batch), jnp.arange(batch, dtype=jnp.uint32)
        kept = rank >= max(batch - capacity, 0)
    else:
        running = jnp.cumsum(mask, dtype=jnp.uint32)
        count, rank = running[-1], running - 1
        kept = mask & (count - rank <= capacity)
    size = jnp.uint32(capacity)
    position = ring.head.astype(jnp.uint32)
    # Unsigned, for head + batch may pass 2**31; exact, for both are below it.
    slots = jnp.where(kept, (position + rank) % size, size).astype(jnp.int32)
    dropped = jnp.maximum(count, size) - size
    end = position + count
    old = _rows.read(ring.flags, jnp.minimum(slots, capacity - 1))
    # The barrier has it computed once. Computed again where it is used, the flags would have to be
    # copied for that before they are written.
    vacated = lax.optimization_barrier((slots < capacity) & (old & REMOVED > 0))
    # Of the rows from before the last clear none is counted as removed any more.
    removed = ring.removed - jnp.sum(vacated & (slots < ring.stored), dtype=jnp.int32)
    slots = _order.after(slots, removed < 0)
    head, lap = end % size, ring.lap.astype(jnp.uint32) + end // size
    stored = jnp.minimum(ring.stored.astype(jnp.uint32) + count, size)
    written = Ring(
        cursor=jnp.stack([head, lap, stored]).astype(jnp.int32),
        removed=removed,
        flags=_rows.write(ring.flags, slots, flags),
    )
    first = ((position + dropped) % size).astype(jnp.int32)
    last = ((end + size - 1) % size).astype(jnp.int32)
    return written, Span(slots, first, last, vacated, most=min(batch, capacity))


def remove(ring: Ring, slots: jax.Array) -> Ring:
    """Mark rows as removed: int32 `[B]` slots of stored rows, none twice, `capacity` for none."""
    flags = _rows.read(ring.flags, jnp.minimum(slots, ring.capacity - 1)) | jnp.uint8(REMOVED)
    return dataclasses.replace(
        ring,
        removed=ring.removed + jnp.sum(slots < ring.capacity, dtype=jnp.int32),
        flags=_rows.write(ring.flags, slots, flags),
    )


def generation_of(ring: Ring, slots: jax.Array) -> jax.Array:
    """The lap that wrote each slot last: this one before the head, the last one behind it."""
    return ring.lap - (slots >= ring.head).astype(jnp.int32)


def name(ring: Ring, slots: jax.Array, mask: jax.Array) -> Ids:
    """The ids of rows, and "no row" where `mask` is False."""
    return Ids(
        slot=jnp.where(mask, slots, NO_SLOT),
        generation=jnp.where(mask, generation_of(ring, slots), 0),
    )


def find(ring: Ring, ids: Ids) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Look rows up by id.

    Returns:
        Three bool arrays shaped like the ids: the row is still there; the slot does not exist;
        the row has been overwritten or removed. All are False for "no row".
    """
    slot = ids.slot
    inside = (slot >= 0) & (slot < ring.capacity)
    same = (slot < ring.stored) & (ids.generation == generation_of(ring, slot))
    flags = _rows.read(ring.flags, jnp.where(inside, slot, 0))
    live = inside & same & (flags & REMOVED == 0)
    return live, ~inside & (slot != NO_SLOT), inside & ~live
