"""Adding rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.door import batches
from fbuf.door.batches import Lead
from fbuf.door.entry import one_buffer, verb
from fbuf.door.order import warn_if_sampled
from fbuf.state import State
from fbuf.storage.faults import collected
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.storage.store import Item


@verb(static=("time_major",), checks={"alpha": check.scalar, "time_major": check.boolean})
def add(
    state: State[Item],
    items: Item,
    *,
    terminated: chex.Array | bool | None = None,
    truncated: chex.Array | bool | None = None,
    next_observation: Any = None,
    priority: chex.Array | float | None = None,
    mask: chex.Array | bool | None = None,
    time_major: bool = False,
    alpha: chex.Array | float | None = None,
    donate: bool = True,
) -> State[Item]:
    """Write rows behind the newest one; in a full buffer the oldest rows make way.

    `B` is the number of rows given. Rows go to consecutive slots, in the order given. Of more
    items than the capacity, the last `capacity` are kept.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        items: The item's tree, with one leading axis (a batch, leaves `[B, ...]`) or none (one
            item). In a buffer with environments `[num_envs, ...]` is one step of all of them, and
            `[num_envs, T, ...]` are T. Shapes are never broadcast and dtypes never cast; Python
            scalars are taken.
        terminated: bool, of the leading shape of `items` (a scalar for one item); the episode
            ended by itself at this row. None is False. Stored with the row.
        truncated: bool, like `terminated`; the episode was cut off after this row. None is False.
        next_observation: What each row's step led to, for a buffer made with `next_of`, and then
            not to be left out: a tree like that field, of the leading shape of `items`. At the end
            of an episode the last observation of that episode, not the first one of the next. It is
            kept for the newest row and the ends of episodes only; the following row has the others.
        priority: Real, like `terminated`, finite and at least 0; the rows' priorities, before
            `eps` and `alpha`. None gives each row the sampler's default.
        mask: bool, like `terminated`; the rows to write, others leave no gap. None is all. With
            environments the buffer must be made with `lockstep=False`, for it: each environment
            then has a head of its own.
        time_major: T steps are given as `[T, num_envs, ...]`, flags and priorities too.
        alpha: At least 0, may be traced; used for `priority` instead of the sampler's.
        donate: If called eagerly, write into the memory of `state`, which is then used up (the
            copy that `donate=False` makes takes time in proportion to the capacity). Inside
            `jit` it has no meaning: donate there to the outermost jit.

    Returns:
        The buffer with the rows in it.

    Raises:
        ValueError: When traced, if a shape or the tree does not fit, if the batch is empty, or if
            `priority` or `alpha` is given and the sampler keeps none.
        TypeError: When traced, if a dtype does not fit.
        RuntimeError: If `state` has been consumed.

    Faults:
        BAD_PRIORITY: A priority is NaN, infinite, negative, or too large to be summed. The row is
            written all the same, with the sampler's default priority.
        LOST_NEXT: More episodes ended than the buffer keeps the last observation of.

    Cost: O(B log N) time and O(B) memory, whatever is stored.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init({"x": jnp.zeros(2)}, capacity=4)
        >>> state = fbuf.add(state, {"x": jnp.ones((3, 2))}, terminated=jnp.array([0, 0, 1], bool))
        >>> state = fbuf.add(state, {"x": jnp.ones(2)})
        >>> int(fbuf.size(state))
        4
    """
    one_buffer("add", state)
    warn_if_sampled("add", state)
    ring, sampler = state.ring, state.sampler
    rows, lead = batches.rows("add", state.storage.item, items, ring.num_envs, time_major)
    flags = _flags(terminated, truncated, lead)
    if mask is not None:
        if ring.num_envs is not None and ring.lockstep:
            raise ValueError(
                "fbuf.add: mask leaves out rows, but the environments of this buffer step "
                "together; leave mask out, or make the buffer with lockstep=False"
            )
        mask = batches.flags("add", "mask", mask, lead)
    if not sampler.keeps_priorities and (priority is not None or alpha is not None):
        raise ValueError(no_priorities("add", state))
    if priority is not None:
        priority = batches.priorities("add", priority, lead.shape, "the rows of items")
        priority = lead.flat(priority)
    following = _next_observations(state, next_observation, lead, time_major)

    # The fault is known once all that was asked of the buffer before this has been read.
    ring, span = ring.append(flags, mask, before=state.fault)
    index, faults = sampler.add(state.index, ring, span, priority, alpha)
    next_obs = state.next_obs
    if next_obs is not None:
        next_obs, lost = next_obs.add(ring, span, flags, following)
        faults |= lost
    return dataclasses.replace(
        state,
        storage=state.storage.write(span.slots, rows),
        ring=ring,
        next_obs=next_obs,
        index=index,
        fault=collected(state.fault, faults),
    )


def no_priorities(function: str, state: State[Any]) -> str:
    """What to say to whom gives priorities to a sampler that keeps none."""
    return (
        f"fbuf.{function}: the buffer's sampler is {type(state.sampler).__name__}, which keeps no "
        "priorities; leave priority and alpha out, or make the buffer with "
        "sampler=fbuf.Prioritized()"
    )


def _flags(terminated: Any, truncated: Any, lead: Lead) -> jax.Array:
    """The flags of new rows: uint8 `[B]`."""
    flags = jnp.zeros(lead.size, jnp.uint8)
    for name, value, bit in (
        ("terminated", terminated, TERMINATED),
        ("truncated", truncated, TRUNCATED),
    ):
        if value is not None:
            given = batches.flags("add", name, value, lead)
            flags |= jnp.where(given, jnp.uint8(bit), jnp.uint8(0))
    return flags


def _next_observations(state: State[Any], given: Any, lead: Lead, time_major: bool) -> Any:
    """What the rows led to, leaves `[B, ...]`, if the buffer keeps it."""
    if state.next_obs is None:
        if given is not None:
            raise ValueError(
                "fbuf.add: next_observation is for buffers that read it from the following row; "
                "make the buffer with next_of, the name of the observation, or store it as a field"
            )
        return None
    if given is None:
        raise ValueError(
            f"fbuf.add: next_observation is missing: the buffer was made with "
            f"next_of={state.next_obs.field!r}, and reads what a step led to from the following "
            "row; give what these rows led to"
        )
    item, num_envs = state.next_obs.rows.item, state.ring.num_envs
    rows, its_lead = batches.rows("add", item, given, num_envs, time_major, "next_observation")
    if its_lead != lead:
        raise ValueError(
            f"fbuf.add: next_observation must begin with {lead.shape}, as items do, got "
            f"{its_lead.shape}"
        )
    return rows
