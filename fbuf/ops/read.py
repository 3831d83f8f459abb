"""Reading rows by their names."""

from __future__ import annotations

from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import one_buffer, operation
from fbuf.state import Batch, State
from fbuf.storage.ids import Ids
from fbuf.views.gather import gather, reshaped
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View
from fbuf.views.reader import Draws


def is_view(function: str, argument: str, value: Any) -> Any:
    """A view, and not its class."""
    check.instance(function, argument, value, View, "fbuf.Item()")
    return value


def is_key_or_none(function: str, argument: str, value: Any) -> Any:
    """A random key, or None."""
    if value is not None:
        check.key(function, value)
    return value


@operation(static=("view",), checks={"view": is_view, "key": is_key_or_none}, typed=("key",))
def read(
    state: State[Any],
    ids: Ids,
    *,
    view: View[Data] = Item(),
    key: chex.PRNGKey | None = None,
) -> Batch[Data]:
    """Read rows by their ids; the state does not change.

    Args:
        state: The buffer; never consumed.
        ids: Which rows, of any shape: from `fbuf.sample`, `fbuf.newest_ids` or `fbuf.ids_at`. Rows
            may repeat.
        view: What a row turns into, as for `fbuf.sample`; static. The rows that you name may lack
            steps that the view wants: look at `valid` of `fbuf.Sequence` and `steps` of
            `fbuf.NStep`.
        key: A key of `jax.random`, for views that leave something to chance (`fbuf.Hindsight`). Use
            a key once only.

    Returns:
        The batch; leaves begin with the axes of `ids`. If an id names no row, or a row that was
        overwritten or removed since, its `mask` is False, its data is 0, and its id in the
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
    """A key, for a view that leaves something to chance."""
    if view.is_random and key is None:
        raise ValueError(
            f"fbuf.read: {type(view).__name__} is random and needs a key; give "
            "key=jax.random.key(0)"
        )


def named_rows(function: str, state: State[Any], ids: Ids, view: View, key: Any) -> Batch[Any]:
    """What a view makes of the rows that ids of any shape name; for `read`, and for `rows`."""
    one_buffer(function, state)
    slots, live, shape = find_ids(function, state, ids, view)
    batch = gather_and_note(state, slots, live, view, key, zeros=True)
    return reshaped(batch, shape)


def find_ids(
    function: str, state: State[Any], ids: Ids, view: View
) -> tuple[jax.Array, jax.Array, tuple[int, ...]]:
    """The slots that ids name, and whether there is such a row, `[B]`; and the shape of the ids."""
    flat, shape = parse.ids(function, ids)
    if view.time_major and len(shape) != 1:
        raise ValueError(
            f"fbuf.{function}: a view with time_major=True takes ids of one axis, got ids of shape "
            f"{shape}; leave time_major out, or reshape the ids"
        )
    live, _, _ = state.ring.find(flat)
    return jnp.where(live, flat.slot, 0), live, shape


def gather_and_note(
    state: State[Any],
    slots: jax.Array,
    mask: jax.Array,
    view: View,
    key: Any,
    reads: tuple[jax.Array, ...] = (),
    zeros: bool = False,
    draws: Draws | None = None,
) -> Batch[Any]:
    """Return the batch that `gather` makes; a later change in this trace waits for it."""
    batch = gather(state, slots, mask, view, key, reads, zeros, draws)
    read_before_write.note_read(state, batch.ids.slot)
    return batch
