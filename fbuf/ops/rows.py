"""Reading all rows."""

from __future__ import annotations

from typing import Any

from fbuf.dispatch.call import operation
from fbuf.ops.newest_ids import newest
from fbuf.ops.read import is_view, named_rows
from fbuf.state import Batch, State
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View


@operation(static=("view",), checks={"view": is_view})
def rows(state: State[Any], *, view: View[Data] = Item()) -> Batch[Data]:
    """Read all rows, oldest first, padded to the capacity; `mask` is True where there is a row.

    It is for looking, for plots and for export, and copies the whole buffer. In a training step,
    use `fbuf.sample` or `fbuf.read`.

    Args:
        state: The buffer; never consumed.
        view: The view of each row, as for `fbuf.read`; static.

    Returns:
        The rows: leaves `[capacity, ...]`, or `[num_envs, capacity // num_envs, ...]`. The newest
        row is last. `mask` is False before the oldest row, and where a row was removed or is the
        dummy of a reset.

    Raises:
        ValueError: When traced, if the view leaves something to chance, or if it has
            `time_major=True` and the buffer has environments.
        TypeError: When traced, if `view` is not a view.
        RuntimeError: If `state` has been consumed.

    Cost: O(N).

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(6.0))
        >>> fbuf.rows(state).data
        Array([2., 3., 4., 5.], dtype=float32)
    """
    if view.is_random:
        raise ValueError(
            f"fbuf.rows: {type(view).__name__} is random, and fbuf.rows takes no key; use "
            "fbuf.read(state, fbuf.newest_ids(state, count), view=view, key=key)"
        )
    ids = newest(state.ring, state.ring.lane_length)
    return named_rows("rows", state, ids, view, None)
