"""Moving lanes: a new buffer is filled with the newest rows of lanes of others.

So a buffer gets another capacity, or the environments of several shards come into one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.state import State
from fbuf.storage import episodes
from fbuf.storage.faults import collected
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED, Ring
from fbuf.storage.store import Item

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


def filled(new: State[Item], sources: Sequence[Lanes]) -> State[Item]:
    """An empty buffer, filled with the newest rows of lanes: the first ones are its first lanes.

    If environments step together, all lanes must have as many steps.
    """
    lanes, step_rows = new.ring.lanes, new.ring.lane_length
    kept = _joined(
        [jnp.minimum(of.of(_steps_of_lanes(of.state.ring)), step_rows) for of in sources]
    )
    cut = _joined([of.of(_is_cut(of.state.ring, step_rows)) for of in sources])
    laps = [of.of(jnp.broadcast_to(of.state.ring.lap, (of.state.ring.lanes,))) for of in sources]
    # Ids from before have one of the last two laps.
    lap = _joined(laps) if new.ring.heads > 1 else _latest(laps)
    ring = dataclasses.replace(
        new.ring,
        cursor=new.ring.cursor.at[1].set(lap + 1),
        open=None if new.ring.open is None else episodes.in_the_middle(cut),
    )
    new = dataclasses.replace(new, ring=ring)
    most = min(max(of.state.ring.lane_length for of in sources), step_rows)
    steps = min(most, max(_ROWS // lanes, 1))
    turns = -(-most // steps)

    def moved(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _with_steps(new, sources, turn * steps, steps, kept, cut)

    def removed(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _without_removed(new, sources, turn * steps, steps, kept)

    new = lax.fori_loop(jnp.int32(0), jnp.int32(turns), moved, new)
    any_removed = sum(of.state.ring.removed for of in sources) > 0
    some = jnp.where(any_removed, jnp.int32(turns), 0)
    new = lax.fori_loop(jnp.int32(0), some, removed, new)
    still_open, fault = None, new.fault
    if new.ring.open is not None:
        each = [jax.tree.map(of.of, of.state.ring.open) for of in sources]
        still_open = jax.tree.map(lambda *leaves: _joined(list(leaves)), *each)
    for of in sources:
        fault |= of.state.fault
    ring = dataclasses.replace(new.ring, open=still_open)
    return dataclasses.replace(new, ring=ring, fault=fault)


def _latest(laps: list[jax.Array]) -> jax.Array:
    """The latest of laps that are not far from each other: int32 `[1]`; they wrap around."""
    every = _joined(laps)
    return every[:1] + jnp.max(every - every[:1])


def _joined(parts: list[jax.Array]) -> jax.Array:
    """`[..., lanes]` each, side by side."""
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def _steps_of_lanes(ring: Ring) -> jax.Array:
    """How many steps of each lane are stored: int32 `[lanes]`."""
    return jnp.broadcast_to(ring.stored // (ring.lanes // ring.heads), (ring.lanes,))


def _is_cut(ring: Ring, room: int) -> jax.Array:
    """Whether the episode of the first row of those that are kept began before it: `[lanes]`."""
    kept = jnp.minimum(_steps_of_lanes(ring), room)
    slots = _slots(ring, jnp.int32(0), 1, kept)[0]
    before = ring.flags[ring.later(slots, -1)]
    goes_on = before & (ENDS | DUMMY) == 0
    unknown = ring.full(slots) | (ring.flags[slots] & CUT > 0)
    return jnp.where(_steps_of_lanes(ring) > kept, goes_on, unknown)


def _slots(ring: Ring, first: jax.Array, steps: int, kept: jax.Array) -> jax.Array:
    """The slots of steps of those that are kept, counted from the oldest: `[steps, lanes]`."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    newest = jnp.minimum(ring.newest(), ring.capacity - 1)
    return ring.later(newest[None], jnp.minimum(step - kept + 1, 0))


def _read(
    of: Lanes, new: State[Any], first: jax.Array, steps: int
) -> tuple[jax.Array, jax.Array, Any, Any]:
    """Some steps of lanes: their slots and flags `[steps, number]`, rows, and next observations."""
    old = of.state
    kept = jnp.minimum(_steps_of_lanes(old.ring), new.ring.lane_length)
    slots = of.of(_slots(old.ring, first, steps, kept))
    flags, following = old.ring.flags[slots], None
    if old.next_obs is not None:
        flat = slots.reshape(-1)
        read = old.next_obs.read(old.storage, old.ring, flat, flags.reshape(-1))
        following = jax.tree.map(lambda leaf: leaf.reshape(*slots.shape, *leaf.shape[1:]), read)
    return slots, flags, old.storage.read(slots), following


def _with_steps(
    new: State[Item],
    sources: Sequence[Lanes],
    first: jax.Array,
    steps: int,
    kept: jax.Array,
    cut: jax.Array,
) -> State[Item]:
    """The new buffer with some steps of the old ones, all of whose rows count as there."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    there = (step < kept).reshape(-1)
    read = [_read(of, new, first, steps) for of in sources]

    def flat(*parts: jax.Array) -> jax.Array:
        """Step by step, and in a step lane by lane: `[rows, ...]`."""
        whole = parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)
        return whole.reshape(-1, *whole.shape[2:])

    flags = flat(*[part[1] for part in read])
    is_cut = (cut & (step == 0)).reshape(-1)
    given = flags & (ENDS | CUT) | jnp.where(is_cut, jnp.uint8(CUT), jnp.uint8(0))
    dummy = None if new.ring.open is None else flags & DUMMY > 0
    ring, span = new.ring.append(given, there, new.fault, dummy)
    index, _ = new.sampler.add(new.index, ring, span, None, None)
    fault, at = new.fault, 0
    for of, (slots, *_) in zip(sources, read, strict=True):
        own = span.slots.reshape(steps, -1)[:, at : at + of.number].reshape(-1)
        index, faults = new.sampler.moved(index, ring, own, of.state.index, slots.reshape(-1))
        fault, at = collected(fault, faults), at + of.number
    next_obs = new.next_obs
    if next_obs is not None:
        following, known = jax.tree.map(flat, *[part[3] for part in read])
        next_obs, lost = next_obs.add(ring, span, given, following, known)
        fault = collected(fault, lost)
    rows = jax.tree.map(flat, *[part[2] for part in read])
    storage = new.storage.write(span.slots, rows)
    return dataclasses.replace(
        new, storage=storage, ring=ring, next_obs=next_obs, index=index, fault=fault
    )


def _without_removed(
    new: State[Item],
    sources: Sequence[Lanes],
    first: jax.Array,
    steps: int,
    kept: jax.Array,
) -> State[Item]:
    """The new buffer without those of some steps that were removed from the old ones."""
    lanes = new.ring.lanes
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    flags = _joined([_read(of, new, first, steps)[1] for of in sources])
    gone = (step < kept) & (flags & (REMOVED | DUMMY) == REMOVED)
    slots = step * lanes + jnp.arange(lanes, dtype=jnp.int32)
    slots = jnp.where(gone, slots, new.capacity).reshape(-1)
    ring = new.ring.remove(slots)
    return dataclasses.replace(new, ring=ring, index=new.sampler.remove(new.index, ring, slots))
