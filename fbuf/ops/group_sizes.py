"""Counting the rows of each group."""

from __future__ import annotations

from typing import Any

import jax

from fbuf.dispatch.call import operation
from fbuf.samplers.grouped import Grouped
from fbuf.samplers.index.group_index import GroupIndex
from fbuf.samplers.protocol.nested import nested
from fbuf.state import State


@operation()
def group_sizes(state: State[Any]) -> jax.Array:
    """Count the rows of each group that `fbuf.Grouped` may draw.

    Args:
        state: The buffer, made with `fbuf.Grouped`; never consumed.

    Returns:
        int32 `[groups]`.

    Raises:
        ValueError: When traced, if the sampler has no groups.
        RuntimeError: If `state` has been consumed.

    Cost: O(1).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> sampler = fbuf.Grouped("task", 3)
        >>> state = fbuf.init({"task": jnp.int32(0)}, capacity=8, sampler=sampler)
        >>> fbuf.group_sizes(fbuf.add(state, {"task": jnp.int32([0, 2, 2, -1])}))
        Array([1, 0, 2], dtype=int32)
    """
    return group_index_of("group_sizes", state).counts[:-1]


def group_index_of(function: str, state: State[Any]) -> GroupIndex:
    """Return the index of the groups; refuse a buffer without groups."""
    sampler = state.sampler
    for sampler, index in nested(state.sampler, state.index, state.ring):
        if isinstance(sampler, Grouped):
            return index
    raise ValueError(
        f"fbuf.{function}: {type(sampler).__name__} has no groups; make the buffer with "
        "sampler=fbuf.Grouped(field, groups)"
    )
