"""Adding all rows of another buffer."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fbuf.dispatch.call import operation, require_state
from fbuf.ops import lost_next
from fbuf.ops.add import with_gap
from fbuf.ops.end_episode import ended
from fbuf.ops.lanes import Dealt, Lanes, Source, appended, dealt, in_one_lane, unread_of_lanes
from fbuf.samplers.protocol import queues
from fbuf.samplers.protocol.placing import refuse
from fbuf.state import State
from fbuf.storage.episode_order import whole_episodes
from fbuf.storage.faults import Fault, bits_where
from fbuf.storage.ring import TRUNCATED, UNFINISHED
from fbuf.storage.store import Item
from fbuf.xla.place import settled

_NAMED = 5
"""The most leaves in a message."""


def extend(state: State[Item], other: State[Item]) -> State[Item]:
    """Add all rows of another buffer, in the order of time.

    The open episodes of `state` are truncated, as by `fbuf.end_episode`, and the rows of `other`
    follow. Their flags, next observations, removed rows and open episodes stay as they are. So
    training goes on as if you had added the rows yourself. If they do not fit, the newest stay, as
    with `fbuf.add`. The rows of `state` keep their ids.

    With the same number of environments, each lane is added to its own, and one without rows in
    `other` stays as it is. Otherwise all episodes of `other` are added whole, one after another, in
    the order of their ends. Episodes that ended at one time go environment by environment. So
    demonstrations come into the buffer of several environments that goes on to collect.

    Its environments get about as many rows each. Where they step together, slots before the shorter
    parts stay empty, as if rows had been removed there. In each part these are fewer than twice the
    rows of the longest episode. The open episodes of `other` are truncated, too. Rows that no view
    can read are left out: rows of resets, and episodes of which every row was removed.

    Priorities stay as they are stored if both samplers are `fbuf.Prioritized`, or both are
    `fbuf.Mixture`, with the same `alpha`, `eps` and `floor`. Otherwise the rows get the priority
    that `fbuf.add` gives by default. To a `fbuf.Fifo` all rows are unread; it takes only the unread
    rows of another `fbuf.Fifo`. Rows without room are left out, as by `fbuf.add`.

    Args:
        state: The buffer; not consumed. Inside `jit`, donate it at the outermost `jit`, and the
            rows are written in place.
        other: The buffer whose rows to add; not consumed. Its item and its `next_of` are those of
            `state`. Capacity and sampler may be others.

    Returns:
        The buffer with the rows in it. Faults of both stay set.

        No row counts as the first step of an episode whose first rows are left behind, or have been
        overwritten, as after `fbuf.resize`.

    Raises:
        ValueError: When traced, if the items, `next_of`, or the environments do not fit. Also if
            `state` was made with `removable=False`, and rows of `other` may be removed, or slots
            before shorter parts would stay empty.
        TypeError: If one of the two is not a `fbuf.State`, or lies over a mesh.
        RuntimeError: If one of the two has been consumed.

    Faults:
        LOST_NEXT: As for `fbuf.add`. A call from Python warns, as `fbuf.resize` does.
        FULL: As for `fbuf.add`.
        LOST_UNREAD: As for `fbuf.add`.

    Cost: O(M log N) time, where `M` is the capacity of `other`; O(M log M) to order whole episodes.
    A call from Python copies `state`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> one = fbuf.add(fbuf.init(jnp.zeros(()), capacity=8), jnp.arange(3.0))
        >>> other = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(10.0, 12.0))
        >>> both = fbuf.rows(fbuf.extend(one, other))
        >>> both.data[both.mask]
        Array([ 0.,  1.,  2., 10., 11.], dtype=float32)
        >>> both.truncated[both.mask]
        Array([False, False,  True, False, False], dtype=bool)
    """
    require_state("extend", state)
    require_state("extend", other, "other")
    refuse("extend", state.sampler)
    refuse("extend", other.sampler)
    instead = (
        "make room before: fbuf.resize(state, state.capacity, max_ends=...); " + lost_next.ROOM
    )
    join = lambda *states: settled(_extend(states))
    return lost_next.of_call("fbuf.extend", instead, join, state, other)


@operation(several=True)
def _extend(states: tuple[State[Item], State[Item]]) -> State[Item]:
    """Add the rows; see `extend`."""
    state, other = states
    _check_rows(state, other)
    source = _source(state, other)
    _check_holes(state, other, source)
    ring, steps = state.ring, source.steps()
    if state.sampler.is_queue and other.sampler.is_queue:
        steps = unread_of_lanes(other)
    room, fault = queues.room(state.sampler, state.index, ring), state.fault | other.fault
    kept = steps if room is not None else jnp.minimum(steps, ring.lane_length)
    taken = kept if room is None else jnp.minimum(steps, room)
    if state.sampler.is_queue:
        lost = (steps > ring.lane_length).any() & (room is None)
        fault |= bits_where(lost, Fault.LOST_UNREAD)
    new = ended(dataclasses.replace(state, fault=fault), taken > 0, TRUNCATED | UNFINISHED)
    new = appended(new, [source], kept, taken)
    if not isinstance(source, Lanes):
        new = ended(new, taken > 0)  # like its own open episode: whole
    new = _with_resets(new, state, other, source, kept)
    resets = None if new.ring.open is None else new.ring.open.resets
    return new if room is None else with_gap(new, taken < kept, resets)


def _with_resets(
    new: State[Item], state: State[Item], other: State[Item], source: Source, kept: Array
) -> State[Item]:
    """Take over the pending resets of environments from the newest rows."""
    if new.ring.open is None or state.ring.open is None:
        return new
    if source.number > 1 and isinstance(source, Dealt):  # the environments continue
        resets = state.ring.open.resets
    elif isinstance(source, Lanes) and other.ring.open is not None:
        resets = jnp.where(kept > 0, other.ring.open.resets, new.ring.open.resets)
    else:
        return new
    now_open = dataclasses.replace(new.ring.open, resets=resets)
    return dataclasses.replace(new, ring=dataclasses.replace(new.ring, open=now_open))


def _source(state: State[Any], other: State[Any]) -> Source:
    """Return the rows of `other`, arranged for the environments of `state`."""
    ring, its = state.ring, other.ring
    lanes = f"num_envs={its.num_envs}"
    if ring.lanes == its.lanes and (ring.autoreset == "next_step") == (
        its.autoreset == "next_step"
    ):
        if its.lockstep or not ring.lockstep or ring.lanes == 1:
            return Lanes(other, 0, its.lanes)
        what = "environments step together in state (lockstep=True), but not in other"
    elif ring.lanes == its.lanes:
        what = f"autoreset is {ring.autoreset!r} in state, but {its.autoreset!r} in other"
    else:
        what = f"state has num_envs={ring.num_envs}, but other has {lanes}"
    if ring.lanes > 1 and state.sampler.is_queue:
        raise ValueError(
            f"fbuf.extend: {what}, and a queue takes the steps of its own environments only; make "
            "state alike, or without num_envs: then it takes the episodes of any environments"
        )
    if ring.lanes > 1:
        return dealt(other, ring.lanes, ring.lockstep)
    if state.sampler.is_queue and other.sampler.is_queue:
        raise ValueError(
            f"fbuf.extend: {what}, and rows that are used once have an order in each environment "
            "only; take them with fbuf.pop, and add them"
        )
    order, _, count = whole_episodes(its)
    return in_one_lane(other, order, count)


def _check_holes(state: State[Any], other: State[Any], source: Source) -> None:
    """Refuse removed rows for a buffer with `removable=False`."""
    if state.ring.removable:
        return
    instead = "make state with fbuf.init(..., removable=True)"
    if other.ring.removable:
        raise ValueError(
            "fbuf.extend: state was made with removable=False, and other may have removed rows; "
            f"make both with removable=False, or {instead}"
        )
    if isinstance(source, Dealt) and source.together:
        raise ValueError(
            f"fbuf.extend: state has num_envs={state.ring.num_envs}, which step together, and "
            f"other has num_envs={other.ring.num_envs}; slots before shorter parts would count as "
            f"removed, and state was made with removable=False; {instead}"
        )


def _check_rows(state: State[Any], other: State[Any]) -> None:
    """Refuse a buffer with another item, or another `next_of`."""
    one, two = state.storage, other.storage
    if one.layout.tree != two.layout.tree:
        raise ValueError(_other_fields(one.item, two.item))
    named = jax.tree.leaves_with_path(one.item)
    for (path, own), its in zip(named, jax.tree.leaves(two.item), strict=True):
        if (own.shape, own.dtype) != (its.shape, its.dtype):
            raise ValueError(
                f"fbuf.extend: both buffers must hold the same item, but the leaf "
                f"item{jax.tree_util.keystr(path)} is {own.dtype}{list(own.shape)} in state and "
                f"{its.dtype}{list(its.shape)} in other"
            )
    one, two = [of.next_obs and of.next_obs.field for of in (state, other)]
    if one != two:
        raise ValueError(
            f"fbuf.extend: both buffers must be made with the same next_of, got {one!r} in state "
            f"and {two!r} in other"
        )


def _other_fields(one: Any, two: Any) -> str:
    """Return an error message with the leaves that only one of two items has."""
    names = [dict.fromkeys(map(_name, jax.tree.leaves_with_path(item))) for item in (one, two)]
    told = "fbuf.extend: both buffers must hold the same item"
    for own, other, of in ((names[0], names[1], "state"), (names[1], names[0], "other")):
        only = [name for name in own if name not in other]
        if only:
            more = f" and {len(only) - _NAMED} more" if len(only) > _NAMED else ""
            told += f"; only {of} has {', '.join(only[:_NAMED])}{more}"
    if names[0] == names[1]:
        told += f", got {jax.tree.structure(one)} in state and {jax.tree.structure(two)} in other"
    return told


def _name(leaf: tuple[Any, Any]) -> str:
    """Return the name of a leaf, for messages."""
    return f"item{jax.tree_util.keystr(leaf[0])}"
