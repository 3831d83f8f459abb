"""Adding rows."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, overload

import jax
import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation_of_both
from fbuf.dispatch.parse import Lead
from fbuf.ops.end_episode import end_lanes
from fbuf.samplers.protocol import queues, row_fields
from fbuf.samplers.protocol.placing import PlacingSampler
from fbuf.samplers.protocol.sampler import Given
from fbuf.sharded_state import ShardedState
from fbuf.state import State
from fbuf.storage.append import append, fitting, resets_after
from fbuf.storage.faults import Fault, bits_where, collected
from fbuf.storage.next_obs import NextObs
from fbuf.storage.place import place
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.storage.store import Item
from fbuf.xla.tie import unfolded

_MANY = 4096
"""Rows; XLA would take seconds to constant-fold the zero flags of more."""


def _numbers_fit(function: str, state: State[Any], given: dict[str, Any]) -> None:
    """Refuse Python numbers that the buffer cannot store."""
    parse.python_numbers(function, "items", state.storage.item, given["items"])
    if state.next_obs is not None and "next_observation" in given:
        item = state.next_obs.rows.item
        parse.python_numbers(function, "next_observation", item, given["next_observation"])


@overload
def add(
    state: State[Item],
    items: Item,
    *,
    terminated: Array | bool | None = None,
    truncated: Array | bool | None = None,
    next_observation: Any = None,
    priority: Array | float | None = None,
    mask: Array | bool | None = None,
    time_major: bool = False,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> State[Item]: ...
@overload
def add(
    state: ShardedState[Item],
    items: Item,
    *,
    terminated: Array | bool | None = None,
    truncated: Array | bool | None = None,
    next_observation: Any = None,
    priority: Array | float | None = None,
    mask: Array | bool | None = None,
    time_major: bool = False,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> ShardedState[Item]: ...
@operation_of_both(
    static=("time_major",),
    checks={"alpha": check.scalar, "time_major": check.boolean},
    host_check=_numbers_fit,
)
def add(
    state: State[Item],
    items: Item,
    *,
    terminated: Array | bool | None = None,
    truncated: Array | bool | None = None,
    next_observation: Any = None,
    priority: Array | float | None = None,
    mask: Array | bool | None = None,
    time_major: bool = False,
    alpha: Array | float | None = None,
    donate: bool = True,
) -> State[Item]:
    """Write rows after the newest one; in a full buffer they replace the oldest ones.

    `B` is the number of rows. They go to consecutive slots, in the order given. If there are more
    rows than `capacity`, the buffer keeps the last `capacity`. A buffer made with `fbuf.Fifo` never
    replaces an unread row: it keeps the first rows that fit.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        items: The item's tree: leaves `[B, ...]` for a batch, or shaped like the item's for one
            item. With `num_envs`, `[num_envs, ...]` is one step of all environments, and
            `[num_envs, T, ...]` are T steps. Shapes are never broadcast and dtypes never cast.
            Python scalars are accepted.
        terminated: bool, in the leading shape of `items` (a scalar for one item): the episode ended
            by itself at this row. None is False. The buffer stores it with the row.
        truncated: bool, like `terminated`: the episode was cut off after this row. None is False.
        next_observation: The observation after each row's step: a tree like the field `next_of`, in
            the leading shape of `items`. A buffer made with `next_of` needs it, and no other takes
            it. At the end of an episode give the last observation of that episode, not the first
            one of the next. The buffer keeps it for the newest row and for ends of episodes. Others
            are read from the following row.
        priority: Real, like `terminated`, finite and at least 0: the priorities of the rows. The
            sampler applies `eps`, `floor` and `alpha` to them. None gives each row the sampler's
            default.
        mask: bool, like `terminated`: which rows to write. The others leave no gap. None is all.
            If environments step together, `[T]`, or a scalar for one step: which steps to write. So
            one program serves batches of all lengths: pad them, and mask the padding.
        time_major: Take T steps as `[T, num_envs, ...]`; flags and priorities, too.
        alpha: A number of at least 0, may be traced. It replaces the sampler's `alpha` for these
            priorities.
        donate: In a call from Python, write into the memory of `state`; you cannot use `state`
            afterwards. False copies the buffer first, which takes time in proportion to the
            capacity. Inside `jit` it means nothing: donate at the outermost `jit`.

    Returns:
        The buffer with the rows in it.

    Raises:
        ValueError: When traced, if a shape or the tree does not fit, or if the batch is empty. Also
            if you give `priority` or `alpha`, and the sampler keeps no priorities.
        TypeError: When traced, if a dtype does not fit. Also if rows or next observations are
            differentiated: no gradient goes through a buffer, and it would be 0. If none is wanted,
            give `jax.lax.stop_gradient(items)`. Also if other code has changed the arrays of
            `state`, such as a cast of a tree that holds it.
        RuntimeError: If `state` has been consumed.

    Faults:
        BAD_PRIORITY: A priority is NaN, infinite, negative, or too large to be summed. If a traced
            `alpha` is negative, infinite or NaN, every priority is bad. The buffer writes the row
            with the sampler's default priority.
        LOST_NEXT: More episodes ended than the buffer keeps last observations of (`max_ends`).
        BROKEN_EPISODE: With `next_of`: an observation is not the `next_observation` of the row
            before, and no episode ended between them. The buffer writes the row. Roundings to
            bfloat16 or float16 do not count. 256 numbers are compared of a leaf of over 1,024.
        NOTHING_TO_DRAW: The buffer is full, or an environment's part of it with `lockstep=False`,
            and no row can be drawn. All episodes are shorter than the sampler's window, or all
            priorities are 0. `fbuf.raise_on_fault` raises while no row can be drawn.
        FULL: A buffer made with `fbuf.Fifo` has no room. It leaves the last rows out.
        LOST_UNREAD: One made with `fbuf.Fifo(overwrite=True)` has no room. It loses the oldest
            unread rows.

    Cost: O(B log N) time and O(B) memory, whatever is stored.

    Over a mesh: `items` are the rows of all shards together, and each row goes to the shard of its
    environment. Without `num_envs`, `B` is a multiple of the shards, and each shard gets an equal
    part, in order. Let the rows lie on the mesh along the environments, so that nothing is sent:
    `jax.device_put(items, jax.NamedSharding(mesh, jax.P("data")))`. Processes with rows of their
    own make one array of them: `jax.make_array_from_process_local_data`. Inside `shard_map`,
    `items` are the rows of this device. A default priority is the largest of all shards, which
    takes a collective of 4 bytes. A `mask` of steps is the same on all devices.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"x": jnp.zeros(2)}, capacity=4)
        >>> state = fbuf.add(state, {"x": jnp.ones((3, 2))}, terminated=jnp.array([0, 0, 1], bool))
        >>> state = fbuf.add(state, {"x": jnp.ones(2)})
        >>> int(fbuf.size(state))
        4
    """
    given = GivenRows(items, terminated, truncated, next_observation, priority, mask, alpha)
    return added(state, given, time_major)


class GivenRows(NamedTuple):
    """The arguments of `add` that are arrays."""

    items: Any
    terminated: Any = None
    truncated: Any = None
    next_observation: Any = None
    priority: Any = None
    mask: Any = None
    alpha: Any = None


def added(state: State[Item], given: GivenRows, time_major: bool) -> State[Item]:
    """Return the buffer with rows in it; see `add`."""
    ring, sampler = state.ring, state.sampler
    new = parsed("add", state, ring.num_envs, given, time_major)
    flags, mask = new.flags, new.mask
    if given.terminated is None and given.truncated is None and new.lead.size >= _MANY:
        flags = unfolded(flags, state.fault)
    room, left_out, resets = queues.room(sampler, state.index, ring), None, None
    if room is not None:
        resets = resets_after(ring, flags, mask)
        mask, left_out = fitting(ring, mask, room, new.lead.size)

    # The fault is known once all earlier reads of the buffer are done.
    index = state.index
    if isinstance(sampler, PlacingSampler):
        meant = jnp.ones(new.lead.size, bool) if mask is None else mask
        index, slots = sampler.place(index, ring, meant, Given(new.priority, given.alpha))
        ring, span = place(ring, flags, slots, before=state.fault)
    else:
        ring, span = append(ring, flags, mask, before=state.fault)
    looked_at = row_fields.of_rows(sampler, state.storage.layout, new.rows)
    span = dataclasses.replace(span, fields=looked_at, priority=new.priority, alpha=given.alpha)
    index, faults = sampler.add(index, ring, span)
    next_obs = state.next_obs
    if next_obs is not None:
        field = state.storage.layout.find("add", "next_of", next_obs.field)
        leaves = jax.tree.leaves(new.rows)
        observation = jax.tree.map(lambda number: leaves[number], field)
        next_obs, lost = next_obs.add(ring, span, flags, new.following, observation=observation)
        faults |= lost
    if sampler.may_draw_nothing:
        nothing = ring.has_come_around() & ~sampler.can_sample(index, ring)
        faults |= bits_where(nothing, Fault.NOTHING_TO_DRAW)
    added = dataclasses.replace(
        state,
        storage=state.storage.write(span.slots, new.rows),
        ring=ring,
        next_obs=next_obs,
        index=index,
        fault=collected(state.fault, faults),
    )
    return added if left_out is None else with_gap(added, left_out, resets)


class NewRows(NamedTuple):
    """The rows that `add` writes: leaves `[B, ...]`, None for a missing argument."""

    rows: Any
    lead: Lead
    flags: jax.Array
    mask: jax.Array | None
    priority: jax.Array | None
    following: Any


def parsed(
    function: str, state: State[Any], num_envs: int | None, given: GivenRows, time_major: bool
) -> NewRows:
    """Check the arguments of `add`, and bring them to a batch.

    Args:
        function: The called function, for errors.
        state: The buffer; only its static parts are read.
        num_envs: The number of environments of the rows.
        given: The arguments.
        time_major: As for `add`.
    """
    items, terminated, truncated, next_observation, priority, mask, alpha = given
    rows, lead = parse.rows(function, state.storage.item, items, num_envs, time_major)
    flags = _flags(function, terminated, truncated, lead)
    if mask is not None and num_envs is not None and state.ring.lockstep:
        mask = parse.steps(function, mask, lead, num_envs)
    elif mask is not None:
        mask = parse.flags(function, "mask", mask, lead)
    if not state.sampler.keeps_priorities and (priority is not None or alpha is not None):
        raise ValueError(no_priorities(function, state))
    if priority is not None:
        priority = parse.priorities(function, priority, lead.shape, "the rows of items")
        priority = lead.flat(priority)
    following = _following(function, state.next_obs, next_observation, lead, num_envs, time_major)
    return NewRows(rows, lead, flags, mask, priority, following)


def with_gap(state: State[Item], left_out: jax.Array, resets: jax.Array | None) -> State[Item]:
    """Mark a gap where rows were left out, bool `[B]`: the next row is no continuation."""
    faults = bits_where(left_out, Fault.FULL)
    lanes = left_out.reshape(-1, state.ring.lanes).any(axis=0)
    state = dataclasses.replace(state, fault=collected(state.fault, faults))
    return end_lanes(state, lanes, resets)


def no_priorities(function: str, state: State[Any]) -> str:
    """Return the error message for a sampler without priorities."""
    advice = "leave priority and alpha out"
    if function == "update_priority":
        advice = "leave the call out (`sampler.keeps_priorities` says whether to)"
    return (
        f"fbuf.{function}: {type(state.sampler).__name__} keeps no priorities; {advice}, or make "
        "the buffer with sampler=fbuf.Prioritized()"
    )


def _flags(function: str, terminated: Any, truncated: Any, lead: Lead) -> jax.Array:
    """Return the flags of new rows: uint8 `[B]`."""
    flags = jnp.zeros(lead.size, jnp.uint8)
    for name, value, bit in (
        ("terminated", terminated, TERMINATED),
        ("truncated", truncated, TRUNCATED),
    ):
        if value is not None:
            given = parse.flags(function, name, value, lead)
            flags |= jnp.where(given, jnp.uint8(bit), jnp.uint8(0))
    return flags


def _following(
    function: str,
    next_obs: NextObs | None,
    given: Any,
    lead: Lead,
    num_envs: int | None,
    time_major: bool,
) -> Any:
    """Return the next observations of the rows, leaves `[B, ...]`, if the buffer keeps them."""
    if next_obs is None:
        if given is not None:
            raise ValueError(
                f"fbuf.{function}: next_observation is for buffers made with next_of; make the "
                "buffer with next_of='observation' (the name of that field), or store the next "
                "observation as a field of the item"
            )
        return None
    if given is None:
        raise ValueError(
            f"fbuf.{function}: next_observation is missing; the buffer was made with "
            f"next_of={next_obs.field!r}, so give the observation after each of these steps"
        )
    item = next_obs.rows.item
    rows, its_lead = parse.rows(function, item, given, num_envs, time_major, "next_observation")
    if its_lead != lead:
        raise ValueError(
            f"fbuf.{function}: next_observation must have the leading shape of items, "
            f"{lead.shape}, got {its_lead.shape}"
        )
    return rows
