"""Reading rows once, in their order."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax.numpy as jnp

from fbuf._arrays import Array
from fbuf.checks import values as check
from fbuf.dispatch import parse
from fbuf.dispatch.call import operation
from fbuf.ops.after import after
from fbuf.ops.lane_slots import oldest_slots
from fbuf.ops.read import is_view, named_rows
from fbuf.ops.unread import queue
from fbuf.state import Rollout, State
from fbuf.storage.ids import Ids, live_ids
from fbuf.views.item import Item
from fbuf.views.protocol import Data, View

_IS_COUNT = functools.partial(check.integer, smallest=0)
"""A check of a static int; the largest depends on the buffer."""


@operation(
    static=("count", "keep", "view"),
    checks={"count": _IS_COUNT, "keep": _IS_COUNT, "view": is_view},
)
def pop(
    state: State[Any],
    count: int,
    *,
    keep: int = 0,
    mask: Array | bool | None = None,
    view: View[Data] = Item(),
    donate: bool = True,
) -> tuple[State[Any], Rollout[Data]]:
    """Read the oldest unread rows of each environment; these rows then count as read.

    With `keep=0` no row is handed out twice, and none is left out. The buffer must be made with
    `sampler=fbuf.Fifo()`.

    Args:
        state: The buffer. A call from Python consumes it; see `donate`.
        count: The number of rows of each environment, a static int from 1 to the room of one. If
            fewer are unread, you get the unread ones. Removed rows and dummies of resets count.
        keep: The number of returned rows that stay unread, a static int below `count`. The next
            call begins with them. With `keep=1` the last row of a segment is the first row of the
            next one. Learn from all rows but the last, whose observation serves to bootstrap. Wait
            for whole segments then (see `mask`); else the kept row alone comes again and again.
        mask: bool, whether to read at all; may be traced. If environments do not step together,
            also `[num_envs]`, a bool for each. None is all. `mask=fbuf.unread(state) >= count`
            waits for whole segments.
        view: The view of each row, as for `fbuf.read`; static. A view of several steps may read
            unread rows.
        donate: As for `fbuf.add`.

    Returns:
        The buffer, and the rows: leaves `[count, ...]`, or `[num_envs, count, ...]`, the oldest
        first. `mask` is False behind the last one. It is also False at the place of a row that was
        removed, or of the dummy of a reset. Data is 0 where it is False.

    Raises:
        ValueError: When traced, if the sampler is not `fbuf.Fifo`, or if `count` or `keep` is out
            of range. Also if `mask` has another shape, or if the view is random.
        TypeError: When traced, if `count` or `keep` is not an int, or if `mask` is not bool.
        RuntimeError: If `state` has been consumed.

    Cost: O(count) for each environment.

    Examples:
        >>> import fbuf, jax.numpy as jnp
        >>> state = fbuf.init(jnp.int32(0), capacity=8, sampler=fbuf.Fifo())
        >>> state = fbuf.add(state, jnp.arange(5, dtype=jnp.int32))
        >>> state, first = fbuf.pop(state, 3, keep=1)
        >>> state, second = fbuf.pop(state, 3, keep=1)
        >>> first.data, second.data
        (Array([0, 1, 2], dtype=int32), Array([2, 3, 4], dtype=int32))
    """
    state, ids = popped(state, count, keep, mask, view)
    batch = Rollout.of(named_rows("pop", state, ids, view, None))
    return after(state, batch), batch


def popped(
    state: State[Any], count: int, keep: int, mask: Any, view: View
) -> tuple[State[Any], Ids]:
    """Mark the oldest unread rows as read; return the buffer and their ids; see `pop`."""
    ring, sampler = state.ring, queue("pop", state)
    check.integer("pop", "count", count, ring.lane_length)
    check.integer("pop", "keep", keep, count - 1, smallest=0)
    if view.is_random:
        raise ValueError(
            f"fbuf.pop: {type(view).__name__} is random, and fbuf.pop takes no key; pop the rows, "
            "and read their ids with fbuf.read(state, batch.ids, view=view, key=key)"
        )
    shape = (ring.num_envs,) if ring.num_envs is not None and not ring.lockstep else ()
    chosen = parse.mask("pop", mask, shape, "the environments")
    unread = sampler.unread(state.index, ring)
    given = jnp.where(chosen, jnp.minimum(unread, count), 0)
    ids = live_ids(ring, oldest_slots(ring, unread, given, count))
    # The kept rows are among the rows of this call.
    read = jnp.maximum(given - keep, 0)
    return dataclasses.replace(state, index=sampler.popped(state.index, read)), ids
