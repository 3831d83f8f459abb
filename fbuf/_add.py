"""Adding rows."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax.numpy as jnp

from fbuf import _check, _nexts, _order, _ring, _storage
from fbuf._eager import Compiled
from fbuf._fault import collected
from fbuf._state import Item, State


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
    _check.is_state("add", state)
    _check.host_values("add", state.storage, items)
    alpha = _check.exponent("add", "alpha", alpha)
    if state.nexts is not None:
        _check.host_values("add", state.nexts.rows, next_observation, "next_observation")
    options = (terminated, truncated, next_observation, priority, mask, alpha)
    return _add(donate, state, items, *options, time_major=time_major)


def _write(
    state: State[Item],
    items: Item,
    terminated: Any,
    truncated: Any,
    next_observation: Any,
    priority: Any,
    mask: Any,
    alpha: Any,
    *,
    time_major: bool,
) -> State[Item]:
    _check.one_buffer("add", state)
    num_envs = state.ring.num_envs
    rows, lead = _check.items("add", state.storage.item, items, num_envs, time_major)
    flags = jnp.zeros(lead.size, jnp.uint8)
    for name, value, bit in (
        ("terminated", terminated, _ring.TERMINATED),
        ("truncated", truncated, _ring.TRUNCATED),
    ):
        if value is not None:
            given = _check.flag("add", name, value, lead)
            flags |= jnp.where(given, jnp.uint8(bit), jnp.uint8(0))
    if mask is not None:
        if num_envs is not None and state.ring.lockstep:
            raise ValueError(
                "fbuf.add: mask leaves out rows, but the environments of this buffer step "
                "together; leave mask out, or make the buffer with lockstep=False"
            )
        mask = _check.flag("add", "mask", mask, lead)
    if priority is not None:
        priority = _check.priorities("add", priority, lead.shape, "the rows of items")
        priority = lead.flat(priority)

    led_to = None
    if state.nexts is not None:
        if next_observation is None:
            raise ValueError(
                f"fbuf.add: next_observation is missing: the buffer was made with "
                f"next_of={state.nexts.field!r}, and reads what a step led to from the following "
                "row; give what these rows led to"
            )
        item = state.nexts.rows.item
        led_to, its_lead = _check.items(
            "add", item, next_observation, num_envs, time_major, "next_observation"
        )
        if its_lead != lead:
            raise ValueError(
                f"fbuf.add: next_observation must begin with {lead.shape}, as items do, got "
                f"{its_lead.shape}"
            )
    elif next_observation is not None:
        raise ValueError(
            "fbuf.add: next_observation is for buffers that read it from the following row; make "
            "the buffer with next_of, the name of the observation, or store it as a field"
        )

    # The fault is known once an update of priorities before this has read what is overwritten,
    # and the slots are known once the number of removed rows is.
    removed = _order.after(state.ring.removed, state.fault == jnp.uint32(2**32 - 1))
    ring = dataclasses.replace(state.ring, removed=removed)
    ring, span = _ring.append(ring, flags, mask)
    index, faults = state.sampler.add(state.index, ring, span, priority, alpha)
    nexts = state.nexts
    if nexts is not None:
        nexts, lost = _nexts.add(nexts, ring, span, flags, led_to)
        faults |= lost
    return dataclasses.replace(
        state,
        storage=_storage.write(state.storage, span.slots, rows),
        ring=ring,
        nexts=nexts,
        index=index,
        fault=collected(state.fault, faults),
    )


_add = Compiled("add", _write, static=("time_major",))
