"""Reading all rows."""

from __future__ import annotations

from typing import Any

from fbuf.door.entry import require_state
from fbuf.state import Batch, State
from fbuf.verbs.newest_ids import newest_ids
from fbuf.verbs.read import read
from fbuf.views.item import Item
from fbuf.views.protocol import View


def rows(state: State[Any], *, view: View = Item()) -> Batch[Any]:
    """Read all rows, oldest first: to look at them, to plot, to export.

    It copies the whole buffer. In a training step, use `fbuf.sample` or `fbuf.read`.

    Args:
        state: The buffer; never consumed.
        view: What a row turns into, as for `fbuf.read`; static.

    Returns:
        The rows: leaves `[capacity, ...]`, or `[num_envs, capacity // num_envs, ...]`. The newest
        row is last. `mask` is False where a row was removed, and before the oldest row.

    Raises:
        ValueError: When traced, if the view leaves something to chance.
        TypeError: When traced, if `view` is not a view.
        RuntimeError: If `state` has been consumed.

    Cost: O(N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(6.0))
        >>> fbuf.rows(state).data
        Array([2., 3., 4., 5.], dtype=float32)
    """
    require_state("rows", state)
    return read(state, newest_ids(state, state.ring.lane_length), view=view)
