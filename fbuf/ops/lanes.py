"""Moving rows from buffer to buffer: a lane at a time, or episode by episode.

It serves `resize`, `extend`, `split` and `reshard`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.samplers.protocol import row_fields
from fbuf.samplers.protocol.queues import queue_of
from fbuf.samplers.protocol.sampler import Origin
from fbuf.state import State
from fbuf.storage import marks
from fbuf.storage.append import append
from fbuf.storage.episode_order import whole_episodes
from fbuf.storage.faults import Fault, bits_where, collected
from fbuf.storage.ring import (
    CUT,
    DUMMY,
    ENDS,
    NEXT_BEGINS,
    REMOVED,
    STANDS_IN,
    TRUNCATED,
    UNFINISHED,
    Ring,
)
from fbuf.storage.store import Item
from fbuf.xla.rows import flat

_ROWS = 4096
"""The approximate number of rows to move at a time."""


class Lanes(NamedTuple):
    """Adjacent lanes of a buffer: the number of the first, and their count; static."""

    state: State[Any]
    first: int
    number: int

    def of(self, per_lane: jax.Array) -> jax.Array:
        """Return the part of these lanes of `[..., lanes]`."""
        return lax.slice_in_dim(per_lane, self.first, self.first + self.number, axis=-1)

    def steps(self) -> jax.Array:
        """Return the number of stored steps of each: int32 `[number]`."""
        return self.of(self.state.ring.lane_steps())

    def slots(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """Return the slots of steps `[steps, 1]` among the newest `kept` of each lane."""
        ring = self.state.ring
        newest = self.of(ring.clamp(ring.newest()))
        return ring.later(newest[None], jnp.minimum(step - kept[None] + 1, 0))

    def closed(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """Return the flags of ends for rows: open episodes stay open."""
        return flags & ENDS

    def fills(self, step: jax.Array, kept: jax.Array) -> None:
        """Return None: every row of a lane is stored."""


class Dealt(NamedTuple):
    """Whole episodes of any lanes, dealt out to one lane or several, one after another.

    Attributes:
        state: The buffer of the episodes.
        order: int32 `[rows]`; the slots of all episodes, one after another.
        first: int32 `[number]`; the place in `order` where the part of each lane begins.
        size: int32 `[number]`; the number of rows of the part.
        number: The number of lanes; static.
        together: Whether the lanes step together. Then a shorter part has filling rows before it,
            which count as removed; static.
    """

    state: State[Any]
    order: jax.Array
    first: jax.Array
    size: jax.Array
    number: int
    together: bool

    def steps(self) -> jax.Array:
        """Return the number of steps that each lane gets: int32 `[number]`."""
        longest = jnp.broadcast_to(self.size.max(), self.size.shape)
        return longest if self.together else self.size

    def _place(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """Return the row of each step in its part; below 0 for a filling row."""
        return self.size[None] - kept[None] + step

    def slots(self, step: jax.Array, kept: jax.Array) -> jax.Array:
        """Return the slots of steps `[steps, 1]` among the last `kept` of each lane `[number]`."""
        place = self.first[None] + self._place(step, kept)
        return self.order[jnp.clip(place, 0, self.order.shape[0] - 1)]

    def of(self, per_lane: jax.Array) -> jax.Array:
        """Return all of `[..., lanes]`: the episodes are of any lane."""
        return per_lane

    def closed(self, slots: jax.Array, flags: jax.Array) -> jax.Array:
        """Return the flags of ends for rows: open episodes are truncated."""
        is_open = (flags & ENDS == 0) & (self.state.ring.newer(slots) == 0)
        return flags & ENDS | jnp.where(is_open, jnp.uint8(TRUNCATED | UNFINISHED), jnp.uint8(0))

    def fills(self, step: jax.Array, kept: jax.Array) -> jax.Array | None:
        """Return a mask of the filling rows: bool `[steps, number]`; None without such rows."""
        return self._place(step, kept) < 0 if self.together else None


Source = Lanes | Dealt


def in_one_lane(state: State[Any], order: jax.Array, rows: jax.Array) -> Dealt:
    """Return the first `rows` of `order`, the slots of whole episodes, as one lane."""
    return Dealt(state, order, jnp.zeros(1, jnp.int32), rows[None], 1, together=False)


def dealt(state: State[Any], number: int, together: bool) -> Dealt:
    """Deal all episodes of a buffer out to `number` lanes, about equally many rows to each.

    The episodes stay in the order of time: the first lane gets the earliest ones.
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


