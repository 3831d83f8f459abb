"""Deferred storage: the rows lie in host memory, or in files.

A buffer with such a storage has flags, ring and index of its own, and no rows. Functions of `fbuf`
append pending writes to a list, and the owner of the rows applies them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic

import jax

from fbuf._pytree import pytree
from fbuf.storage.layout import Layout
from fbuf.storage.store import Item


@pytree
class PendingWrite:
    """A pending write of rows; a slot of `capacity` is left out.

    Attributes:
        slots: int32 `[B]`; the slots to write, each at most once.
        values: The leaves to write by number, `[B, ...]`. None: whole rows, which the owner gets
            from the caller.
        source: int32 `[B]`; the slots of the rows to copy here. None if the rows
            are no copies.
    """

    slots: jax.Array
    values: dict[int, jax.Array] | None = None
    source: jax.Array | None = None


@pytree
class Comparison:
    """A pending comparison of new rows with the next observations of the rows before.

    Attributes:
        place: int32 `[B]`; the place of that next observation in `fbuf.storage.next_obs`; -1 for
            none.
    """

    place: jax.Array


@pytree
class DeferredStorage(Generic[Item]):
    """A storage without rows, with a list of pending writes.

    Attributes:
        pending: The pending writes and comparisons, in order.
        layout: The leaves of the item; static.
    """

    pending: tuple[PendingWrite | Comparison, ...]
    layout: Layout = dataclasses.field(metadata={"static": True})

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return self.layout.item

    def write(self, slots: jax.Array, rows: Item) -> DeferredStorage[Item]:
        """Add a pending write of whole rows, without the rows; see `Storage.write`."""
        return self._with(PendingWrite(slots))

    def write_leaves(
        self, slots: jax.Array, leaves: Mapping[int, jax.Array]
    ) -> DeferredStorage[Item]:
        """Add a pending write of leaves; see `Storage.write_leaves`."""
        return self._with(PendingWrite(slots, values=dict(leaves)))

    def copy(self, source: jax.Array, slots: jax.Array) -> DeferredStorage[Item]:
        """Add a pending copy of rows; see `Storage.copy`."""
        return self._with(PendingWrite(slots, source=source))

    def compared(self, place: jax.Array) -> DeferredStorage[Item]:
        """Add a pending comparison of new rows."""
        return self._with(Comparison(place))

    def _with(self, change: PendingWrite | Comparison) -> DeferredStorage[Item]:
        return dataclasses.replace(self, pending=(*self.pending, change))


def without_rows(state: Any) -> Any:
    """Return a buffer with deferred storage for its rows and its next observations."""
    kept = state.next_obs
    if kept is not None:
        kept = dataclasses.replace(kept, rows=DeferredStorage((), kept.rows.layout))
    return dataclasses.replace(
        state, storage=DeferredStorage((), state.storage.layout), next_obs=kept
    )


def drained(
    state: Any,
) -> tuple[Any, tuple[PendingWrite, ...], tuple[PendingWrite | Comparison, ...]]:
    """Return the buffer without pending writes, and those of its rows and next observations."""
    kept = state.next_obs
    of_next = () if kept is None else kept.rows.pending
    return without_rows(state), state.storage.pending, of_next
