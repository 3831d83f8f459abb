"""Naming the rows of one group."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import read_before_write
from fbuf.dispatch.call import operation
from fbuf.ops.group_sizes import group_index_of
from fbuf.samplers.index import group_index
from fbuf.state import State
from fbuf.storage.ids import Ids, ids_of

_COUNT = functools.partial(check.integer, smallest=1)


@operation(static=("count",), checks={"count": _COUNT, "group": check.count, "first": check.count})
def group_ids(state: State[Any], group: Array | int, count: int, *, first: Array | int = 0) -> Ids:
    """Name the drawable rows of one group, oldest first.

    Args:
        state: The buffer, made with `fbuf.Grouped`; never consumed.
        group: The number of the group; may be traced.
        count: The number of rows, a static int of at least 1.
        first: The place of the first one among the rows of the group, from 0; may be traced.

    Returns:
        Their ids, `[count]`. They name no row (slot -1) behind the last row of the group, and if
        there is no such group. With `lockstep=False` the order is that of slots.

    Raises:
        ValueError: When traced, if the sampler has no groups, or if `count` is below 1.
        TypeError: When traced, if `count` is not an int.
        RuntimeError: If `state` has been consumed.

    Cost: O(count log N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> item = {"x": jnp.zeros(()), "task": jnp.int32(0)}
        >>> state = fbuf.init(item, capacity=8, sampler=fbuf.Grouped("task", 2))
        >>> state = fbuf.add(state, {"x": jnp.arange(4.0), "task": jnp.int32([0, 1, 0, 1])})
        >>> fbuf.read(state, fbuf.group_ids(state, 1, 3)).data["x"]
        Array([1., 3., 0.], dtype=float32)
    """
    index, ring = group_index_of("group_ids", state), state.ring
    group, first = jnp.asarray(group, jnp.int32), jnp.asarray(first, jnp.int32)
    number = index.counts.shape[0] - 1
    is_group = (group >= 0) & (group < number)
    group = jnp.where(is_group, group, number)
    size = index.counts[group]
    step = jnp.arange(count, dtype=jnp.int32)
    there = (step < jnp.maximum(size - first, 0)) & is_group & (first >= 0)
    ranks = jnp.where(there, first + step, 0)
    groups = jnp.broadcast_to(group, (count,))
    slots = group_index.select_oldest(index, ring, groups, ranks)
    ids = ids_of(ring, slots, there)
    read_before_write.note_read(state, ids.slot)
    return ids
