"""The rows of a buffer, lane by lane, oldest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import fbuf
from fbuf.adapter_api import DUMMY, REMOVED, STANDS_IN, TERMINATED, TRUNCATED, Lane, stored_lanes
from fbuf_adapters.datasets._buffers import Buffer
from fbuf_adapters.datasets._chunks import rows_at_once
from fbuf_adapters.datasets._fields import NEXT, Array, named, under


class OrderedRows(Buffer):
    """The rows of a buffer, without removed rows.

    Attributes:
        slots: int32 `[rows]`.
        terminated: bool `[rows]`.
        truncated: bool `[rows]`; also for rows without a following row: the newest row, and a row
            before a removed one.
        whole: bool `[rows]`; the episode of the row is stored from its first row, without gaps.
        stands_in: bool `[rows]`; the stored next observation is a placeholder.
    """

    def __init__(self, where: str, state: Any) -> None:
        super().__init__(where, state, "rows")
        parts = zip(*map(_kept, stored_lanes(self.index.ring)), strict=True)
        slots, self.terminated, self.truncated, self.whole, self.stands_in = map(
            np.concatenate, parts
        )
        self.slots = slots.astype(np.int32)

    def read(self, rows: Array, field: str | None = None) -> Iterator[dict[str, Array]]:
        """Yield rows by their numbers, some at a time: leaves `[n, ...]` by name.

        Args:
            rows: int `[n]`.
            field: The leaf to read, by name. None is all.
        """
        view = fbuf.Item() if field is None else fbuf.Item(fields=(field,))
        for _, data in self._batches(rows, view):
            yield named(data)

    def led_to(self, rows: Array) -> tuple[dict[str, Array], Array]:
        """Return next observations, named as by `under`, and whether each is known."""
        kept = self.next_of
        view = fbuf.Item(fields=(NEXT,)) if kept is None else fbuf.Transition(fields=(kept,))
        parts: list[dict[str, Array]] = []
        known: list[Array] = []
        for there, data in self._batches(rows, view):
            found = data[NEXT] if kept is None else data.next_observation
            parts.append(under(named({NEXT: found}), NEXT))
            known.append(there)
        led_to = {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
        return led_to, np.concatenate(known) & ~self.stands_in[rows]

    def _batches(self, rows: Array, view: Any) -> Iterator[tuple[Array, Any]]:
        """Yield the mask and the data of a view of the rows, some at a time."""
        index = self.index
        size = rows_at_once(jax.tree.leaves(self.item), len(self.slots))
        for start in range(0, len(rows), size):
            wanted = self.slots[rows[start : start + size]]
            padded = np.pad(wanted, (0, size - len(wanted)), constant_values=-1)
            batch = self.owner.read(fbuf.ids_at(index, padded), view)
            part = lambda leaf, n=len(wanted): np.asarray(leaf)[:n]
            yield part(batch.mask), jax.tree.map(part, batch.data)


def _kept(lane: Lane) -> tuple[Array, ...]:
    """Return the live rows of a lane, in the form of `OrderedRows`."""
    flags, (first, last, whole, _) = lane.flags, lane.episodes
    gone, terminated = flags & REMOVED > 0, flags & TERMINATED > 0
    truncated = (flags & TRUNCATED > 0) | (np.append(gone[1:], True)[: len(gone)] & ~terminated)
    gone_before = np.append(0, np.cumsum(gone))
    intact = whole & (gone_before[last + 1] == gone_before[first])
    of_row = np.zeros(len(flags), np.bool_)
    of_row[flags & DUMMY == 0] = np.repeat(intact, last - first + 1)
    columns = lane.slots, terminated, truncated, of_row, flags & STANDS_IN > 0
    return tuple(column[~gone] for column in columns)
