"""Reading rows by their names."""

from __future__ import annotations

import dataclasses
from typing import Any

import chex
import jax
import jax.numpy as jnp

from fbuf.checks import values as check
from fbuf.dispatch import parse, read_before_write
from fbuf.dispatch.call import one_buffer, operation
from fbuf.state import Batch, State
from fbuf.storage.ids import Ids, only
from fbuf.storage.layout import Layout
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.views.item import Item
from fbuf.views.protocol import Data, Look, View
from fbuf.views.reader import Draws, Reader
from fbuf.views.stored import Stored
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
    slots, live, shape = found_by_name(function, state, ids, view)
    return shaped(gathered(state, slots, live, view, key, zeros=True), shape)


def found_by_name(
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


def shaped(batch: Batch[Any], shape: tuple[int, ...]) -> Batch[Any]:
    """A batch of rows `[B]` in the shape of their ids."""
    if len(shape) == 1:
        return batch
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)


def gathered(
    state: State[Any],
    slots: jax.Array,
    mask: jax.Array,
    view: View,
    key: Any,
    reads: tuple[jax.Array, ...] = (),
    zeros: bool = False,
    draws: Draws | None = None,
) -> Batch[Any]:
    """What a view makes of the rows at `[B]` slots, of which a mask says which are meant.

    The ids are known once all has been read, `reads` included. With `zeros` the data of rows that
    are not meant is 0; without, it is that of some row.
    """
    found, seen = looked(state, slots, mask, view, key, draws)
    source = Stored(state)
    rows = {name: wanted.read(source) for name, wanted in found.look.rows.items()}
    batch = made(state.storage.layout, found, rows, view, zeros)
    # Whoever changes these rows must name them: by then they have been read, and so can be
    # written in place.
    slot = tie(batch.ids.slot, *reads, *seen, *source.reads)
    read_before_write.note_read(state, slot)
    return dataclasses.replace(batch, ids=dataclasses.replace(batch.ids, slot=slot))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Found:
    """What is known of `[B]` rows before they are read.

    Attributes:
        look: What the view has found out.
        ids: The names of the rows.
        mask: bool `[B]`; which are meant.
    """

    look: Look
    ids: Ids
    mask: jax.Array


def looked(
    state: State[Any],
    slots: jax.Array,
    mask: jax.Array,
    view: View,
    key: Any,
    draws: Draws | None = None,
) -> tuple[Found, list[jax.Array]]:
    """The first half of `gathered`, and what was read for it: of rows nothing is read yet."""
    reader = Reader(type(view).__name__, state, mask, draws)
    look = view.look(reader, slots, key)
    return Found(look, state.ring.name(slots, mask), mask), reader.reads


def made(
    layout: Layout, found: Found, rows: dict[str, Any], view: View, zeros: bool = False
) -> Batch[Any]:
    """The second half: the batch, now that the rows that the view wanted have been read."""
    reading = view.make(layout, rows, found.look.seen)
    mask, ids = found.mask, found.ids
    if reading.known is not None:
        mask &= reading.known
        ids = only(ids, mask)
    flags = jnp.where(mask.reshape(-1, *(1,) * (reading.flags.ndim - 1)), reading.flags, 0)
    flags = jnp.swapaxes(flags, 0, 1) if view.time_major else flags
    data = reading.data
    if zeros and not view.time_major:  # steps that are not valid are zeros already
        data = jax.tree.map(lambda leaf: _where(mask, leaf), data)
    return Batch(
        data=data,
        ids=ids,
        mask=mask,
        terminated=flags & TERMINATED > 0,
        truncated=flags & TRUNCATED > 0,
    )


def _where(mask: jax.Array, leaf: jax.Array) -> jax.Array:
    """`[B, ...]` with zeros where a mask is False."""
    return jnp.where(mask.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.zeros_like(leaf))
