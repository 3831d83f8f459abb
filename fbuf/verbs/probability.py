"""How likely rows are to be drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.door import batches
from fbuf.door.entry import one_buffer, verb
from fbuf.state import State
from fbuf.storage.ids import Ids


@verb()
def probability(state: State[Any], ids: Ids) -> jax.Array:
    """How likely one draw by `fbuf.sample` is to be each of these rows, as the buffer is now.

    Args:
        state: The buffer; never consumed.
        ids: Which rows, of any shape.

    Returns:
        float32, shaped like `ids`. 0 where an id names no row, one that was overwritten or removed,
        or one that the sampler would not draw, such as a row with too few steps behind it for the
        sampler's window. For `fbuf.Shuffled` it is one of as many rows as an epoch has.

    Raises:
        ValueError: When traced, if `ids` names no rows at all.
        TypeError: When traced, if `ids` are not `fbuf.Ids`.
        RuntimeError: If `state` has been consumed.

    Cost: O(B), by episode O(B log N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
        >>> state = fbuf.init(jnp.zeros(()), capacity=4, sampler=sampler)
        >>> state = fbuf.add(state, jnp.arange(2.0), priority=jnp.array([1.0, 3.0]))
        >>> fbuf.probability(state, fbuf.newest_ids(state, 2))
        Array([0.25, 0.75], dtype=float32)
    """
    one_buffer("probability", state)
    flat, shape = batches.ids("probability", ids)
    live, _, _ = state.ring.find(flat)
    found = state.sampler.probability(state.index, state.ring, jnp.where(live, flat.slot, 0))
    return jnp.where(live, found, 0).reshape(shape)
