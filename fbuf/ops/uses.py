"""Counting how often rows were drawn."""

from __future__ import annotations

from typing import Any, overload

import jax
import jax.numpy as jnp

from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import operation_of_both
from fbuf.samplers.limited import Limited, LimitedIndex
from fbuf.sharded_state import ShardedIds, ShardedState
from fbuf.state import State
from fbuf.storage.ids import Ids, look_up
from fbuf.xla.rows import read_rows


@overload
def uses(state: State[Any], ids: Ids) -> jax.Array: ...
@overload
def uses(state: ShardedState[Any], ids: ShardedIds) -> jax.Array: ...
@operation_of_both()
def uses(state: State[Any], ids: Ids) -> jax.Array:
    """Count how often rows were drawn by `fbuf.draw`.

    Args:
        state: The buffer, made with `fbuf.Limited(max_uses=...)`; never consumed.
        ids: `batch.ids`, of any shape.

    Returns:
        int32, shaped like the ids. 0 for an id that names no row, or one that has been overwritten
        or removed.

    Raises:
        ValueError: When traced, if the sampler counts no draws.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`.
        RuntimeError: If `state` has been consumed.

    Cost: O(B).

    Over a mesh: `ids` are as for `fbuf.update_priority`, and the result is laid out like them. It
    takes one `all_gather` of 12 bytes for each id, and one `reduce_scatter` of 4 bytes.

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Limited(max_uses=9))
        >>> state = fbuf.add(state, jnp.arange(3, dtype=jnp.int32))
        >>> state, batch = fbuf.draw(state, jax.random.key(0), 5)
        >>> int(fbuf.uses(state, fbuf.ids_at(state, jnp.arange(3))).sum())
        5
    """
    with_uses("uses", state)
    flat, shape = parse.ids("uses", ids)
    found = counted(state, flat)
    read_before_write.note_read(state, found)
    return found.reshape(shape)


def counted(state: State[Any], ids: Ids) -> jax.Array:
    """Return the uses of rows by `[B]` ids; 0 for an id that names no stored row."""
    uses = with_uses("uses", state)
    live = look_up(state.ring, ids).live
    return jnp.where(live, read_rows(uses, jnp.where(live, ids.slot, 0)), 0)


def with_uses(function: str, state: State[Any]) -> jax.Array:
    """Return the uses of all slots; refuse a buffer that counts none."""
    _, index = limited_of(function, state)
    if index.lives.uses is None:
        raise ValueError(
            f"fbuf.{function}: Limited counts no draws; make the buffer with "
            "fbuf.Limited(max_uses=...)"
        )
    return index.lives.uses


def limited_of(function: str, state: State[Any]) -> tuple[Limited, LimitedIndex]:
    """Return the sampler and its index; refuse a buffer without limits."""
    if not isinstance(state.sampler, Limited):
        raise ValueError(
            f"fbuf.{function}: {type(state.sampler).__name__} limits no rows; make the buffer with "
            "sampler=fbuf.Limited(...)"
        )
    return state.sampler, state.index
