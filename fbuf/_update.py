"""Changing rows that are stored: their priority, and whether they are there at all."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf import _check, _nexts, _order, _ring
from fbuf._eager import Compiled
from fbuf._fault import Fault, bits_where, collected
from fbuf._ring import Ids
from fbuf._state import Item, State
from fbuf.trees._levels import last_of_each


def update_priority(
    state: State[Item],
    ids: Ids,
    priority: chex.Array,
    *,
    mask: chex.Array | None = None,
    alpha: chex.Array | float | None = None,
    donate: bool = True,
) -> State[Item]:
    """Give sampled rows new priorities, as learned from their TD errors.

    What is stored is `(priority + eps) ** alpha`.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        ids: `sample.ids`, of any shape. Rows may repeat: the last priority given then counts.
            Entries that name no row (from the masked part of a sample) are passed over.
        priority: Real, shaped like `ids`; finite and at least 0: the magnitude of the error.
        mask: bool, shaped like `ids`; entries to apply. None is all.
        alpha: At least 0, may be traced; used instead of the sampler's.
        donate: As for `fbuf.add`.

    Returns:
        The buffer with the new priorities.

    Raises:
        ValueError: When traced, if a shape does not fit, or the sampler keeps no priorities.
        TypeError: When traced, if `ids` are not `fbuf.Ids`, or a dtype does not fit.
        RuntimeError: If `state` has been consumed.

    Faults:
        BAD_PRIORITY: A priority is NaN, infinite, negative or too large to be summed.
        ID_OUT_OF_RANGE: A slot is outside the buffer.
        STALE_ID: A row has been overwritten or removed since it was drawn.
        In each case that entry is skipped, and all others are applied.

    Cost: O(B log N) time, O(B) memory.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(()), capacity=4, sampler=fbuf.Prioritized())
        >>> state = fbuf.add(state, jnp.arange(4.0))
        >>> batch = fbuf.sample(state, jax.random.key(0), 2)
        >>> state = fbuf.update_priority(state, batch.ids, jnp.abs(batch.data - 1.0))

    References:
        Schaul et al., Prioritized Experience Replay, ICLR 2016, arXiv:1511.05952.
    """
    _check.is_ids("update_priority", ids)
    alpha = _check.exponent("update_priority", "alpha", alpha)
    return _update_priority(donate, state, ids, priority, mask, alpha)


def remove(
    state: State[Item], ids: Ids, *, mask: chex.Array | None = None, donate: bool = True
) -> State[Item]:
    """Take rows out of the buffer: they are never drawn again, and their ids become stale.

    Their slots stay taken until the ring comes around to them.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        ids: `sample.ids`, of any shape. Rows may repeat; entries that name no row are passed over.
        mask: bool, shaped like `ids`; entries to apply. None is all.
        donate: As for `fbuf.add`.

    Returns:
        The buffer without the rows.

    Raises:
        ValueError: When traced, if a shape does not fit.
        TypeError: When traced, if `ids` are not `fbuf.Ids`, or `mask` is not bool.
        RuntimeError: If `state` has been consumed.

    Faults:
        ID_OUT_OF_RANGE: A slot is outside the buffer; that entry is skipped.
        STALE_ID: A row has been overwritten, or removed before; that entry is skipped.

    Cost: O(B log N) time, O(B) memory; sorts ids when B > 1024, else compares them in pairs.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(4.0))
        >>> state = fbuf.remove(state, fbuf.sample(state, jax.random.key(0), 1).ids)
        >>> int(fbuf.size(state))
        3
    """
    _check.is_ids("remove", ids)
    return _remove(donate, state, ids, mask)


def clear(state: State[Item], *, donate: bool = True) -> State[Item]:
    """Take all rows out, and forget all faults; ids from before are stale from then on.

    Args:
        state: The buffer. Called eagerly it is consumed, see `donate`.
        donate: As for `fbuf.add`.

    Returns:
        The empty buffer.

    Raises:
        RuntimeError: If `state` has been consumed.

    Cost: the rows are left as they are, and so is the sampler's index: O(1). But with
    `lockstep=False`, and where episodes are drawn, the index is zeroed, and with `next_of` the
    names of `max_ends` rows.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(4.0))
        >>> int(fbuf.size(fbuf.clear(state)))
        0
    """
    return _clear(donate, state)


def _rewrite_priority(
    state: State[Item], ids: Any, priority: Any, mask: Any, alpha: Any
) -> State[Item]:
    _check.one_buffer("update_priority", state)
    shape = jnp.shape(ids.slot)
    slots, faults = named("update_priority", state, ids, mask)
    priority = _check.priorities("update_priority", priority, shape, "ids").reshape(-1)
    index, bad = state.sampler.update_priority(state.index, state.ring, slots, priority, alpha)
    return dataclasses.replace(state, index=index, fault=collected(state.fault, faults | bad))


def _take_out(state: State[Item], ids: Any, mask: Any) -> State[Item]:
    _check.one_buffer("remove", state)
    slots, faults = named("remove", state, ids, mask)
    slots = jnp.where(last_of_each(slots), slots, state.capacity)
    # The fault is known once an update of priorities before this has read the flags.
    slots = _order.after(slots, state.fault == jnp.uint32(2**32 - 1))
    ring = _ring.remove(state.ring, slots)
    index = state.sampler.remove(state.index, ring, slots)
    fault = collected(state.fault, faults)
    return dataclasses.replace(state, ring=ring, index=index, fault=fault)


def _empty(state: State[Item]) -> State[Item]:
    _check.one_buffer("clear", state)
    return dataclasses.replace(
        state,
        ring=_ring.cleared(state.ring),
        nexts=None if state.nexts is None else _nexts.cleared(state.nexts),
        index=state.sampler.clear(state.index, state.ring),
        # Used, and so consumed like the rest: an argument that jit leaves out is not.
        fault=state.fault & jnp.uint32(0),
    )


def named(function: str, state: State[Item], ids: Any, mask: Any) -> tuple[jax.Array, jax.Array]:
    """The slots that ids name, the capacity where they name none, and each one's fault bits."""
    flat = _check.ids(function, ids)
    live, outside, stale = _ring.find(state.ring, flat)
    if mask is not None:
        _check.no_list(function, "mask", mask)
        if jnp.shape(mask) != jnp.shape(ids.slot) or jnp.result_type(mask) != jnp.bool_:
            raise ValueError(
                f"fbuf.{function}: mask must be bool of shape {jnp.shape(ids.slot)}, like ids, "
                f"got {jnp.result_type(mask)} of shape {jnp.shape(mask)}"
            )
        chosen = jnp.asarray(mask).reshape(-1)
        live, outside, stale = live & chosen, outside & chosen, stale & chosen
    faults = bits_where(outside, Fault.ID_OUT_OF_RANGE) | bits_where(stale, Fault.STALE_ID)
    return jnp.where(live, flat.slot, state.capacity), faults


_update_priority = Compiled("update_priority", _rewrite_priority)
_remove = Compiled("remove", _take_out)
_clear = Compiled("clear", _empty)
