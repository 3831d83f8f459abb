"""Ending the open episodes."""

from __future__ import annotations

import dataclasses
from typing import overload

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation_of_both
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage import marks
from fbuf.storage.faults import collected
from fbuf.storage.ring import TRUNCATED, UNFINISHED
from fbuf.storage.store import Item
from fbuf.xla.tie import tie


@overload
def end_episode(
    state: State[Item], *, mask: Array | bool | None = None, donate: bool = True
) -> State[Item]: ...
@overload
def end_episode(
    state: ShardedState[Item], *, mask: Array | bool | None = None, donate: bool = True
) -> ShardedState[Item]: ...
@operation_of_both()
def end_episode(
    state: State[Item], *, mask: Array | bool | None = None, donate: bool = True
) -> State[Item]:
    """End the open episodes: call it when your collector resets its environments.

    The newest row of each environment becomes truncated, and the next row that you add begins an
    episode. An environment without rows stays as it is, and so does one whose newest row ended its
    episode. With `autoreset="next_step"`, the next row after an ended episode begins an episode,
    and is no dummy. Rows of `fbuf.Reservoir` have no episodes: there the call changes nothing.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        mask: bool `[num_envs]`, or one bool for all: the environments. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer. With `next_of`, the last observation of such an episode is the
        `next_observation` that you gave with its newest row.

    Raises:
        ValueError: When traced, if `mask` has another shape.
        TypeError: When traced, if `mask` is not bool.
        RuntimeError: If `state` has been consumed.

    Faults:
        LOST_NEXT: As for `fbuf.add`.

    Cost: O(num_envs).

    Over a mesh: `mask` has the environments of all shards together, and inside `shard_map` those
    of this device. Nothing is sent.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> state = fbuf.add(fbuf.end_episode(state), jnp.arange(1.0))
        >>> state.ring.flags.tolist()
        [0, 0, 2, 0]
    """
    ring = state.ring
    if ring.writes is not None:
        return state  # rows in no order are no steps of an episode
    shape = () if ring.num_envs is None else (ring.num_envs,)
    lanes = parse.mask("end_episode", mask, shape, "the environments")
    return ended(state, lanes)


@overload
def cut_episodes(state: State[Item], *, donate: bool = True) -> State[Item]: ...
@overload
def cut_episodes(state: ShardedState[Item], *, donate: bool = True) -> ShardedState[Item]: ...
@operation_of_both()
def cut_episodes(state: State[Item], *, donate: bool = True) -> State[Item]:
    """End the open episodes as `end_episode` does, and mark them as unfinished."""
    if state.ring.writes is not None:
        return state
    return ended(state, jnp.ones(state.ring.lanes, bool), TRUNCATED | UNFINISHED)


def ended(state: State[Item], lanes: jax.Array, bits: int = TRUNCATED) -> State[Item]:
    """Truncate the open episodes of some lanes, bool `[lanes]`."""
    # The fault is known once all earlier reads of the buffer are done.
    return end_lanes(state, tie(lanes, state.fault), bits=bits)


def end_lanes(
    state: State[Item],
    lanes: jax.Array,
    resets: jax.Array | None = None,
    bits: int = TRUNCATED,
) -> State[Item]:
    """Truncate the open episodes of some lanes, after all reads; see `Ring.end`."""
    ring, slots = marks.end(state.ring, lanes, resets, bits)
    next_obs, fault = state.next_obs, state.fault
    if next_obs is not None:
        next_obs, lost = next_obs.end(ring, slots)
        fault = collected(fault, lost)
    return dataclasses.replace(state, ring=ring, next_obs=next_obs, fault=fault)
