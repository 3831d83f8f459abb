"""Moving rows from buffer to buffer: a lane at a time, or episode by episode.

So a buffer gets another capacity, the environments of several shards come into one, and buffers are
joined and taken apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.queues import queue_of
from fbuf.state import State
from fbuf.storage.append import append
from fbuf.storage.episode_order import whole_episodes
from fbuf.storage.faults import Fault, bits_where, collected
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED, STANDS_IN, TRUNCATED, Ring
from fbuf.storage.store import Item
from fbuf.xla.rows import flat

_ROWS = 4096
"""About how many rows are moved at a time."""


class Lanes(NamedTuple):
    """Some lanes of a buffer, side by side: the first one, and how many; static."""

    state: State[Any]
    first: int
    number: int

    def of(self, per_lane: jax.Array) -> jax.Array:
        """Theirs of `[..., lanes]`."""
        return lax.slice_in_dim(per_lane, self.first, self.first + self.number, axis=-1)

    def steps(self) -> jax.Array:
        """How many steps of each are stored: int32 `[number]`."""
        return self.of(self.state.ring.lane_steps())

    def slots(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """The slots of steps `[steps, 1]` of the newest so many of each lane `[number]`."""
        ring = self.state.ring
        newest = self.of(ring.clamp(ring.newest()))
        return ring.later(newest[None], jnp.minimum(step - kept[None] + 1, 0))

    def closed(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """The flags that rows get for their ends: episodes that are open stay open."""
        return flags & ENDS

    def fills(self, step: jax.Array, kept: jax.Array) -> None:
        """No row only fills a lane up."""


class Episodes(NamedTuple):
    """Whole episodes of any lanes, one after another in one lane: their slots, int32 `[rows]`.

    Of these only the first `rows` are meant, an int32 scalar.
    """

    state: State[Any]
    order: jax.Array
    rows: jax.Array
    number: int = 1

    def steps(self) -> jax.Array:
        """How many rows there are: int32 `[1]`."""
        return self.rows[None]

    def slots(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """The slots of steps `[steps, 1]` of the last so many rows `[1]`."""
        return self.order[jnp.clip(self.rows - kept[None] + step, 0, self.order.shape[0] - 1)]

    def of(self, per_lane: jax.Array) -> jax.Array:
        """Of `[..., lanes]` all: they are of any lane."""
        return per_lane

    def closed(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """The flags that rows get for their ends: what is open is truncated."""
        return _closed(self.state.ring, slots, flags)

    def fills(self, step: jax.Array, kept: jax.Array) -> None:
        """No row only fills a lane up."""


class Dealt(NamedTuple):
    """Whole episodes of any lanes, dealt out to several: in each lane one after another.

    Attributes:
        state: The buffer that they are in.
        order: int32 `[rows]`; the slots of all episodes, one after another.
        first: int32 `[number]`; the place in `order` where the part of each lane begins.
        size: int32 `[number]`; how many rows the part has.
        number: How many lanes; static.
        together: Whether the lanes step together. Then a shorter part has rows before it that only
            fill the lane up, and count as removed; static.
    """

    state: State[Any]
    order: jax.Array
    first: jax.Array
    size: jax.Array
    number: int
    together: bool

    def steps(self) -> jax.Array:
        """How many steps each lane gets: int32 `[number]`."""
        longest = jnp.broadcast_to(self.size.max(), self.size.shape)
        return longest if self.together else self.size

    def _place(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """Which row of its part each step is; below 0 for one that only fills up."""
        return self.size[None] - kept[None] + step

    def slots(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """The slots of steps `[steps, 1]` of the last so many of each lane `[number]`."""
        place = self.first[None] + self._place(step, kept)
        return self.order[jnp.clip(place, 0, self.order.shape[0] - 1)]

    def of(self, per_lane: jax.Array) -> jax.Array:
        """Of `[..., lanes]` all: they are of any lane."""
        return per_lane

    def closed(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """The flags that rows get for their ends: what is open is truncated."""
        return _closed(self.state.ring, slots, flags)

    def fills(self, step: jax.Array, kept: jax.Array) -> jax.Array | None:
        """Which rows only fill a lane up: bool `[steps, number]`."""
        return self._place(step, kept) < 0 if self.together else None


Source = Lanes | Episodes | Dealt


def dealt(state: State[Any], number: int, together: bool) -> Dealt:
    """All episodes of a buffer, dealt out to so many lanes, about as many rows to each.

    They stay in the order of time: the first lane gets those that ended first.
    """
    order, episode, count = whole_episodes(state.ring)
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    begins = jnp.concatenate([jnp.ones(1, bool), episode[1:] != episode[:-1]])
    begin = jnp.where(begins & (place < count), place, count)
    following = lax.cummin(begin, reverse=True)
    lane = jnp.arange(number + 1, dtype=jnp.uint32)
    rows, lanes = count.astype(jnp.uint32), jnp.uint32(number)
    share = (lane * (rows // lanes) + lane * (rows % lanes) // lanes).astype(jnp.int32)
    cut = jnp.where(share < count, following[jnp.minimum(share, place[-1])], count)
    return Dealt(state, order, cut[:-1], cut[1:] - cut[:-1], number, together)


def _closed(ring: Ring, slots: jax.Array, flags: jax.Array) -> jax.Array:
    """The flags that rows get for their ends, where open episodes are truncated."""
    is_open = (flags & ENDS == 0) & (ring.newer(slots) == 0)
    return flags & ENDS | jnp.where(is_open, jnp.uint8(TRUNCATED), jnp.uint8(0))


def filled(
    new: State[Item], sources: Sequence[Source], lap: jax.Array | None = None
) -> State[Item]:
    """An empty buffer, filled with the newest rows of the sources, whose lanes lie side by side.

    If environments step together, all lanes must have as many steps.

    Args:
        new: It has room for them.
        sources: Where the rows come from.
        lap: That of the newest ids which must be stale, int32. None if an id from before may only
            meet rows of its own lane, or if there is one lane: it is then the latest of these.
    """
    kept = joined([jnp.minimum(of.steps(), new.ring.lane_length) for of in sources])
    # Ids from before have one of the last two laps.
    if lap is None:
        laps = [
            of.of(jnp.broadcast_to(of.state.ring.lap, (of.state.ring.lanes,))) for of in sources
        ]
        lap = joined(laps) if new.ring.heads > 1 else _latest(laps)
    ring = dataclasses.replace(new.ring, cursor=new.ring.cursor.at[1].set(lap + 1))
    new = appended(dataclasses.replace(new, ring=ring), sources, kept, kept)
    fault = new.fault
    for of in sources:
        fault |= of.state.fault
    index = new.index
    if new.sampler.is_queue:  # the rows are there, but as many have been read as before
        unread = joined([of.of(unread_of_lanes(of.state)) for of in sources])
        fault |= bits_where((unread > new.ring.lane_length).any(), Fault.LOST_UNREAD)
        read = kept - jnp.minimum(kept, unread)
        index = queue_of(new.sampler).popped(index, read[: new.ring.heads])
    still_open = new.ring.open
    if still_open is not None and all(isinstance(of, Lanes) for of in sources):
        each = [jax.tree.map(of.of, of.state.ring.open) for of in sources if isinstance(of, Lanes)]
        still_open = jax.tree.map(lambda *leaves: joined(list(leaves)), *each)
    elif still_open is not None:  # nothing is open, and no reset is due
        still_open = jax.tree.map(jnp.zeros_like, still_open)
    ring = dataclasses.replace(new.ring, open=still_open)
    return dataclasses.replace(new, ring=ring, index=index, fault=fault)


def appended(
    new: State[Item], sources: Sequence[Source], kept: jax.Array, taken: jax.Array
) -> State[Item]:
    """A buffer with rows of the sources behind its own; what was open in it has been closed.

    Args:
        new: The buffer.
        sources: Whose lanes lie side by side.
        kept: int32 `[lanes]`; how many of the newest rows of each lane are meant.
        taken: int32 `[lanes]`; how many of these there is room for, the oldest first.
    """
    lanes, step_rows = new.ring.lanes, new.ring.lane_length
    nothing = jnp.full(1, new.capacity, jnp.int32)
    index = new.index
    for of in sources:
        index, _ = new.sampler.take_over(
            index, new.ring, nothing, of.state.sampler, of.state.index, nothing * 0
        )
    new = dataclasses.replace(new, index=index)
    most = min(max(_longest(of) for of in sources), step_rows)
    steps = min(most, max(_ROWS // lanes, 1))
    turns = -(-most // steps)

    def moved(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _with_steps(new, sources, turn * steps, steps, kept, taken)

    def removed(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _without_removed(new, sources, turn * steps, steps, kept, taken)

    new = lax.fori_loop(jnp.int32(0), jnp.int32(turns), moved, new)
    any_removed = sum(of.state.ring.removed for of in sources) > 0
    for of in sources:
        if isinstance(of, Dealt) and of.together:
            any_removed |= of.size.min() < of.size.max()
    some = jnp.where(any_removed, jnp.int32(turns), 0)
    return lax.fori_loop(jnp.int32(0), some, removed, new)


def joined(parts: list[jax.Array]) -> jax.Array:
    """`[..., lanes]` each, side by side."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _longest(of: Source) -> int:
    """How many steps a lane of a source can have."""
    return of.state.ring.lane_length if isinstance(of, Lanes) else of.order.shape[0]


