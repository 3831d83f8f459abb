"""The ring: which slot a row gets, which generation it is, and which rows are there.

With several environments, one step of all of them is written at once, side by side: the row that
follows another one in its lane is `lanes` slots further on. So lanes change nothing about the ring,
and to add a step is to write one stretch of memory. Where environments do not step together, each
lane has a head of its own, which counts the lane's slots alone; all else is the same.

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

from fbuf import _episodes, _order, _rows
from fbuf._episodes import Autoreset, Open, Places

# The bits of a row's flags.
TERMINATED = 1
TRUNCATED = 2
REMOVED = 4
DUMMY = 8
"""The row of a step that only reset its environment; it is marked as removed, too."""

NO_SLOT = -1
"""The slot of an id that names no row, as in the masked part of a sample."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ids:
    """Names of rows: the slot, and the generation that tells a row from its successors there.

    Attributes:
        slot: int32 in `[0, capacity)`, or -1 for "no row".
        generation: int32; which lap of the ring wrote the row. Only equality means anything.

    Examples:
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
    """Where rows live.

    Invariant: of each head, places `[0, stored)` hold rows written since the last clear. With one
    head a place is a slot; with one a lane it is the step in the lane.

    Attributes:
        cursor: int32 `[3, heads]`; `head`, `lap` and `stored`. One array, for every array of a
            state costs time whenever a function is called from Python.
        removed: int32 scalar; how many stored rows have been removed.
        flags: uint8 `[capacity]`; the bits of each row, see above.
        open: The episode each lane is in; None if nobody asks for it.
        num_envs: How many environments there are, None if they are not told apart; static.
        lockstep: Whether they always step together, so that one head does for all; static.
        autoreset: What environments do at an end, see `fbuf._episodes`; static.
    """

    cursor: jax.Array
    removed: jax.Array
    flags: jax.Array
    open: Open | None
    num_envs: int | None = dataclasses.field(metadata={"static": True})
    lockstep: bool = dataclasses.field(metadata={"static": True})
    autoreset: Autoreset = dataclasses.field(metadata={"static": True})

    @property
    def capacity(self) -> int:
        """How many rows there is room for; also right for a batched ring."""
        return self.flags.shape[-1]

    @property
    def lanes(self) -> int:
        """How many rows a step has."""
        return self.num_envs or 1

    @property
    def lane_length(self) -> int:
        """How many rows of one environment there is room for."""
        return self.capacity // self.lanes

    @property
    def heads(self) -> int:
        """How many heads there are."""
        return 1 if self.lockstep else self.lanes

    @property
    def places(self) -> int:
        """How many rows a head has room for."""
        return self.capacity // self.heads

    @property
    def head(self) -> jax.Array:
        """The place the next row goes to. int32 `[heads]`."""
        return self.cursor[0]

    @property
    def lap(self) -> jax.Array:
        """How often the head has passed the end, modulo 2**32. int32 `[heads]`."""
        return self.cursor[1]

    @property
    def stored(self) -> jax.Array:
        """How many places hold a row, removed ones included. int32 `[heads]`."""
        return self.cursor[2]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Span:
    """The slots one add has written: with one head consecutive, around the end if need be.

    Attributes:
        slots: int32 `[B]`; the slot of each row of the batch, or `capacity` if it was not kept.
        first: int32 scalar; the first slot written; with one head.
        last: int32 scalar; the last slot written; with one head.
        replaced: uint8 `[B]`; the flags that were in the slot before; 0 if the row was not kept.
        was_stored: bool `[B]`; that was a row, and not left from before the last clear.
        drawable: bool `[B]`; the row was kept, and is not the dummy of a reset.
        places: Where the rows are in their episodes, `[B]`; None if nobody asks for it.
        count: int32 `[heads]`; how many rows there were, those not kept included.
        most: How many slots there are at most; static.
    """

    slots: jax.Array
    first: jax.Array
    last: jax.Array
    replaced: jax.Array
    was_stored: jax.Array
    drawable: jax.Array
    places: Places | None
    count: jax.Array
    most: int = dataclasses.field(metadata={"static": True})


def empty(
    capacity: int, num_envs: int | None, lockstep: bool, autoreset: Autoreset, follow: bool
) -> Ring:
    """A ring without rows; `follow` to know where in its episode each row is."""
    follow |= autoreset == "next_step"
    heads = 1 if lockstep else num_envs or 1
    return Ring(
        cursor=jnp.zeros((3, heads), jnp.int32),
        removed=jnp.int32(0),
        flags=jnp.zeros(capacity, jnp.uint8),
        open=_episodes.none_open(num_envs or 1) if follow else None,
        num_envs=num_envs,
        lockstep=lockstep,
        autoreset=autoreset,
    )


def cleared(ring: Ring) -> Ring:
    """The ring without its rows. The lap moves on, so ids from before stay stale. O(1)."""
    return dataclasses.replace(
        ring,
        cursor=jnp.stack([ring.head & 0, ring.lap + 1, ring.stored & 0]),
        removed=ring.removed & 0,
        open=None if ring.open is None else jax.tree.map(jnp.zeros_like, ring.open),
    )


def append(ring: Ring, flags: jax.Array, mask: jax.Array | None) -> tuple[Ring, Span]:
    """Make room for a batch of rows and write their flags.

    Args:
        ring: The ring.
        flags: uint8 `[B]`; the flags of the new rows, step by step, and in a step lane by lane.
        mask: bool `[B]`; the rows to write, which then lie side by side. None is all of them.
            For a ring with a head a lane.

    Returns:
        The ring, and the slots its rows went to. Of more rows than there are places, the last ones
        are kept.
    """
    capacity, batch, heads = ring.capacity, flags.shape[0], ring.heads
    if mask is None:
        each = batch // heads
        count = jnp.full(heads, each, jnp.uint32)
        rank = jnp.broadcast_to(jnp.arange(each, dtype=jnp.uint32)[:, None], (each, heads))
        kept = rank >= max(each - ring.places, 0)
    else:
        chosen = mask.reshape(-1, heads)
        running = jnp.cumsum(chosen, axis=0, dtype=jnp.uint32)
        count, rank = running[-1], running - 1
        kept = chosen & (count - rank <= ring.places)
    size = jnp.uint32(ring.places)
    head = ring.head.astype(jnp.uint32)
    # Unsigned, for head + batch may pass 2**31; exact, for both are below it.
    slots = (head + rank) % size * heads + jnp.arange(heads, dtype=jnp.uint32)
    slots = jnp.where(kept, slots, capacity).astype(jnp.int32).reshape(-1)
    dropped = jnp.maximum(count, size) - size
    end = head + count
    inside = slots < capacity
    old = _rows.read(ring.flags, jnp.minimum(slots, capacity - 1))
    # The barrier has it read once. Read again where it is used, the flags would have to be copied
    # for that before they are written.
    replaced = lax.optimization_barrier(jnp.where(inside, old, 0))
    # Of the rows from before the last clear none is counted as removed any more.
    was_stored = holds(ring, slots)
    gone = (replaced & REMOVED > 0) & was_stored
    removed = ring.removed - jnp.sum(gone, dtype=jnp.int32)
    slots = _order.after(slots, removed < 0)
    now_open, places = ring.open, None
    if now_open is not None:
        now_open, places = _follow(ring, now_open, flags, mask, rank, count)
        flags = jnp.where(places.dummy, jnp.uint8(REMOVED | DUMMY), flags)
        removed += jnp.sum(places.dummy & inside, dtype=jnp.int32)
        inside &= ~places.dummy
    lap = ring.lap.astype(jnp.uint32) + end // size
    stored = jnp.minimum(ring.stored.astype(jnp.uint32) + count, size)
    written = dataclasses.replace(
        ring,
        cursor=jnp.stack([end % size, lap, stored]).astype(jnp.int32),
        removed=removed,
        flags=_rows.write(ring.flags, slots, flags),
        open=now_open,
    )
    return written, Span(
        slots=slots,
        first=((head + dropped) % size).astype(jnp.int32)[0],
        last=((end + size - 1) % size).astype(jnp.int32)[0],
        replaced=replaced,
        was_stored=was_stored,
        drawable=inside,
        places=places,
        count=count.astype(jnp.int32),
        most=min(batch, capacity),
    )


def _follow(
    ring: Ring,
    before: Open,
    flags: jax.Array,
    mask: jax.Array | None,
    rank: jax.Array,
    count: jax.Array,
) -> tuple[Open, Places]:
    """Place the new rows in their episodes, of which a mask leaves `count`, in order of `rank`."""
    ends = (flags & (TERMINATED | TRUNCATED) > 0).reshape(-1, ring.lanes)
    # Never: but flags that were left out are constants, and XLA would follow them while compiling.
    ends |= before.position < 0
    if mask is None:
        after, places = _episodes.follow(before, ends, None, ring.autoreset)
        return after, jax.tree.map(lambda leaf: leaf.reshape(-1), places)
    rank = rank.astype(jnp.int32)
    chosen, lane = mask.reshape(rank.shape), jnp.arange(ring.lanes, dtype=jnp.int32)
    where = jnp.where(chosen, rank, ends.shape[0])
    ends = jnp.zeros_like(ends).at[where, lane].set(ends, mode="drop")
    after, places = _episodes.follow(before, ends, count.astype(jnp.int32), ring.autoreset)
    given = jnp.maximum(rank, 0)
    return after, jax.tree.map(lambda leaf: leaf[given, lane].reshape(-1), places)


def newest(ring: Ring) -> jax.Array:
    """The slot of each lane's newest row, and `capacity` if it has none: int32 `[lanes]`."""
    lane = jnp.arange(ring.lanes, dtype=jnp.int32)
    # With one head a step is `lanes` places, so that the head is at the first of them.
    place = (ring.head + ring.places - ring.lanes // ring.heads) % ring.places
    slots = place * ring.heads + lane
    return jnp.where(ring.stored > 0, slots, ring.capacity)


def end(ring: Ring, lanes: jax.Array) -> tuple[Ring, jax.Array]:
    """Truncate the open episode of some lanes, bool `[lanes]`.

    Returns:
        The ring, and the slots of the rows that now are the last of an episode, `capacity` for
        lanes that had no open episode.
    """
    slots = newest(ring)
    # Read once, as in `append`.
    flags = lax.optimization_barrier(_rows.read(ring.flags, jnp.minimum(slots, ring.capacity - 1)))
    is_open = (flags & (TERMINATED | TRUNCATED | DUMMY) == 0) & lanes
    slots = jnp.where(is_open, slots, ring.capacity)
    now_open = ring.open
    if now_open is not None:
        now_open = jax.tree.map(lambda leaf: jnp.where(lanes, jnp.zeros_like(leaf), leaf), now_open)
    written = _rows.write(ring.flags, slots, flags | jnp.uint8(TRUNCATED))
    return dataclasses.replace(ring, flags=written, open=now_open), slots


def remove(ring: Ring, slots: jax.Array) -> Ring:
    """Mark rows as removed: int32 `[B]` slots of stored rows, none twice, `capacity` for none."""
    flags = _rows.read(ring.flags, jnp.minimum(slots, ring.capacity - 1)) | jnp.uint8(REMOVED)
    now_open = ring.open
    if now_open is not None:
        lane = jnp.where(slots < ring.capacity, slots % ring.lanes, ring.lanes)
        intact = now_open.intact.at[lane].min(newer(ring, slots), mode="drop")
        now_open = dataclasses.replace(now_open, intact=intact)
    return dataclasses.replace(
        ring,
        removed=ring.removed + jnp.sum(slots < ring.capacity, dtype=jnp.int32),
        flags=_rows.write(ring.flags, slots, flags),
        open=now_open,
    )


def later(ring: Ring, slots: jax.Array, steps: jax.Array | int) -> jax.Array:
    """The slots so many steps later in the lane, around the end of the ring; less than a lane."""
    size = jnp.uint32(ring.capacity)
    by = jnp.asarray(steps, jnp.int32) % ring.lane_length * ring.lanes
    return ((slots.astype(jnp.uint32) + by.astype(jnp.uint32)) % size).astype(jnp.int32)


def newer(ring: Ring, slots: jax.Array) -> jax.Array:
    """How many rows of its lane are newer than each of these stored rows. int32 like `slots`."""
    place, head = _under_head(ring, slots)
    size = jnp.uint32(ring.places)
    behind = (head[0].astype(jnp.uint32) + size - 1 - place.astype(jnp.uint32)) % size
    return (behind // jnp.uint32(ring.lanes // ring.heads)).astype(jnp.int32)


def older(ring: Ring, slots: jax.Array) -> jax.Array:
    """How many rows of its lane are older than each of these stored rows. int32 like `slots`."""
    stored = _under_head(ring, slots)[1][2]
    return stored // (ring.lanes // ring.heads) - 1 - newer(ring, slots)


def holds(ring: Ring, slots: jax.Array) -> jax.Array:
    """Whether slots, of which `capacity` is none, hold a row: bool like `slots`."""
    place, head = _under_head(ring, slots)
    return (place < head[2]) & (slots < ring.capacity)


def filled(ring: Ring) -> jax.Array:
    """How many of the first slots may hold rows; what lies behind them never does. int32 scalar."""
    return ring.stored[0] if ring.heads == 1 else jnp.int32(ring.capacity)


def full(ring: Ring, slots: jax.Array) -> jax.Array:
    """Whether the lanes of slots have no room left: bool, to be broadcast to `slots`."""
    return _under_head(ring, slots)[1][2] == ring.places


def count(ring: Ring) -> jax.Array:
    """How many rows are stored, removed ones included. int32 scalar."""
    return jnp.sum(ring.stored, dtype=jnp.int32)


def generation_of(ring: Ring, slots: jax.Array) -> jax.Array:
    """The lap that wrote each slot last: this one before the head, the last one behind it."""
    place, head = _under_head(ring, slots)
    return head[1] - (place >= head[0]).astype(jnp.int32)


def _under_head(ring: Ring, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The place of slots under their heads, `[...]`, and those: head, lap, stored `[3, ...]`."""
    if ring.heads == 1:
        return slots, ring.cursor[:, 0]
    place = slots // ring.heads
    return place, ring.cursor.at[:, slots - place * ring.heads].get(mode="promise_in_bounds")


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
    slot = jnp.where(inside, slot, 0)
    same = holds(ring, slot) & (ids.generation == generation_of(ring, slot))
    flags = _rows.read(ring.flags, slot)
    live = inside & same & (flags & REMOVED == 0)
    return live, ~inside & (ids.slot != NO_SLOT), inside & ~live
