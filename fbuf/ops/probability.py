"""The probability of drawing a row."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import operation
from fbuf.state import State
from fbuf.storage.ids import Ids, look_up


@operation()
def probability(state: State[Any], ids: Ids) -> jax.Array:
    """Compute the probability that one draw is each of these rows, from the buffer as it is now.

    Args:
        state: The buffer; never consumed.
        ids: The rows, of any shape.

    Returns:
        float32, shaped like `ids`. It is 0 where an id names no row, or an overwritten or removed
        row. It is also 0 for a row that the sampler does not draw, such as one whose window is not
        complete. For `fbuf.Shuffled` it is the share of an epoch's draws that the row has on
        average: 1 / starts, or by episode 1 / (episodes * starts of its episode).

    Raises:
        ValueError: When traced, if `ids` is empty.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`.
        RuntimeError: If `state` has been consumed.

    Cost: O(B); by episode O(B log N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> sampler = fbuf.Prioritized(alpha=1.0, eps=0.0)
        >>> state = fbuf.init(jnp.zeros(()), capacity=4, sampler=sampler)
        >>> state = fbuf.add(state, jnp.arange(2.0), priority=jnp.array([1.0, 3.0]))
        >>> fbuf.probability(state, fbuf.newest_ids(state, 2))
        Array([0.25, 0.75], dtype=float32)
    """
    flat, shape = parse.ids("probability", ids)
    live = look_up(state.ring, flat).live
    found = state.sampler.probability(state.index, state.ring, jnp.where(live, flat.slot, 0))
    read_before_write.note_read(state, found)
    return jnp.where(live, found, 0).reshape(shape)