def unread_of_lanes(state: State[Any]) -> jax.Array:
    """How many steps of each lane are still to be read: int32 `[lanes]`."""
    unread = queue_of(state.sampler).unread(state.index, state.ring)
    return jnp.broadcast_to(unread, (state.ring.lanes,))


def _latest(laps: list[jax.Array]) -> jax.Array:
    """The latest of laps that are not far from each other: int32 `[1]`; they wrap around."""
    every = joined(laps)
    return every[:1] + jnp.max(every - every[:1])


def _is_cut(ring: Ring, slots: jax.Array, flags: jax.Array, step: jax.Array) -> jax.Array:
    """Whether the episodes of rows began before them, in rows that are not kept: `[steps, n]`."""
    oldest = ring.older(slots) == 0
    before = ring.flags[ring.later(slots, -1)]
    # Of the first one that is kept, the rows before it in its lane are left behind.
    goes_on = (step == 0) & ~oldest & (before & (ENDS | DUMMY) == 0)
    return (flags & CUT > 0) | (oldest & ring.full(slots)) | goes_on


class _Steps(NamedTuple):
    """Some steps of a source: leaves `[steps, lanes, ...]`.

    `given` is the flags that the rows get; `following` is their next observations, and which of
    these are known; None if they are not kept.
    """

    slots: jax.Array
    flags: jax.Array
    given: jax.Array
    rows: Any
    following: Any


