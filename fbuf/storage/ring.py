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

from fbuf.storage import episodes
from fbuf.storage.episodes import Autoreset, InEpisode, Open
from fbuf.storage.ids import NO_SLOT, Ids, only
from fbuf.xla.rows import read_rows, write_rows
from fbuf.xla.tie import tie

# The bits of a row's flags.
TERMINATED = 1
TRUNCATED = 2
REMOVED = 4
DUMMY = 8
"""The row of a step that only reset its environment; it is marked as removed, too."""
CUT = 16
"""The row's episode began before it, in rows that the buffer was never given: see `fbuf.resize`."""
WRITTEN = 32
"""`fbuf.write` has changed the row since it was added: a save writes it again."""
STANDS_IN = 128
"""Another observation stands in for the next one, which is not known. The row terminated, so its
target needs none. Writers of data sets ask for the flag."""

ENDS = TERMINATED | TRUNCATED


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Span:
    """The slots that one add has written: with one head consecutive, around the end if need be.

    Attributes:
        slots: int32 `[B]`; the slot of each row of the batch, or `capacity` if it was not kept.
        first: int32 scalar; the first slot written; with one head.
        drawable: bool `[B]`; the row was kept, and is not the dummy of a reset.
        in_episode: Where the rows are in their episodes, `[B]`; None if nobody asks for it.
        count: int32 `[heads]`; how many rows there were, those not kept included.
        most: How many slots there are at most; static.
    """

    slots: jax.Array
    first: jax.Array
    drawable: jax.Array
    in_episode: InEpisode | None
    count: jax.Array
    most: int = dataclasses.field(metadata={"static": True})


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Ring:
    """Where rows live.

    Invariants: of each head, offsets `[0, stored)` hold rows written since the last clear. With one
    head an offset is a slot; with one a lane it is the step in the lane. The flags of a slot that
    holds no row mean nothing.

    Attributes:
        cursor: int32 `[4, heads]`; `head`, `lap`, `stored`, `save_id`. One array, for every array
            of a state costs time whenever a function is called from Python.
        removed: int32 scalar; how many stored rows have been removed.
        flags: uint8 `[capacity]`; the bits of each row, see above.
        open: The episode each lane is in; None if nobody asks for it.
        num_envs: How many environments there are, None if they are not told apart; static.
        lockstep: Whether they always step together, so that one head does for all; static.
        autoreset: What environments do at an end, see `fbuf.storage.episodes`; static.
        shards: How many rings like this one make the whole buffer; static.
    """

    cursor: jax.Array
    removed: jax.Array
    flags: jax.Array
    open: Open | None
    num_envs: int | None = dataclasses.field(metadata={"static": True})
    lockstep: bool = dataclasses.field(metadata={"static": True})
    autoreset: Autoreset = dataclasses.field(metadata={"static": True})
    shards: int = dataclasses.field(default=1, metadata={"static": True})

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
    def head_capacity(self) -> int:
        """How many rows a head has room for."""
        return self.capacity // self.heads

    @property
    def head(self) -> jax.Array:
        """The offset the next row goes to. int32 `[heads]`."""
        return self.cursor[0]

    @property
    def lap(self) -> jax.Array:
        """How often the head has passed the end, modulo 2**32. int32 `[heads]`."""
        return self.cursor[1]

    @property
    def stored(self) -> jax.Array:
        """How many offsets hold a row, removed ones included. int32 `[heads]`."""
        return self.cursor[2]

    @property
    def save_id(self) -> jax.Array:
        """The id of the save that the buffer descends from, 0 for none. int32 `[heads]`."""
        return self.cursor[3]

    # What is stored.

    def count(self) -> jax.Array:
        """How many rows are stored, removed ones included. int32 scalar."""
        return jnp.sum(self.stored, dtype=jnp.int32)

    def has_come_around(self) -> jax.Array:
        """Tell whether every slot of some head holds a row. bool scalar."""
        return (self.stored == self.head_capacity).any()

    def filled(self) -> jax.Array:
        """How many of the first slots may hold rows; none behind them does. int32 scalar."""
        return self.stored[0] if self.heads == 1 else jnp.int32(self.capacity)

    def holds(self, slots: jax.Array) -> jax.Array:
        """Whether slots, of which `capacity` is none, hold a row: bool like `slots`."""
        offset, cursor = self._under_head(slots)
        return (offset < cursor[2]) & (slots < self.capacity)

    def full(self, slots: jax.Array) -> jax.Array:
        """Whether the lanes of slots have no room left: bool, to be broadcast to `slots`."""
        return self._under_head(slots)[1][2] == self.head_capacity

    # Steps of a lane.

    def later(self, slots: jax.Array, steps: jax.Array | int) -> jax.Array:
        """The slots so many steps later in the lane, around the end; less than a lane."""
        size = jnp.uint32(self.capacity)
        by = jnp.asarray(steps, jnp.int32) % self.lane_length * self.lanes
        return ((slots.astype(jnp.uint32) + by.astype(jnp.uint32)) % size).astype(jnp.int32)

    def newer(self, slots: jax.Array) -> jax.Array:
        """How many rows of its lane are newer than each of these stored rows. int32."""
        offset, cursor = self._under_head(slots)
        size = jnp.uint32(self.head_capacity)
        behind = (cursor[0].astype(jnp.uint32) + size - 1 - offset.astype(jnp.uint32)) % size
        return (behind // jnp.uint32(self.lanes // self.heads)).astype(jnp.int32)

    def older(self, slots: jax.Array) -> jax.Array:
        """How many rows of its lane are older than each of these stored rows. int32."""
        stored = self._under_head(slots)[1][2]
        return stored // (self.lanes // self.heads) - 1 - self.newer(slots)

    def newest(self) -> jax.Array:
        """The slot of each lane's newest row, and `capacity` if it has none: int32 `[lanes]`."""
        lane = jnp.arange(self.lanes, dtype=jnp.int32)
        # With one head a step is `lanes` slots, so that the head is at the first of them.
        # Unsigned, for the sum may pass 2**31.
        size, step = jnp.uint32(self.head_capacity), jnp.uint32(self.lanes // self.heads)
        offset = ((self.head.astype(jnp.uint32) + size - step) % size).astype(jnp.int32)
        slots = offset * self.heads + lane
        return jnp.where(self.stored > 0, slots, self.capacity)

    def in_order(self) -> jax.Array:
        """The slots of each lane from its oldest row to its newest: int32 `[lane_length, lanes]`.

        In a lane that is not full, slots that hold no row come first.
        """
        back = jnp.arange(self.lane_length - 1, -1, -1, dtype=jnp.int32)[:, None]
        # Those of a lane without rows are its own, too: no slot comes twice.
        last = self.capacity - self.lanes + jnp.arange(self.lanes, dtype=jnp.int32)
        return self.later(jnp.minimum(self.newest(), last)[None], -back)

    def one_after_another(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The slots of all episodes, each whole, those that ended first first; no dummies.

        Episodes of which every row was removed are left out.

        Returns:
            int32 `[capacity]` slots, and the number of the episode of each, from 0; and an int32
            scalar: how many of these slots there are, all in front. O(N log N) time.
        """
        slots = self.in_order()
        flags, there = self.flags[slots], self.holds(slots)
        there &= flags & DUMMY == 0
        time = jnp.arange(self.lane_length, dtype=jnp.int32)[:, None]
        newest = self.lane_length - 1
        last = jnp.where(there & (flags & ENDS > 0), time, newest)
        # What ended at one time, lane by lane; there each episode has a number of its own.
        number = lax.cummin(last, axis=0, reverse=True) * self.lanes
        number += jnp.arange(self.lanes, dtype=jnp.int32)[None]
        live = jnp.zeros(self.capacity, bool).at[number].max(there & (flags & REMOVED == 0))
        there &= live[number]
        number = jnp.where(there, number, self.capacity).reshape(-1)
        number, slots = lax.sort((number, slots.reshape(-1)), num_keys=1, is_stable=True)
        new = jnp.concatenate([jnp.zeros(1, bool), number[1:] != number[:-1]])
        return slots, jnp.cumsum(new, dtype=jnp.int32), jnp.sum(there, dtype=jnp.int32)

    def of_same_episodes(self, slots: jax.Array) -> jax.Array:
        """All stored rows of the episodes of some rows, removed ones and dummies left out.

        Args:
            slots: int32 `[B]`; of stored rows, or `capacity`.

        Returns:
            bool `[capacity]`. O(N) time and memory.
        """
        length, lanes = self.lane_length, self.lanes
        in_order = self.in_order()
        flags = self.flags[in_order]
        last = self.holds(in_order) & (flags & (ENDS | DUMMY) > 0)
        # How many rows before this one were the last of an episode is the episode's number.
        number = jnp.cumsum(last, axis=0, dtype=jnp.int32) - last.astype(jnp.int32)
        known, inside = slots < self.capacity, jnp.minimum(slots, self.capacity - 1)
        lane = inside % lanes
        wanted = number[length - 1 - self.newer(inside), lane]
        named = jnp.zeros((length, lanes), bool)
        named = named.at[jnp.where(known, wanted, length), lane].set(True, mode="drop")
        found = jnp.take_along_axis(named, number, axis=0)
        found &= self.holds(in_order) & (flags & REMOVED == 0)
        return jnp.zeros(self.capacity, bool).at[in_order].set(found)

    # Names of rows.

    def generation_of(self, slots: jax.Array) -> jax.Array:
        """The lap that wrote each slot last: this one before the head, the last one behind it."""
        offset, cursor = self._under_head(slots)
        return cursor[1] - (offset >= cursor[0]).astype(jnp.int32)

    def name(self, slots: jax.Array, mask: jax.Array) -> Ids:
        """The ids of rows, and "no row" where `mask` is False."""
        return only(Ids(slots, self.generation_of(slots)), mask)

    def name_live(self, slots: jax.Array) -> Ids:
        """The ids of the rows in any int32 slots; "no row" where none is, or a removed one."""
        inside = (slots >= 0) & (slots < self.capacity)
        slots = jnp.where(inside, slots, 0)
        live, _, _ = self.find(self.name(slots, inside))
        return self.name(slots, live)

    def find(self, ids: Ids) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Look rows up by id.

        Returns:
            Three bool arrays shaped like the ids: the row is still there; the slot does not exist;
            the row has been overwritten or removed. All are False for "no row".
        """
        slot = ids.slot
        inside = (slot >= 0) & (slot < self.capacity)
        slot = jnp.where(inside, slot, 0)
        same = self.holds(slot) & (ids.generation == self.generation_of(slot))
        flags = read_rows(self.flags, slot.reshape(-1)).reshape(slot.shape)
        live = inside & same & (flags & REMOVED == 0)
        return live, ~inside & (ids.slot != NO_SLOT), inside & ~live

    # Changes.

    def fitting(
        self, mask: jax.Array | None, room: jax.Array, batch: int
    ) -> tuple[jax.Array, jax.Array]:
        """Which rows of a batch to write where there is room for so many steps of each head.

        Args:
            mask: bool `[B]`; the rows that are meant, as for `append`.
            room: int32 `[heads]`.
            batch: `B`.

        Returns:
            bool `[B]` twice: the first of those that are meant, and those that do not fit.
        """
        meant = jnp.ones(batch, bool) if mask is None else mask
        meant = meant.reshape(-1, self.heads)
        rank = jnp.cumsum(meant, axis=0, dtype=jnp.uint32) - 1
        fits = rank < room.astype(jnp.uint32)[None] * (self.lanes // self.heads)
        return (meant & fits).reshape(-1), (meant & ~fits).reshape(-1)

    def resets_after(self, flags: jax.Array, mask: jax.Array | None) -> jax.Array | None:
        """Whether each lane resets next, after rows that need not all be written: bool `[lanes]`.

        None if nobody asks for it.
        """
        if self.open is None:
            return None
        return self._follow(self.open, flags, mask, None)[0].resets

    def with_gap(self, lanes: jax.Array, resets: jax.Array | None) -> tuple[Ring, jax.Array]:
        """End the open episode of some lanes, bool `[lanes]`, for some rows are left out behind it.

        Args:
            lanes: Which ones.
            resets: What `resets_after` said of all rows, those left out among them.

        Returns:
            As `end`.
        """
        ended, slots = self.end(lanes)
        if ended.open is not None:
            now_open = dataclasses.replace(ended.open, resets=resets)
            ended = dataclasses.replace(ended, open=now_open)
        return ended, slots

    def append(
        self,
        flags: jax.Array,
        mask: jax.Array | None,
        before: jax.Array,
        dummy: jax.Array | None = None,
    ) -> tuple[Ring, Span]:
        """Make room for a batch of rows and write their flags.

        Args:
            flags: uint8 `[B]`; the flags of the new rows, step by step, and in a step lane by lane.
            mask: bool `[B]`; the rows to write, which then lie side by side. None is all of them.
                With one head for several lanes it is alike for all rows of a step.
            before: What must have been read before anything is written, see `fbuf.xla.tie`.
            dummy: bool `[B]`; which rows are dummies, of rows that were in a ring already.

        Returns:
            The ring, and the slots its rows went to. Of more rows than there is room for, the last
            ones are kept.
        """
        capacity, batch, heads = self.capacity, flags.shape[0], self.heads
        if mask is None:
            each = batch // heads
            count = jnp.full(heads, each, jnp.uint32)
            rank = jnp.broadcast_to(jnp.arange(each, dtype=jnp.uint32)[:, None], (each, heads))
            kept = rank >= max(each - self.head_capacity, 0)
        else:
            chosen = mask.reshape(-1, heads)
            running = jnp.cumsum(chosen, axis=0, dtype=jnp.uint32)
            count, rank = running[-1], running - 1
            kept = chosen & (count[None] - rank <= self.head_capacity)
        size = jnp.uint32(self.head_capacity)
        head = self.head.astype(jnp.uint32)
        # Unsigned, for head + batch may pass 2**31; exact, for both are below it.
        lane = jnp.arange(heads, dtype=jnp.uint32)[None]
        slots = (head[None] + rank) % size * heads + lane
        slots = jnp.where(kept, slots, capacity).astype(jnp.int32).reshape(-1)
        dropped = jnp.maximum(count, size) - size
        end = head + count
        inside = slots < capacity
        old = read_rows(self.flags, jnp.minimum(slots, capacity - 1))
        # The barrier has it read once. Read again where it is used, the flags would have to be
        # copied for that before they are written.
        replaced = lax.optimization_barrier(jnp.where(inside, old, 0))
        # Of the rows from before the last clear none is counted as removed any more.
        gone = (replaced & REMOVED > 0) & self.holds(slots)
        removed = self.removed - jnp.sum(gone, dtype=jnp.int32)
        slots = tie(slots, replaced, before)
        now_open, in_episode = self.open, None
        if now_open is not None:
            now_open, in_episode = self._follow(now_open, flags, mask, dummy)
            flags = jnp.where(in_episode.dummy, jnp.uint8(REMOVED | DUMMY), flags)
            removed += jnp.sum(in_episode.dummy & inside, dtype=jnp.int32)
            inside &= ~in_episode.dummy
        lap = self.lap.astype(jnp.uint32) + end // size
        stored = jnp.minimum(self.stored.astype(jnp.uint32) + count, size)
        save_id = self.save_id.astype(jnp.uint32)
        written = dataclasses.replace(
            self,
            cursor=jnp.stack([end % size, lap, stored, save_id]).astype(jnp.int32),
            removed=removed,
            flags=write_rows(self.flags, slots, flags),
            open=now_open,
        )
        return written, Span(
            slots=slots,
            first=((head + dropped) % size).astype(jnp.int32)[0],
            drawable=inside,
            in_episode=in_episode,
            count=count.astype(jnp.int32),
            most=min(batch, capacity),
        )

    def end(self, lanes: jax.Array) -> tuple[Ring, jax.Array]:
        """Truncate the open episode of some lanes, bool `[lanes]`.

        Returns:
            The ring, and the slots of the rows that now are the last of an episode, `capacity` for
            lanes that had no open episode.
        """
        slots = self.newest()
        flags = read_rows(self.flags, jnp.minimum(slots, self.capacity - 1))
        is_open = (flags & (ENDS | DUMMY) == 0) & lanes
        slots = jnp.where(is_open, slots, self.capacity)
        now_open = self.open
        if now_open is not None:
            now_open = jax.tree.map(
                lambda leaf: jnp.where(lanes, jnp.zeros_like(leaf), leaf), now_open
            )
        written = write_rows(self.flags, slots, flags | jnp.uint8(TRUNCATED))
        return dataclasses.replace(self, flags=written, open=now_open), slots

    def remove(self, slots: jax.Array) -> Ring:
        """Mark rows as removed: int32 `[B]` slots of stored rows, or `capacity`; none twice."""
        old = read_rows(self.flags, jnp.minimum(slots, self.capacity - 1))
        now_open = self.open
        if now_open is not None:
            lane = jnp.where(slots < self.capacity, slots % self.lanes, self.lanes)
            intact = now_open.intact.at[lane].min(self.newer(slots), mode="drop")
            now_open = dataclasses.replace(now_open, intact=intact)
        return dataclasses.replace(
            self,
            removed=self.removed + jnp.sum(slots < self.capacity, dtype=jnp.int32),
            flags=write_rows(self.flags, slots, old | jnp.uint8(REMOVED)),
            open=now_open,
        )

    def written(self, slots: jax.Array) -> Ring:
        """Mark rows as changed: int32 `[B]` slots of stored rows, or `capacity`; none twice."""
        old = read_rows(self.flags, jnp.minimum(slots, self.capacity - 1))
        return dataclasses.replace(
            self, flags=write_rows(self.flags, slots, old | jnp.uint8(WRITTEN))
        )

    def cleared(self) -> Ring:
        """The ring without its rows. The lap moves on, so ids from before stay stale. O(1)."""
        now_open = self.open
        if now_open is not None:  # environments know of no clear: one that resets next still does
            none = jax.tree.map(jnp.zeros_like, now_open)
            now_open = dataclasses.replace(none, resets=now_open.resets)
        return dataclasses.replace(
            self,
            cursor=jnp.stack([self.head & 0, self.lap + 1, self.stored & 0, self.save_id]),
            removed=self.removed & 0,
            open=now_open,
        )

    def _follow(
        self,
        before: Open,
        flags: jax.Array,
        mask: jax.Array | None,
        dummy: jax.Array | None,
    ) -> tuple[Open, InEpisode]:
        """Where the new rows are in their episodes: those of the mask."""
        ends, cut = (flags & ENDS > 0).reshape(-1, self.lanes), None
        if dummy is not None:  # they were in a ring already
            dummy = dummy.reshape(-1, self.lanes)
            cut = (flags & CUT > 0).reshape(-1, self.lanes)
        if mask is None:
            after, found = episodes.follow(before, ends, None, self.autoreset, dummy, cut)
            return after, jax.tree.map(lambda leaf: leaf.reshape(-1), found)
        chosen, lane = mask.reshape(-1, self.lanes), jnp.arange(self.lanes, dtype=jnp.int32)
        running = jnp.cumsum(chosen, axis=0, dtype=jnp.int32)
        rank, count = running - 1, running[-1]
        where = jnp.where(chosen, rank, ends.shape[0])
        side_by_side = lambda steps: jnp.zeros_like(steps).at[where, lane].set(steps, mode="drop")
        after, found = episodes.follow(
            before,
            side_by_side(ends),
            count,
            self.autoreset,
            None if dummy is None else side_by_side(dummy),
            None if cut is None else side_by_side(cut),
        )
        given = jnp.maximum(rank, 0)
        return after, jax.tree.map(lambda leaf: leaf[given, lane].reshape(-1), found)

    def _under_head(self, slots: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The offset of slots under their heads, and these: what the cursor has `[4, ...]`."""
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
) -> Ring:
    """A ring without rows; `follow` to know where in its episode each row is."""
    follow |= autoreset == "next_step"
    heads = 1 if lockstep else num_envs or 1
    return Ring(
        cursor=jnp.zeros((4, heads), jnp.int32),
        removed=jnp.int32(0),
        flags=jnp.zeros(capacity, jnp.uint8),
        open=episodes.none_open(num_envs or 1) if follow else None,
        num_envs=num_envs,
        lockstep=lockstep,
        autoreset=autoreset,
        shards=shards,
    )
