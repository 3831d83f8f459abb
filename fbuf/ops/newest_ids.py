"""Naming the newest rows."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.dispatch import read_before_write
from fbuf.dispatch.call import operation
from fbuf.ops.lane_slots import slots_back
from fbuf.samplers.protocol.placing import refuse
from fbuf.state import State
from fbuf.storage.ids import Ids, live_ids
from fbuf.storage.ring import Ring

_IS_INT = functools.partial(check.integer, smallest=-check.LARGEST_INT)
"""A check of a static int; the largest depends on the buffer."""


@operation(static=("count",), checks={"count": _IS_INT})
def newest_ids(state: State[Any], count: int) -> Ids:
    """Name the newest rows, oldest first: `[count]`, or `[num_envs, count]`.

    Args:
        state: The buffer; never consumed.
        count: The number of rows, a static int from 1 to the capacity. With `num_envs`, the number
            of rows of each environment, from 1 to `capacity // num_envs`.

    Returns:
        Their ids, `[count]`, or `[num_envs, count]`, the newest row last. Ids of removed rows name
        no row (slot -1). If there are fewer rows, the first ids name no row.

    Raises:
        ValueError: When traced, if `count` is below 1, or larger than a lane.
        TypeError: When traced, if `count` is not an int.
        RuntimeError: If `state` has been consumed.

    Cost: O(count) for each environment.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(6.0))
        >>> fbuf.newest_ids(state, 3).slot
        Array([3, 0, 1], dtype=int32)
    """
    refuse("newest_ids", state.sampler)
    ring = state.ring
    check.integer("newest_ids", "count", count, ring.lane_length)
    ids = newest(ring, count)
    read_before_write.note_read(state, ids.slot)
    return ids


def newest(ring: Ring, count: int) -> Ids:
    """Return the ids of the newest rows of each lane, oldest first.

    Where rows lie in no order of time, they are those of the last slots.
    """
    back = jnp.arange(count - 1, -1, -1, dtype=jnp.int32)[None]
    return live_ids(ring, slots_back(ring, back, back < ring.lane_steps()[:, None]))
