"""Giving a buffer another capacity."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.checks import values as check
from fbuf.door.entry import one_buffer, require_state, verb
from fbuf.state import State
from fbuf.storage import episodes
from fbuf.storage import ring as rings
from fbuf.storage.faults import collected
from fbuf.storage.ring import CUT, DUMMY, ENDS, REMOVED, Ring
from fbuf.storage.store import Item
from fbuf.verbs.init import check_room, ends_by_default, of_ring
from fbuf.xla.varying import varying

_ROWS = 4096
"""About how many rows are moved at a time."""


def resize(state: State[Item], capacity: int) -> State[Item]:
    """Make a buffer of another capacity that holds the newest rows of this one.

    Rows, flags, priorities, next observations and open episodes are kept, so training goes on as if
    the buffer had always had this capacity. The rows move to other slots. So ids from before are
    stale: `update_priority`, `write` and `remove` skip them, and set `Fault.STALE_ID`, or
    `Fault.ID_OUT_OF_RANGE` where a smaller buffer has no such slot. A stride then begins at other
    steps, and an epoch of `fbuf.Shuffled` has another order.

    Args:
        state: The buffer; never consumed. Both are in memory until you drop this one.
        capacity: How many rows the new one keeps: as for `fbuf.init`, and static. If fewer than are
            stored, the oldest rows of each environment are left behind.

    Returns:
        The buffer of that capacity. Faults stay set.

        Of an episode whose first rows are left behind, or have been overwritten, the oldest row
        that is kept does not count as a first step. In a full buffer nobody knows what came before
        the oldest row of an environment: that one does not count as a first step either.

    Raises:
        MemoryError: If the device has no room for the new buffer beside this one.
        ValueError: If `capacity` is out of range or no multiple of `num_envs`, or if a lane would
            be too short for the sampler's window.
        RuntimeError: If `state` has been consumed.

    Faults:
        LOST_NEXT: With `next_of`, more ends of episodes are kept than the new buffer has room for.
            That room grows and shrinks with the capacity.

    Cost: O(N log N) time for the N rows that are kept. Each capacity compiles a program of its own.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(6.0))
        >>> larger = fbuf.add(fbuf.resize(state, 8), jnp.arange(6.0, 8.0))
        >>> fbuf.rows(larger).data[fbuf.rows(larger).mask]
        Array([2., 3., 4., 5., 6., 7.], dtype=float32)
        >>> fbuf.rows(fbuf.resize(larger, 3)).data
        Array([5., 6., 7.], dtype=float32)
    """
    require_state("resize", state)
    one_buffer("resize", state)
    capacity = check.integer("resize", "capacity", capacity, check.LARGEST_CAPACITY)
    lanes = state.ring.lanes
    if capacity % lanes:
        raise ValueError(
            f"fbuf.resize: capacity must be a multiple of num_envs ({lanes}), because all lanes "
            f"have the same length, got {capacity}; take {max(capacity // lanes, 1) * lanes}"
        )
    item, step = state.storage.item, lanes * state.sampler.stride
    check_room("resize", item, capacity, step, lambda capacity: _empty(state, capacity))
    return _resize(state, capacity=capacity)


@verb(static=("capacity",))
def _resize(state: State[Item], *, capacity: int) -> State[Item]:
    """As `resize`, of a capacity that has been checked."""
    new = varying(_empty(state, capacity))
    lanes, step_rows = new.ring.lanes, new.ring.lane_length
    kept = jnp.minimum(_steps_of_lanes(state.ring), step_rows)
    cut = _is_cut(state.ring, kept)
    ring = dataclasses.replace(
        new.ring,
        # Ids from before have one of the last two laps.
        cursor=new.ring.cursor.at[1].set(state.ring.lap + 1),
        open=None if new.ring.open is None else episodes.in_the_middle(cut),
    )
    new = dataclasses.replace(new, ring=ring)
    most = min(state.ring.lane_length, step_rows)
    steps = min(most, max(_ROWS // lanes, 1))
    turns = -(-most // steps)

    def moved(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _with_steps(new, state, turn * steps, steps, kept, cut)

    def removed(turn: jax.Array, new: State[Item]) -> State[Item]:
        return _without_removed(new, state, turn * steps, steps, kept)

    new = lax.fori_loop(jnp.int32(0), jnp.int32(turns), moved, new)
    some = jnp.where(state.ring.removed > 0, jnp.int32(turns), 0)
    new = lax.fori_loop(jnp.int32(0), some, removed, new)
    ring = dataclasses.replace(new.ring, open=state.ring.open)
    return dataclasses.replace(new, ring=ring, fault=new.fault | state.fault)


def _empty(state: State[Item], capacity: int) -> State[Item]:
    """A buffer of that capacity, and else as `state`."""
    old, kept = state.ring, state.next_obs
    ring = rings.empty(capacity, old.num_envs, old.lockstep, old.autoreset, old.open is not None)
    if kept is None:
        return of_ring(state.storage.item, ring, state.sampler, None, None)
    ends, room = None, kept.owner.shape[0] - old.lanes
    if room != -(-ends_by_default(old, state.storage, kept.field) // old.heads) * old.heads:
        ends = max(-(-room * capacity // old.capacity), 1)
    return of_ring(state.storage.item, ring, state.sampler, kept.field, ends)


def _steps_of_lanes(ring: Ring) -> jax.Array:
    """How many steps of each lane are stored: int32 `[lanes]`."""
    return jnp.broadcast_to(ring.stored // (ring.lanes // ring.heads), (ring.lanes,))


def _is_cut(ring: Ring, kept: jax.Array) -> jax.Array:
    """Whether the episode of the first row of those that are kept began before it: `[lanes]`."""
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


def _with_steps(
    new: State[Item],
    old: State[Item],
    first: jax.Array,
    steps: int,
    kept: jax.Array,
    cut: jax.Array,
) -> State[Item]:
    """The new buffer with some steps of the old one, all of whose rows count as there."""
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    there = (step < kept).reshape(-1)
    slots = _slots(old.ring, first, steps, kept).reshape(-1)
    flags = old.ring.flags[slots]
    is_cut = (cut & (step == 0)).reshape(-1)
    given = flags & (ENDS | CUT) | jnp.where(is_cut, jnp.uint8(CUT), jnp.uint8(0))
    dummy = None if new.ring.open is None else flags & DUMMY > 0
    ring, span = new.ring.append(given, there, new.fault, dummy)
    index, _ = new.sampler.add(new.index, ring, span, None, None)
    index, faults = new.sampler.moved(index, ring, span.slots, old.index, slots)
    next_obs, fault = new.next_obs, collected(new.fault, faults)
    if next_obs is not None:
        assert old.next_obs is not None
        following, known = old.next_obs.read(old.storage, old.ring, slots, flags)
        next_obs, lost = next_obs.add(ring, span, given, following, known)
        fault = collected(fault, lost)
    storage = new.storage.write(span.slots, old.storage.read(slots))
    return dataclasses.replace(
        new, storage=storage, ring=ring, next_obs=next_obs, index=index, fault=fault
    )


def _without_removed(
    new: State[Item], old: State[Item], first: jax.Array, steps: int, kept: jax.Array
) -> State[Item]:
    """The new buffer without those of some steps that were removed from the old one."""
    lanes = old.ring.lanes
    step = first + jnp.arange(steps, dtype=jnp.int32)[:, None]
    flags = old.ring.flags[_slots(old.ring, first, steps, kept)]
    gone = (step < kept) & (flags & (REMOVED | DUMMY) == REMOVED)
    slots = step * lanes + jnp.arange(lanes, dtype=jnp.int32)
    slots = jnp.where(gone, slots, new.capacity).reshape(-1)
    ring = new.ring.remove(slots)
    return dataclasses.replace(new, ring=ring, index=new.sampler.remove(new.index, ring, slots))