def _read(of: Source, step: jax.Array, kept: jax.Array) -> _Steps:
    """Some steps of a source."""
    old, following = of.state, None
    slots = of.slots(step, kept)
    flags = old.ring.flags[slots]
    cut = jnp.where(_is_cut(old.ring, slots, flags, step), jnp.uint8(CUT), jnp.uint8(0))
    if old.next_obs is not None:
        flat = slots.reshape(-1)
        read = old.next_obs.read(old.storage, old.ring, flat, flags.reshape(-1))
        following = jax.tree.map(lambda leaf: leaf.reshape(*slots.shape, *leaf.shape[1:]), read)
    given = of.closed(slots, flags) | cut | flags & STANDS_IN
    if (fills := of.fills(step, kept)) is not None:
        flags = jnp.where(fills, jnp.uint8(REMOVED), flags)
        given = jnp.where(fills, jnp.uint8(TRUNCATED), given)
        if following is not None:
            following = following[0], following[1] & ~fills
    return _Steps(slots, flags, given, old.storage.read(slots), following)


def _read_flags(of: Source, step: jax.Array, kept: jax.Array) -> jax.Array:
    """The flags of some steps of a source, where what only fills up is removed."""
    flags, fills = of.state.ring.flags[of.slots(step, kept)], of.fills(step, kept)
    return flags if fills is None else jnp.where(fills, jnp.uint8(REMOVED), flags)


def _each(sources: Sequence[Source], per_lane: jax.Array) -> list[tuple[Source, int, jax.Array]]:
    """Each source, its first lane, and its own of `[lanes]`."""
    found, at = [], 0
    for of in sources:
        found.append((of, at, lax.slice_in_dim(per_lane, at, at + of.number)))
        at += of.number
    return found


def _with_steps(
    new: State[Item],
    sources: Sequence[Source],
    first: jax.Array,
    steps: int,
    kept: jax.Array,
    taken: jax.Array,
) -> State[Item]:
    """The new buffer with some steps of the old ones, all of whose rows count as there."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    there = (step < taken[None]).reshape(-1)
    each = _each(sources, kept)
    read = [_read(of, step, own) for of, _, own in each]

    def in_turn(*parts: jax.Array) -> jax.Array:
        """Step by step, and in a step lane by lane: `[rows, ...]`."""
        return flat(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1))

    given = in_turn(*[part.given for part in read])
    dummy = None
    if new.ring.open is not None:
        dummy = in_turn(*[part.flags for part in read]) & DUMMY > 0
    ring, span = append(new.ring, given, there, new.fault, dummy)
    index, faults = new.sampler.add(new.index, ring, span, None, None)
    fault = collected(new.fault, faults)
    for (of, at, _), part in zip(each, read, strict=True):
        own = span.slots.reshape(steps, -1)[:, at : at + of.number].reshape(-1)
        slots = part.slots.reshape(-1)
        index, faults = new.sampler.take_over(
            index, ring, own, of.state.sampler, of.state.index, slots
        )
        fault = collected(fault, faults)
    next_obs = new.next_obs
    if next_obs is not None:
        following, known = jax.tree.map(in_turn, *[part.following for part in read])
        next_obs, lost = next_obs.add(ring, span, given, following, known)
        fault = collected(fault, lost)
    rows = jax.tree.map(in_turn, *[part.rows for part in read])
    storage = new.storage.write(span.slots, rows)
    return dataclasses.replace(
        new, storage=storage, ring=ring, next_obs=next_obs, index=index, fault=fault
    )


def _without_removed(
    new: State[Item],
    sources: Sequence[Source],
    first: jax.Array,
    steps: int,
    kept: jax.Array,
    taken: jax.Array,
) -> State[Item]:
    """The new buffer without those of some steps that were removed from the old ones."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    flags = joined([_read_flags(of, step, own) for of, _, own in _each(sources, kept)])
    gone = (step < taken[None]) & (flags & (REMOVED | DUMMY) == REMOVED)
    slots = Lanes(new, 0, new.ring.lanes).slots(step, taken)
    slots = jnp.where(gone, slots, new.capacity).reshape(-1)
    ring = new.ring.remove(slots)
    return dataclasses.replace(new, ring=ring, index=new.sampler.remove(new.index, ring, slots))
