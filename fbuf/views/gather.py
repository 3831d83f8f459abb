"""The rows of a batch, from slots to the result of a view."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fbuf._pytree import pytree
from fbuf.state import Batch, State
from fbuf.storage.ids import Ids, ids_of, only
from fbuf.storage.layout import Layout
from fbuf.storage.masks import select
from fbuf.storage.ring import TERMINATED, TRUNCATED
from fbuf.views.item import Item
from fbuf.views.protocol import Request, View
from fbuf.views.reader import BatchPart, Reader
from fbuf.views.row_reader import RowReader
from fbuf.xla.rows import are_returned
from fbuf.xla.tie import tie


@pytree
class Requested:
    """The data of a batch before its rows are read.

    Attributes:
        request: The request of the view.
        ids: The ids of the rows.
        mask: bool `[B]`; False for a masked draw.
    """

    request: Request
    ids: Ids
    mask: jax.Array


def gather(
    state: State[Any],
    slots: jax.Array,
    mask: jax.Array,
    view: View,
    key: Any,
    reads: tuple[jax.Array, ...] = (),
    drawn: bool = True,
    part: BatchPart | None = None,
) -> Batch[Any]:
    """Read rows at `[B]` slots through a view.

    The ids of the batch wait for all reads, so that a change of these rows can be made in place.

    Args:
        state: The buffer.
        slots: int32 `[B]`, each in range.
        mask: bool `[B]`; False for a masked draw.
        view: The view.
        key: The key of the view; None unless the view is random.
        reads: Further reads; the ids wait until they are done.
        drawn: Whether the sampler has drawn the rows. If not, the data of masked rows is 0;
            otherwise it is the data of any row.
        part: The part of the batch with these draws; None for the whole batch.
    """
    requested, flags = request_rows(state, slots, mask, view, key, part, drawn)
    # No kernel computes with these rows: not a view's, and not the one that blanks masked ones.
    untouched = type(view) is Item and drawn and part is None
    source = RowReader(state, by_words=untouched and are_returned())
    rows = {name: wanted.read(source) for name, wanted in requested.request.rows.items()}
    batch = build_batch(state.storage.layout, requested, rows, view, drawn)
    slot = tie(batch.ids.slot, *reads, *flags, *source.reads)
    return dataclasses.replace(batch, ids=dataclasses.replace(batch.ids, slot=slot))


def request_rows(
    state: State[Any],
    slots: jax.Array,
    mask: jax.Array,
    view: View,
    key: Any,
    part: BatchPart | None = None,
    drawn: bool = True,
) -> tuple[Requested, list[jax.Array]]:
    """Run the first half of a view; return the request, and the flags that it has read."""
    if state.ring.writes is not None and not view.reads_one_row:
        raise ValueError(
            f"fbuf.{type(view).__name__}: the rows of {type(state.sampler).__name__} lie in no "
            "order of time, so none follows another; read single rows with fbuf.Item(), and store "
            "with a row all that belongs to it"
        )
    reader = Reader(type(view).__name__, state, mask, part, slots if drawn else None)
    request = view.request(reader, slots, key)
    return Requested(request, ids_of(state.ring, slots, mask), mask), reader.reads


def build_batch(
    layout: Layout, requested: Requested, rows: dict[str, Any], view: View, drawn: bool = True
) -> Batch[Any]:
    """Run the second half of a view, on the requested rows. Return the batch."""
    reading = view.build(layout, rows, requested.request.seen)
    mask, ids = requested.mask, requested.ids
    if reading.known is not None:
        mask &= reading.known
        ids = only(ids, mask)
    flags = select(mask, reading.flags)
    flags = jnp.swapaxes(flags, 0, 1) if view.time_major else flags
    data = reading.data
    if not drawn and not view.time_major:  # invalid steps are already zeros
        data = jax.tree.map(lambda leaf: select(mask, leaf), data)
    return Batch(
        data=data,
        ids=ids,
        mask=mask,
        terminated=flags & TERMINATED > 0,
        truncated=flags & TRUNCATED > 0,
    )


def reshaped(batch: Batch[Any], shape: tuple[int, ...]) -> Batch[Any]:
    """Return a batch of rows `[B]` in the shape of their ids."""
    if len(shape) == 1:
        return batch
    return jax.tree.map(lambda leaf: leaf.reshape(*shape, *leaf.shape[1:]), batch)
