"""The rows of a checkpoint, and the rows changed since."""

from __future__ import annotations

import mmap
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fbuf.checkpoint.manifest import Manifest
from fbuf.host.npy_files import Files
from fbuf.host.row_arrays import Leaves, Rows, writes
from fbuf.storage import store
from fbuf.storage.deferred import PendingWrite
from fbuf.storage.layout import Layout
from fbuf.storage.store import Storage

_FEW = 64
"""The changed rows that fit at first."""


class SavedRows:
    """The rows of a checkpoint, read from its files; changed rows stay in memory until a save.

    Attributes:
        folder: The directory of the checkpoint.
    """

    def __init__(
        self, folder: pathlib.Path, found: Manifest, layout: Layout, capacity: int
    ) -> None:
        """Open the files of a checkpoint whose lengths and shapes have been checked.

        Args:
            folder: The directory.
            found: The manifest.
            layout: The leaves of a row.
            capacity: The number of rows of the buffer.
        """
        self.folder = folder
        self._layout = layout
        like = jax.eval_shape(lambda: store.empty(layout.item, capacity))
        self._specs, self._fields = like.arrays, like.fields
        self._files = Files(folder, found, self._fields, capacity)
        self._where = np.zeros(capacity, np.int32)
        """The place of a row among the changed rows, plus 1; 0 for an unchanged row."""
        self._changed, self._count = Rows(layout, _FEW), 0
        self._frozen = 0
        """The number of changed rows that a save under way writes, the first ones; these stay."""
        self.saved_before: int | None = None
        """The number of the checkpoint before the save under way; None without a save."""

    @property
    def nbytes(self) -> int:
        """The bytes of the rows in host memory."""
        return self._changed.nbytes + self._where.nbytes

    @property
    def maps(self) -> list[mmap.mmap]:
        """The files of the rows."""
        return self._files.maps

    @property
    def capacity(self) -> int:
        """The number of rows."""
        return self._where.size

    @property
    def storage(self) -> Storage[Any]:
        """The arrays; indexing reads the files."""
        columns = [_Column(self, number, spec) for number, spec in enumerate(self._specs)]
        return Storage(columns[0], tuple(columns[1:]), self._layout)  # type: ignore (no arrays of JAX)

    def saving(self, before: int) -> None:
        """Begin a save of all changed rows, after the checkpoint of a number."""
        self._frozen, self.saved_before = self._count, before

    def saved(self, found: Manifest) -> None:
        """Continue from the checkpoint of the finished save."""
        self._files = Files(self.folder, found, self._fields, self.capacity)
        there = np.flatnonzero(self._where)
        newer = there[self._where[there] > self._frozen]
        left = Rows(self._layout, max(newer.size, _FEW))
        for array, before in zip(left.arrays, self._changed.arrays, strict=True):
            array[: newer.size] = before[self._where[newer] - 1]
        self._where[there] = 0
        self._where[newer] = np.arange(1, newer.size + 1)
        self._changed, self._count, self._frozen = left, newer.size, 0
        self.saved_before = None

    def reserve(self, count: int) -> None:
        """Make room for `count` more changed rows, or raise `MemoryError`."""
        count += self._count
        if count > self._changed.capacity:
            larger = Rows(self._layout, max(count, 2 * self._changed.capacity))
            known = slice(0, self._count)
            for array, before in zip(larger.arrays, self._changed.arrays, strict=True):
                array[known] = before[known]
            self._changed = larger

    def take(self, slots: np.ndarray[Any, Any], leaves: Sequence[int]) -> Leaves:
        """Take rows; see `Rows.take`."""
        first, last = store.columns(self._layout, self._specs[0].dtype, leaves)
        numbers = [0, *(1 + at for at in store.wide_of(self._layout, leaves))]
        words, *wide = self.read(slots.reshape(-1), numbers)
        return [words[:, first:last], *wide]

    def read(self, slots: np.ndarray[Any, Any], numbers: Sequence[int]) -> Leaves:
        """Return whole rows of some arrays, by number."""
        at = self._where[slots]
        changed, same = np.flatnonzero(at), np.flatnonzero(at == 0)
        if not changed.size:
            return self._files.read(slots, numbers)
        arrays = [self._changed.arrays[number] for number in numbers]
        found = [np.empty((slots.size, *array.shape[1:]), array.dtype) for array in arrays]
        old = self._files.read(slots[same], numbers)
        for whole, array, rows in zip(found, arrays, old, strict=True):
            whole[same] = rows
            whole[changed] = array[at[changed] - 1]
        return found

    def apply(self, pending: Sequence[PendingWrite], rows: Leaves) -> None:
        """Apply pending writes; see `Rows.apply`."""
        for slots, source, leaves in writes(pending, rows, self.capacity):
            if source is not None:
                self._put(slots, self._read_all(source))
                continue
            if len(leaves) < len(self._layout.fields):
                self._put(slots, self._read_all(slots))
            self._changed.write(self._places(slots), leaves)

    def _read_all(self, slots: np.ndarray[Any, Any]) -> Leaves:
        return self.read(slots, range(len(self._specs)))

    def _put(self, slots: np.ndarray[Any, Any], rows: Leaves) -> None:
        """Write whole rows of all arrays."""
        places = self._places(slots)
        for array, some in zip(self._changed.arrays, rows, strict=True):
            array[places] = some

    def _places(self, slots: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the places of rows among the changed ones; make new ones where needed."""
        new = slots[self._where[slots] <= self._frozen]
        self.reserve(new.size)
        count = self._count + new.size
        self._where[new] = np.arange(self._count + 1, count + 1)
        self._count = count
        return self._where[slots] - 1


class _Column:
    """An array of rows of a checkpoint; indexing reads the files."""

    def __init__(self, rows: SavedRows, number: int, spec: Any) -> None:
        self._rows, self._number = rows, number
        self.shape, self.dtype = spec.shape, np.dtype(spec.dtype)

    def __getitem__(self, index: Any) -> np.ndarray[Any, Any]:
        slots = np.arange(self.shape[0])[index] if isinstance(index, slice) else np.asarray(index)
        return self._rows.read(slots, [self._number])[0]
