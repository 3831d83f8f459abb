"""Rows that lie elsewhere: in host memory, or in files.

A buffer with such a storage has flags, ring and index of its own, and no rows. What a function of
`fbuf` would write into the rows it notes, and who keeps the rows writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Generic

import jax

from fbuf.storage.layout import Layout
from fbuf.storage.store import Item


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PendingWrite:
    """Something to write; a slot of `capacity` is left out.

    Attributes:
        slots: int32 `[B]`; where, each at most once.
        values: The leaves to write by number, `[B, ...]`. None: whole rows, which the caller has.
        source: int32 `[B]`; the slots of the rows to copy here. None if they are no copies.
    """

    slots: jax.Array
    values: dict[int, jax.Array] | None = None
    source: jax.Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Comparison:
    """New rows to be held against the next observations of the rows before.

    Attributes:
        place: int32 `[B]`; where those are, as `fbuf.storage.next_obs` says; -1 for none.
    """

    place: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class DeferredStorage(Generic[Item]):
    """The rows of a buffer that lie elsewhere.

    Attributes:
        notes: What is to be written or compared, in this order.
        layout: What the leaves of the item are; static.
    """

    notes: tuple[PendingWrite | Comparison, ...]
    layout: Layout = dataclasses.field(metadata={"static": True})

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return self.layout.item

    def write(self, slots: jax.Array, rows: Item) -> DeferredStorage[Item]:
        """As `Storage.write`; of the rows nothing is noted."""
        return self._noted(PendingWrite(slots))

    def write_leaves(
        self, slots: jax.Array, leaves: Mapping[int, jax.Array]
    ) -> DeferredStorage[Item]:
        """As `Storage.write_leaves`."""
        return self._noted(PendingWrite(slots, values=dict(leaves)))

    def copy(self, source: jax.Array, slots: jax.Array) -> DeferredStorage[Item]:
        """As `Storage.copy`."""
        return self._noted(PendingWrite(slots, source=source))

    def compared(self, place: jax.Array) -> DeferredStorage[Item]:
        """Note that new rows are to be compared."""
        return self._noted(Comparison(place))

    def _noted(self, note: PendingWrite | Comparison) -> DeferredStorage[Item]:
        return dataclasses.replace(self, notes=(*self.notes, note))


def without_rows(state: Any) -> Any:
    """A buffer whose rows lie elsewhere, and those of its next observations, too."""
    kept = state.next_obs
    if kept is not None:
        kept = dataclasses.replace(kept, rows=DeferredStorage((), kept.rows.layout))
    return dataclasses.replace(
        state, storage=DeferredStorage((), state.storage.layout), next_obs=kept
    )


def taken(
    state: Any,
) -> tuple[Any, tuple[PendingWrite, ...], tuple[PendingWrite | Comparison, ...]]:
    """The buffer without notes, those of its rows, and those of its next observations."""
    kept = state.next_obs
    of_next = () if kept is None else kept.rows.notes
    return without_rows(state), state.storage.notes, of_next
