"""Ids that name no row."""

from __future__ import annotations

import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.storage.ids import NO_SLOT, Ids


def no_ids(count: int) -> Ids:
    """Return ids that name no row: `[count]`, for a branch that draws nothing.

    A branch of `jax.lax.cond` that draws must return its ids, and not the state. The other branch
    returns these ones. `fbuf.update_priority` and `fbuf.write` then change nothing. Over a mesh,
    draw outside of the branch: ids there have another form.

    Args:
        count: The number of ids, a static int, at least 1: the batch size of the other branch.

    Returns:
        Ids of shape `[count]` with slot -1.

    Raises:
        ValueError: When traced, if `count` is below 1.
        TypeError: When traced, if `count` is not an int.

    Cost: O(count).

    Examples:
        >>> import fbuf, jax, jax.numpy as jnp
        >>> state = fbuf.init(jnp.zeros(()), capacity=4, sampler=fbuf.Prioritized())
        >>> state = fbuf.add(state, jnp.ones(4))
        >>> def learn():
        ...     batch = fbuf.sample(state, jax.random.key(0), 2)
        ...     return batch.ids, jnp.abs(batch.data)
        >>> def wait():
        ...     return fbuf.no_ids(2), jnp.zeros(2)
        >>> ids, error = jax.lax.cond(fbuf.size(state) >= 1000, learn, wait)
        >>> ids.slot
        Array([-1, -1], dtype=int32)
        >>> state = fbuf.update_priority(state, ids, error)  # nothing changes
    """
    count = check.integer("no_ids", "count", count)
    return Ids(slot=jnp.full(count, NO_SLOT, jnp.int32), generation=jnp.zeros(count, jnp.int32))
