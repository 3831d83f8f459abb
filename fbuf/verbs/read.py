"""Reading rows by their names."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.door import batches, order
from fbuf.door.entry import one_buffer, verb
from fbuf.state import Batch, State
from fbuf.storage.ids import Ids
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.views.item import Item
from fbuf.views.protocol import View
from fbuf.views.reader import Reader
from fbuf.xla.tie import tie


def is_view(function: str, argument: str, value: Any) -> Any:
    """A view, and not its class."""
    check.instance(function, argument, value, View, "fbuf.Item()")
    return value


def is_key_or_none(function: str, argument: str, value: Any) -> Any:
    """A random key, or None."""
    if value is not None:
        check.key(function, value)
    return value


@verb(static=("view",), checks={"view": is_view, "key": is_key_or_none})
def read(
    state: State[Any],
    ids: Ids,
    *,
    view: View = Item(),
    key: chex.PRNGKey | None = None,
) -> Batch[Any]:
    """Read rows by their ids, without drawing; the state does not change.

    Args:
        state: The buffer; never consumed.
        ids: Which rows: from `fbuf.sample`, `fbuf.newest_ids` or `fbuf.ids_at`, of any shape. Rows
            may repeat.
        view: What each row is turned into, as for `fbuf.sample`; static. A sampler draws rows that
            have the steps that a view wants; ids of yours need not: look at `valid` of
            `fbuf.Sequence`, `steps` of `fbuf.NStep`.
        key: A key of `jax.random`, for views that leave something to chance (`fbuf.Hindsight`);
            consumed.

    Returns:
        The batch, its axes those of `ids`. Where an id names no row, or one that was overwritten or
        removed since, `mask` is False and the id names no row; the data then means nothing.

    Raises:
        ValueError: When traced, if `ids` names no rows at all, or the view needs a key.
        TypeError: When traced, if `ids` are not `fbuf.Ids`, or `view` is no view.
        RuntimeError: If `state` has been consumed.

    Cost: that of the view, O(B) for `fbuf.Item`.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.add(fbuf.init(jnp.zeros(()), capacity=4), jnp.arange(3.0))
        >>> fbuf.read(state, fbuf.ids_at(state, jnp.array([2, 0]))).data
        Array([2., 0.], dtype=float32)
    """
    one_buffer("read", state)
    order.sampled(state)
    flat, shape = batches.ids("read", ids)
    if view.is_random and key is None:
        raise ValueError(
            f"fbuf.read: {type(view).__name__} leaves something to chance; give a key, such as "
            "jax.random.key(0)"
        )
    live, _, _ = state.ring.find(flat)
    batch = gathered(state, jnp.where(live, flat.slot, 0), live, view, key)
    if len(shape) == 1:
        return batch
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)


def gathered(
    state: State[Any], slots: jax.Array, mask: jax.Array, view: View, key: Any
) -> Batch[Any]:
    """What a view makes of the rows at `[B]` slots, of which a mask says which are meant."""
    reader = Reader(type(view).__name__, state)
    reading = view.read(reader, slots, key)
    if reading.known is not None:
        mask &= reading.known
    ids = state.ring.name(slots, mask)
    # Whoever changes these rows must name them: by then they have been read, and so can be
    # written in place.
    ids = dataclasses.replace(ids, slot=tie(ids.slot, *reader.reads))
    flags = jnp.where(mask.reshape(-1, *(1,) * (reading.flags.ndim - 1)), reading.flags, 0)
    flags = jnp.swapaxes(flags, 0, 1) if reading.time_major else flags
    return Batch(
        data=reading.data,
        ids=ids,
        mask=mask,
        terminated=flags & TERMINATED > 0,
        truncated=flags & TRUNCATED > 0,
    )
