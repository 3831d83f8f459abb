"""Reading rows by their names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fbuf._arrays import PRNGKey
from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import operation
from fbuf.dispatch.intact import one_buffer
from fbuf.state import Batch, State
from fbuf.storage.ids import Ids, look_up
from fbuf.views.gather import gather, reshaped
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View


def is_view(function: str, argument: str, value: Any) -> Any:
    """Return a view; refuse its class."""
    check.instance(function, argument, value, View, "fbuf.Item()")
    return value


def is_key_or_none(function: str, argument: str, value: Any) -> Any:
    """Return a random key, or None."""
    if value is not None:
        check.key(function, value)
    return value


@operation(static=("view",), checks={"view": is_view, "key": is_key_or_none}, typed=("key",))
def read(
    state: State[Any],
    ids: Ids,
    *,
    view: View[Data] = Item(),
    key: PRNGKey | None = None,
) -> Batch[Data]:
    """Read rows by their ids; the state does not change.

    Args:
        state: The buffer; never consumed.
        ids: Which rows, of any shape: from `fbuf.sample`, `fbuf.newest_ids` or `fbuf.ids_at`. Rows
            may repeat.
        view: The view, as for `fbuf.sample`; static. The rows that you name may lack steps that the
            view wants: look at `valid` of `fbuf.Sequence` and `steps` of `fbuf.NStep`.
        key: A key of `jax.random`, for views that leave something to chance (`fbuf.Hindsight`). Use
            a key once only.

    Returns:
        The batch; leaves begin with the axes of `ids`. An id may name no row, or a row that was
        overwritten or removed since. Its `mask` is then False, its data is 0, and its id in the
        batch names no row.

    Raises:
        ValueError: When traced, if `ids` is empty, or if the view needs a key.
        TypeError: When traced, if `ids` is not a `fbuf.Ids`, or if `view` is not a view.
        RuntimeError: If `state` has been consumed.

    Cost: that of the view; O(B) for `fbuf.Item`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> fbuf.read(state, fbuf.ids_at(state, jnp.array([2, 0]))).data
        Array([2., 0.], dtype=float32)
    """
    require_key(view, key)
    return named_rows("read", state, ids, view, key)


def require_key(view: View, key: Any) -> None:
    """Refuse a random view without a key."""
    if view.is_random and key is None:
        raise ValueError(
            f"fbuf.read: {type(view).__name__} is random and needs a key; give "
            "key=jax.random.key(0)"
        )


def named_rows(function: str, state: State[Any], ids: Ids, view: View, key: Any) -> Batch[Any]:
    """Read the rows of ids of any shape through a view; for `read` and `rows`."""
    one_buffer(function, state)
    slots, live, shape = find_ids(function, state, ids, view)
    batch = gather(state, slots, live, view, key, drawn=False)
    return reshaped(recorded(state, batch), shape)


def find_ids(
    function: str, state: State[Any], ids: Ids, view: View
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """Return the slots of ids and a mask of stored rows, `[B]`, and the shape of the ids."""
    flat, shape = parse.ids(function, ids)
    if view.time_major and len(shape) != 1:
        raise ValueError(
            f"fbuf.{function}: a view with time_major=True takes ids of one axis, got ids of shape "
            f"{shape}; leave time_major out, or reshape the ids"
        )
    live = look_up(state.ring, flat).live
    return jnp.where(live, flat.slot, 0), live, shape


def recorded(state: State[Any], batch: Batch[Any]) -> Batch[Any]:
    """Return a batch of a state; a later change of the state in this trace waits for it."""
    read_before_write.note_read(state, batch.ids.slot)
    return batch
