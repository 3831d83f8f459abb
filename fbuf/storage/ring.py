"""The ring: the slot and the generation of each row, and the slots that hold rows.

With several environments, one step of all of them is written at once, side by side. The next row of
a lane lies `lanes` slots later. So lanes change nothing about the ring, and adding a step writes
one stretch of memory. Where environments do not step together, each lane has its own head, which
counts the slots of that lane.

Rows are written in order and the oldest is overwritten first, so slot and generation name a row.
The generation needs no array: it is the lap of the last write to the slot, counted from the tag of
the buffer (`fbuf.storage.tags`). Laps are counted modulo 2**32 (int32 arithmetic wraps), and only
compared for equality. So they cannot overflow in a run of any length.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from fbuf._arrays import Array
from fbuf._pytree import pytree
from fbuf.storage import episodes, tags
from fbuf.storage.episodes import Autoreset, InEpisode, Open
from fbuf.xla.filled import copied, zeros
from fbuf.xla.rows import read_rows

# The bits of a row's flags.
TERMINATED = 1
TRUNCATED = 2
REMOVED = 4
DUMMY = 8
"""The row of a step that only reset its environment; it is marked as removed, too."""
CUT = 16
"""The episode began before this row, in rows that the buffer never got: see `fbuf.resize`."""
WRITTEN = 32
"""`fbuf.write` has changed the row since it was added: a save writes it again."""
UNFINISHED = 64
"""The episode went on behind this row, in rows that the buffer never got: see `fbuf.load`."""
STANDS_IN = 128
"""Another observation stands in for the unknown next one. The row terminated, so its target needs
none. Writers of data sets ask for the flag."""

ENDS = TERMINATED | TRUNCATED

NEXT_BEGINS = ENDS | DUMMY
"""The row after one with any of these bits begins an episode."""


@pytree
class Span:
    """The slots that one add has written.

    With one head they are consecutive, around the end of the ring.

    Attributes:
        slots: int32 `[B]`; the slot of each row of the batch, or `capacity` for a row that was not
            kept.
        first: int32 scalar; the first slot written; with one head.
        drawable: bool `[B]`; the row was kept, and is not the dummy of a reset.
        evicted: bool `[B]`; the row has overwritten a row that had not been removed.
        in_episode: The places of the rows in their episodes, `[B]`; None if the sampler does not
            follow episodes.
        count: int32 `[heads]`; the number of rows, kept or not.
        fields: The fields of the rows that the sampler reads, by name, `[B, ...]` each.
        most: The largest possible number of slots; static.
        meant: bool `[B]`; the rows of the mask of the add, kept or not; None is all rows.
        priority: float32 `[B]`; the priorities from the caller; None without any.
        alpha: The exponent of these priorities, a scalar; None is the sampler's own.
    """

    slots: jax.Array
    first: jax.Array
    drawable: jax.Array
    evicted: jax.Array
    in_episode: InEpisode | None
    count: jax.Array
    fields: dict[str, jax.Array]
    most: int = dataclasses.field(metadata={"static": True})
    meant: jax.Array | None = None
    priority: jax.Array | None = None
    alpha: Array | float | None = None


@pytree
class Ring:
    """The places of all rows.

    Invariants: under each head, offsets `[0, stored)` hold rows written since the last clear. With
    one head an offset is a slot; with a head for each lane an offset is a step of the lane. The
    flags of a slot that holds no row mean nothing.

    Attributes:
        cursor: int32 `[5, heads]`; `head`, `lap`, `stored`, `save_id` and `tag`. They share an
            array, because every array of a state costs time in each call from Python.
        removed: int32 scalar; the number of stored rows that have been removed. None if none can be
            removed, and the ring does not follow episodes.
        flags: uint8 `[capacity]`; the bits of each row, see above.
        open: The open episode of each lane; None if the ring does not follow episodes.
        writes: int32 `[capacity]`; the number of writes of each slot, if a sampler chooses the
            slots of new rows. It then takes the place of the lap. None if rows are written in
            order.
        num_envs: The number of environments; None without environments; static.
        lockstep: Whether environments always step together, so that one head serves all; static.
        autoreset: The behaviour of environments at an end, see `fbuf.storage.episodes`; static.
        shards: The number of rings like this one in the whole buffer; static.
        removable: Whether rows can be removed; static.
    """

    cursor: jax.Array
    removed: jax.Array | None
    flags: jax.Array
    open: Open | None
    writes: jax.Array | None
    num_envs: int | None = dataclasses.field(metadata={"static": True})
    lockstep: bool = dataclasses.field(metadata={"static": True})
    autoreset: Autoreset = dataclasses.field(metadata={"static": True})
    shards: int = dataclasses.field(default=1, metadata={"static": True})
    removable: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def capacity(self) -> int:
        """The number of rows that fit; also right for a batched ring."""
        return self.flags.shape[-1]

    @property
    def lanes(self) -> int:
        """The number of rows of a step."""
        return self.num_envs or 1

    @property
    def lane_length(self) -> int:
        """The number of rows of one environment that fit."""
        return self.capacity // self.lanes

    @property
    def heads(self) -> int:
        """The number of heads."""
        return 1 if self.lockstep else self.lanes

    @property
    def head_capacity(self) -> int:
        """The number of rows under a head that fit."""
        return self.capacity // self.heads

    @property
    def lanes_per_head(self) -> int:
        """The number of lanes under a head, which is the rows of one of its steps."""
        return self.lanes // self.heads

    @property
    def head(self) -> jax.Array:
        """The offset of the next row. int32 `[heads]`."""
        return self.cursor[0]

    @property
    def lap(self) -> jax.Array:
        """The number of times that the head has passed the end, modulo 2**32. int32 `[heads]`."""
        return self.cursor[1]

    @property
    def stored(self) -> jax.Array:
        """The number of offsets that hold a row, removed ones included. int32 `[heads]`."""
        return self.cursor[2]

    @property
    def save_id(self) -> jax.Array:
        """The id of the last save in the buffer's history, 0 without one. int32 `[heads]`."""
        return self.cursor[3]

    @property
    def tag(self) -> jax.Array:
        """The first number of generations, see `fbuf.storage.tags`. int32 `[heads]`."""
        return self.cursor[tags.ROW]

    # Stored rows.

    def count(self) -> jax.Array:
        """Count the stored rows, removed ones included. int32 scalar."""
        return jnp.sum(self.stored, dtype=jnp.int32)

    def live(self) -> jax.Array:
        """Count the stored rows that have not been removed. int32 scalar."""
        return self.count() if self.removed is None else self.count() - self.removed

    def gone(self) -> jax.Array:
        """Count the stored rows that have been removed. int32 scalar."""
        return self.count() - self.live()

    def lane_steps(self) -> jax.Array:
        """Count the stored steps of each lane, removed ones included: int32 `[lanes]`."""
        return jnp.broadcast_to(self.stored // self.lanes_per_head, (self.lanes,))

    def clamp(self, slots: jax.Array) -> jax.Array:
        """Return slots in range: the last slot in place of `capacity`, which stands for no row."""
        return jnp.minimum(slots, self.capacity - 1)

    def has_come_around(self) -> jax.Array:
        """Return whether every slot of some head holds a row. bool scalar."""
        return (self.stored == self.head_capacity).any()

    def filled(self) -> jax.Array:
        """Return the end of the used slots: no later slot holds a row. int32 scalar."""
        return self.stored[0] if self.heads == 1 else jnp.int32(self.capacity)

    def holds(self, slots: jax.Array) -> jax.Array:
        """Return whether slots hold a row; `capacity` does not. bool like `slots`."""
        offset, cursor = self._under_head(slots)
        return (offset < cursor[2]) & (slots < self.capacity)

    def is_removed(self, slots: jax.Array) -> jax.Array:
        """Return whether the rows in slots in range have been removed: bool like `slots`."""
        if self.removed is None:
            return jnp.zeros(slots.shape, bool)
        flags = read_rows(self.flags, slots.reshape(-1)).reshape(slots.shape)
        return flags & REMOVED > 0

    def full(self, slots: jax.Array) -> jax.Array:
        """Return whether the lanes of slots are full: bool, to broadcast with `slots`."""
        return self._under_head(slots)[1][2] == self.head_capacity

    def begin_is_gone(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """Return whether the episodes of stored rows began in overwritten or missing rows: bool.

        In a full lane this is assumed of the oldest row. `flags` are those of the rows.
        """
        return (flags & CUT > 0) | ((self.older(slots) == 0) & self.full(slots))

    # Steps of a lane.

    def later(self, slots: jax.Array, steps: jax.Array | int) -> jax.Array:
        """Return the slots `steps` later in the lane, around the end; fewer than a lane has."""
        size = jnp.uint32(self.capacity)
        by = jnp.asarray(steps, jnp.int32) % self.lane_length * self.lanes
        return ((slots.astype(jnp.uint32) + by.astype(jnp.uint32)) % size).astype(jnp.int32)

    def newer(self, slots: jax.Array) -> jax.Array:
        """Count the rows of its lane that are newer than each of these stored rows. int32."""
        offset, cursor = self._under_head(slots)
        size = jnp.uint32(self.head_capacity)
        behind = (cursor[0].astype(jnp.uint32) + size - 1 - offset.astype(jnp.uint32)) % size
        return (behind // jnp.uint32(self.lanes_per_head)).astype(jnp.int32)

    def older(self, slots: jax.Array) -> jax.Array:
        """Count the rows of its lane that are older than each of these stored rows. int32."""
        stored = self._under_head(slots)[1][2]
        return stored // self.lanes_per_head - 1 - self.newer(slots)

    def newest(self) -> jax.Array:
        """Return the slot of each lane's newest row, `capacity` if empty: int32 `[lanes]`."""
        lane = jnp.arange(self.lanes, dtype=jnp.int32)
        # A step of a head is as many slots as the head has lanes. Unsigned, as the sum of head and
        # capacity may pass 2**31.
        size, step = jnp.uint32(self.head_capacity), jnp.uint32(self.lanes_per_head)
        offset = ((self.head.astype(jnp.uint32) + size - step) % size).astype(jnp.int32)
        slots = offset * self.heads + lane
        return jnp.where(self.stored > 0, slots, self.capacity)

    # Generations.

    def generation_of(self, slots: jax.Array) -> jax.Array:
        """Return the generation of the row in each slot: the lap that wrote it, and the tag.

        Before the head it is this lap, behind the head the lap before. In chosen slots, the number
        of writes of the slot takes the place of the lap.
        """
        if self.writes is not None:
            flat = read_rows(self.writes, slots.reshape(-1))
            return flat.reshape(slots.shape) + self.tag[0]
        offset, cursor = self._under_head(slots)
        return cursor[1] + cursor[4] - (offset >= cursor[0]).astype(jnp.int32)

    def cleared(self) -> Ring:
        """Return the ring without its rows.

        The lap increases, so that earlier ids stay stale. O(1).
        """
        now_open = self.open
        if now_open is not None:  # a clear does not reset environments: due resets stay due
            none = jax.tree.map(jnp.zeros_like, now_open)
            now_open = dataclasses.replace(none, resets=now_open.resets)
        return dataclasses.replace(
            self,
            cursor=jnp.stack([self.head & 0, self.lap + 1, self.stored & 0, *self.cursor[3:]]),
            removed=None if self.removed is None else self.removed & 0,
            open=now_open,
        )

    def _under_head(self, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the offsets of slots under their heads, and the cursor of the heads `[5, ...]`."""
        if self.heads == 1:
            return slots, self.cursor[:, 0]
        offset = slots // self.heads
        of_lane = slots - offset * self.heads
        return offset, self.cursor.at[:, of_lane].get(mode="promise_in_bounds")


def empty(
    capacity: int,
    num_envs: int | None,
    lockstep: bool,
    autoreset: Autoreset,
    follow: bool,
    shards: int = 1,
    places: bool = False,
    tag: jax.Array | int = 0,
    *,
    removable: bool,
) -> Ring:
    """Return a ring without rows.

    With `follow` it tracks the place of each row in its episode, with `places` the number of writes
    of each slot. With `removable` rows can be removed. The ids of its rows count from `tag`, int32.

    A ring that follows episodes counts removed rows in any case. On CPU an add to it is faster with
    the read of the flags: see `fbuf.xla.loop`.
    """
    follow |= autoreset == "next_step"
    heads = 1 if lockstep else num_envs or 1
    return Ring(
        cursor=_tagged(np.zeros((tags.ROW, heads), np.int32), tag),
        removed=zeros((), np.int32) if removable or follow else None,
        flags=zeros(capacity, np.uint8),
        open=episodes.none_open(num_envs or 1) if follow else None,
        writes=zeros(capacity, np.int32) if places else None,
        num_envs=num_envs,
        lockstep=lockstep,
        autoreset=autoreset,
        shards=shards,
        removable=removable,
    )


def _tagged(cursor: np.ndarray, tag: jax.Array | int) -> jax.Array:
    """Return a cursor with a tag."""
    if isinstance(tag, int):  # one array, and no program to make it
        return copied(np.concatenate([cursor, np.full_like(cursor[:1], tag)]))
    return jnp.concatenate([cursor, jnp.broadcast_to(tag, cursor[:1].shape)])