def filled(
    new: State[Item], sources: Sequence[Source], lap: jax.Array | None = None
) -> State[Item]:
    """Fill an empty buffer with the newest rows of the sources, whose lanes become adjacent.

    If environments step together, all lanes must have as many steps.

    Args:
        new: The empty buffer, with room for the rows.
        sources: The sources of the rows.
        lap: The lap of the newest ids which must be stale, int32. None is the lap of each lane, or
            the latest one if there is one lane. With None, old ids must never meet rows of other
            lanes.
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
    if new.sampler.is_queue:  # the rows are added anew, and those read before must count as read
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
    """Append rows of the sources to a buffer without open episodes.

    Args:
        new: The buffer.
        sources: The sources of the rows, whose lanes lie side by side.
        kept: int32 `[lanes]`; the number of newest rows of each lane to move.
        taken: int32 `[lanes]`; the number of these rows that fit, the oldest first.
    """
    lanes, step_rows = new.ring.lanes, new.ring.lane_length
    nothing = jnp.full(1, new.capacity, jnp.int32)
    index = new.index
    for of in sources:
        index, _ = new.sampler.take_over(
            index, new.ring, nothing, Origin(of.state.sampler, of.state.index, nothing * 0)
        )
        if isinstance(of, Dealt) or of.first == 0:  # lanes of one shard may move to several shards
            index = new.sampler.take_counts(index, of.state.sampler, of.state.index)
    new = dataclasses.replace(new, index=index)
    most = min(max(_longest(of) for of in sources), step_rows)
    steps = min(most, max(_ROWS // lanes, 1))
    turns = -(-most // steps)

    def moved(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _with_steps(new, sources, turn * steps, steps, kept, taken)

    def removed(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _without_removed(new, sources, turn * steps, steps, kept, taken)

    new = lax.fori_loop(jnp.int32(0), jnp.int32(turns), moved, new)
    if not new.ring.removable:
        return new
    any_removed = sum(of.state.ring.gone() for of in sources) > 0
    for of in sources:
        if isinstance(of, Dealt) and of.together:
            any_removed |= of.size.min() < of.size.max()
    some = jnp.where(any_removed, jnp.int32(turns), 0)
    return lax.fori_loop(jnp.int32(0), some, removed, new)


def joined(parts: list[jax.Array]) -> jax.Array:
    """Join arrays `[..., lanes]` side by side."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _longest(of: Source) -> int:
    """Return the most steps that a lane of a source can have."""
    return of.state.ring.lane_length if isinstance(of, Lanes) else of.order.shape[0]


def unread_of_lanes(state: State[Any]) -> jax.Array:
    """Return the number of unread steps of each lane: int32 `[lanes]`."""
    unread = queue_of(state.sampler).unread(state.index, state.ring)
    return jnp.broadcast_to(unread, (state.ring.lanes,))


def _latest(laps: list[jax.Array]) -> jax.Array:
    """Return the latest of nearby laps, which wrap around: int32 `[1]`."""
    every = joined(laps)
    return every[:1] + jnp.max(every - every[:1])


def _is_cut(ring: Ring, slots: jax.Array, flags: jax.Array, step: jax.Array) -> jax.Array:
    """Return a mask of rows whose episodes began in rows that are not kept: bool `[steps, n]`."""
    before = ring.flags[ring.later(slots, -1)]
    # Rows before the first kept row of a lane do not move.
    goes_on = (step == 0) & (ring.older(slots) > 0) & (before & NEXT_BEGINS == 0)
    return ring.begin_is_gone(slots, flags) | goes_on


