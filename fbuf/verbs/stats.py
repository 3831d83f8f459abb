"""Figures for a log."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf.door.entry import one_buffer, verb
from fbuf.state import State


@verb()
def stats(state: State[Any]) -> dict[str, jax.Array]:
    """Return figures for a log: cheap scalars.

    Args:
        state: The buffer; never consumed.

    Returns:
        `size`, `capacity`, `removed` (removed rows and dummies that are not overwritten yet),
        `fault` (bits of `fbuf.Fault`), and what the sampler adds. With a window: `num_starts`, the
        number of rows that may be drawn. By episode: `num_episodes`, the number of episodes with a
        start. For `Shuffled`: `epoch_size`, the number of draws of an epoch. For `Prioritized`:
        `priority_total`, the sum of all stored priorities, and `new_priority`, what a new row would
        get.

    Raises:
        RuntimeError: If `state` has been consumed.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=2), jnp.arange(3.0))
        >>> {name: int(figure) for name, figure in fbuf.stats(state).items()}
        {'capacity': 2, 'fault': 0, 'removed': 0, 'size': 2}
    """
    one_buffer("stats", state)
    sampler, index, ring = state.sampler, state.index, state.ring
    epoch = {"epoch_size": sampler.epoch_size(index, ring)} if sampler.in_order else {}
    return {
        "size": state.ring.count() - state.ring.removed,
        "capacity": jnp.int32(state.capacity),
        "removed": state.ring.removed,
        "fault": state.fault,
        **epoch,
        **sampler.stats(index, ring),
    }
