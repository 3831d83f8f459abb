"""Changing the capacity of a buffer."""

from __future__ import annotations

import dataclasses

from fbuf.checks import values as check
from fbuf.dispatch.call import operation, require_state
from fbuf.dispatch.intact import one_buffer
from fbuf.ops import lost_next
from fbuf.ops.init import check_room, empty_like, ends_by_default
from fbuf.ops.lanes import Lanes, filled
from fbuf.samplers.protocol.placing import refuse
from fbuf.state import State
from fbuf.storage.store import Item
from fbuf.xla.place import allocating, settled
from fbuf.xla.varying import varying


def resize(state: State[Item], capacity: int, *, max_ends: int | None = None) -> State[Item]:
    """Make a buffer of another capacity that holds the newest rows of this one.

    Rows, flags, priorities, next observations and open episodes are kept, so training continues
    unchanged. The rows move to other slots. So ids from before are stale: `update_priority`,
    `write` and `remove` skip them, and set `Fault.STALE_ID`, or `Fault.ID_OUT_OF_RANGE` where a
    smaller buffer has no such slot. A stride then begins at other steps, and an epoch of
    `fbuf.Shuffled` has another order.

    Args:
        state: The buffer; never consumed. Both are in memory until you drop this one.
        capacity: The number of rows of the new buffer: as for `fbuf.init`, and static. If more rows
            are stored, the oldest rows of each environment are dropped.
        max_ends: For a buffer made with `next_of`: as for `fbuf.init`. The capacity may stay as it
            is, to make room for more ends alone. None keeps the share of the capacity.

    Returns:
        The buffer of that capacity. Faults stay set.

        If the first rows of an episode were dropped or overwritten, its oldest kept row does not
        count as a first step. In a full buffer the oldest row of an environment does not count as a
        first step either, because the row before it is unknown.

    Raises:
        MemoryError: If the device has no room for the new buffer beside this one.
        ValueError: If `capacity` is out of range or no multiple of `num_envs`, or if a lane would
            be too short for the sampler's window. If `max_ends` is out of range, or the buffer was
            made without `next_of`.
        RuntimeError: If `state` has been consumed.

    Faults:
        LOST_NEXT: With `next_of`, more ends of episodes were kept than fit the new buffer.
            The room grows and shrinks with the capacity, unless `max_ends` says how large it is. A
            call from Python warns, with the number of rows that views then always mask.

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
    room = f"give fbuf.resize a larger max_ends: {lost_next.ROOM}"
    change = lambda state: resized(state, capacity, max_ends)
    return lost_next.of_call("fbuf.resize", room, change, state)


def resized(state: State[Item], capacity: int, max_ends: int | None = None) -> State[Item]:
    """Resize without a warning about lost next observations."""
    one_buffer("resize", state)
    capacity = check.integer("resize", "capacity", capacity, check.LARGEST_CAPACITY)
    refuse("resize", state.sampler)
    lanes = state.ring.lanes
    if capacity % lanes:
        raise ValueError(
            f"fbuf.resize: capacity must be a multiple of num_envs ({lanes}), because all lanes "
            f"have the same length, got {capacity}; take {max(capacity // lanes, 1) * lanes}"
        )
    if max_ends is not None:
        check.integer("resize", "max_ends", max_ends, capacity)
        if state.next_obs is None:
            raise ValueError(
                "fbuf.resize: max_ends is for a buffer made with next_of; leave it out, or make "
                "the buffer with next_of"
            )
    item, step = state.storage.item, lanes * state.sampler.stride
    make = lambda capacity: empty_as(state, capacity, max_ends)
    with allocating():
        check_room("resize", item, capacity, step, make)
    return settled(_resize(state, capacity=capacity, max_ends=max_ends))


@operation(static=("capacity", "max_ends"))
def _resize(state: State[Item], *, capacity: int, max_ends: int | None) -> State[Item]:
    """Resize with checked arguments."""
    whole = Lanes(state, 0, state.ring.lanes)
    new = filled(varying(empty_as(state, capacity, max_ends)), [whole])
    return dataclasses.replace(new, index=state.sampler.resized(new.index, state.index))


def empty_as(state: State[Item], capacity: int, max_ends: int | None = None) -> State[Item]:
    """Return an empty buffer like `state`, with another capacity."""
    old, kept, ends = state.ring, state.next_obs, max_ends
    if kept is not None and max_ends is None:
        room = kept.owner.shape[0] - old.lanes
        if room != -(-ends_by_default(old, state.storage, kept.field) // old.heads) * old.heads:
            ends = max(-(-room * capacity // old.capacity), 1)
    return empty_like(state, capacity, old.num_envs, ends, shards=old.shards)