class _SourceSteps(NamedTuple):
    """Some steps of a source: leaves `[steps, lanes, ...]`.

    `given` has the new flags of the rows. `following` has their next observations, and a mask of
    the known ones; None without `next_of`.
    """

    slots: jax.Array
    flags: jax.Array
    given: jax.Array
    rows: Any
    following: Any


def _read(of: Source, step: jax.Array, kept: jax.Array) -> _SourceSteps:
    """Read some steps of a source."""
    old, following = of.state, None
    slots = of.slots(step, kept)
    flags = old.ring.flags[slots]
    cut = jnp.where(_is_cut(old.ring, slots, flags, step), jnp.uint8(CUT), jnp.uint8(0))
    if old.next_obs is not None:
        flat = slots.reshape(-1)
        read = old.next_obs.read(old.storage, old.ring, flat, flags.reshape(-1))
        following = jax.tree.map(lambda leaf: leaf.reshape(*slots.shape, *leaf.shape[1:]), read)
    given = of.closed(slots, flags) | cut | flags & (STANDS_IN | UNFINISHED)
    if (fills := of.fills(step, kept)) is not None:
        flags = jnp.where(fills, jnp.uint8(REMOVED), flags)
        given = jnp.where(fills, jnp.uint8(TRUNCATED), given)
        if following is not None:
            following = following[0], following[1] & ~fills
    return _SourceSteps(slots, flags, given, old.storage.read(slots), following)


def _read_flags(of: Source, step: jax.Array, kept: jax.Array) -> jax.Array:
    """Read the flags of steps of a source; filling rows count as removed."""
    flags, fills = of.state.ring.flags[of.slots(step, kept)], of.fills(step, kept)
    return flags if fills is None else jnp.where(fills, jnp.uint8(REMOVED), flags)


def _each(sources: Sequence[Source], per_lane: jax.Array) -> list[tuple[Source, int, jax.Array]]:
    """List each source with its first lane, and its part of `[lanes]`."""
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
    """Add some steps of the sources to the new buffer, removed rows included."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    there = (step < taken[None]).reshape(-1)
    each = _each(sources, kept)
    read = [_read(of, step, own) for of, _, own in each]

    def in_turn(*parts: jax.Array) -> jax.Array:
        """Join parts step by step, and in a step lane by lane: `[rows, ...]`."""
        return flat(parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1))

    new_flags = in_turn(*[part.given for part in read])
    dummy = None
    if new.ring.open is not None:
        dummy = in_turn(*[part.flags for part in read]) & DUMMY > 0
    ring, span = append(new.ring, new_flags, there, new.fault, dummy)
    rows = jax.tree.map(in_turn, *[part.rows for part in read])
    looked_at = row_fields.of_rows(new.sampler, new.storage.layout, rows)
    span = dataclasses.replace(span, fields=looked_at)
    index, faults = new.sampler.add(new.index, ring, span)
    fault = collected(new.fault, faults)
    for (of, at, _), part in zip(each, read, strict=True):
        own = span.slots.reshape(steps, -1)[:, at : at + of.number].reshape(-1)
        slots = part.slots.reshape(-1)
        index, faults = new.sampler.take_over(
            index, ring, own, Origin(of.state.sampler, of.state.index, slots)
        )
        fault = collected(fault, faults)
    next_obs = new.next_obs
    if next_obs is not None:
        following, known = jax.tree.map(in_turn, *[part.following for part in read])
        next_obs, lost = next_obs.add(ring, span, new_flags, following, known)
        fault = collected(fault, lost)
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
    """Remove from the new buffer the rows of some steps that were removed in the sources."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    flags = joined([_read_flags(of, step, own) for of, _, own in _each(sources, kept)])
    gone = (step < taken[None]) & (flags & (REMOVED | DUMMY) == REMOVED)
    slots = Lanes(new, 0, new.ring.lanes).slots(step, taken)
    slots = jnp.where(gone, slots, new.capacity).reshape(-1)
    ring = marks.remove(new.ring, slots)
    return dataclasses.replace(new, ring=ring, index=new.sampler.remove(new.index, ring, slots))
