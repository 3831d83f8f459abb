"""The files of rows of a checkpoint, mapped and not loaded."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from fbuf.checkpoint import npy
from fbuf.checkpoint.manifest import Manifest
from fbuf.host import memory_maps
from fbuf.storage import wide_rows
from fbuf.storage.layout import Field

Arrays = list[np.ndarray[Any, Any]]


class Files:
    """The files of rows of a checkpoint.

    They have the rows in the order of adds. One more file has the rows that `fbuf.write` has
    changed.

    Attributes:
        maps: The maps of the files.
    """

    def __init__(
        self, folder: pathlib.Path, found: Manifest, fields: Sequence[Field], capacity: int
    ) -> None:
        """Map files whose lengths have been checked.

        Args:
            folder: The directory.
            found: The manifest.
            fields: A row of each array: its shape and dtype.
            capacity: How many rows the buffer has.
        """
        self._fields = fields
        segments = found.segments["rows"]
        heads = len(found.totals["rows"])
        # By file and head: the place of the first row, and the place behind the last one.
        self._first = np.array([of.first for of in segments], np.int64).reshape(-1, heads)
        self._last = np.array([of.last for of in segments], np.int64).reshape(-1, heads)
        counts = self._last - self._first
        self._begin = np.cumsum(counts, axis=1) - counts
        """The first row of each head in the file."""
        self._totals = np.array(found.totals["rows"], np.int64)
        self._room = capacity // self._totals.size
        own = [npy.row_bytes(field.shape, field.dtype) for field in fields]
        self._widths = own
        files = [of.file for of in segments]
        sizes = counts.sum(axis=1).tolist()
        widths = [own for _ in files]
        if found.written is not None:
            files.append(found.written[0])
            sizes.append(found.written[1])
            widths.append([8, *own])
        views = [
            npy.views(folder / name, size, each)
            for name, size, each in zip(files, sizes, widths, strict=True)
        ]
        self.maps = memory_maps.of_arrays([view for of in views for view in of])
        memory_maps.at_random(self.maps)
        self._changed = np.zeros(0, np.int64)
        self._new: Arrays = []
        if found.written is not None:
            numbers, *new = views.pop()
            changed = np.asarray(numbers).reshape(-1).view(np.int64)
            self._order = np.argsort(changed)
            self._changed, self._new = changed[self._order], [np.asarray(view) for view in new]
        # Plain arrays: a subclass would cost time in every call.
        self._views = [[np.asarray(view) for view in of] for of in views]

    def read(self, slots: np.ndarray[Any, Any], numbers: Sequence[int]) -> Arrays:
        """Return whole rows of some arrays, by number, in the format of a buffer's arrays."""
        found = []
        for number, rows in zip(numbers, self._bytes(slots.astype(np.int64), numbers), strict=True):
            field = self._fields[number]
            whole = rows.view(field.dtype).reshape(len(rows), *field.shape)
            found.append(wide_rows.stored(field, whole))
        return found

    def _bytes(self, slots: np.ndarray[Any, Any], numbers: Sequence[int]) -> Arrays:
        """Return rows of some arrays, as bytes."""
        rows = [np.zeros((slots.size, self._widths[at]), np.uint8) for at in numbers]
        if not self._views:
            return rows
        head, offset = slots % self._totals.size, slots // self._totals.size
        # The number of the newest row of this slot, among all rows that its head has written.
        total = self._totals[head]
        place = total - 1 - (total - 1 - offset) % self._room
        first = self._first[:, head]
        within = (first <= place) & (place < self._last[:, head])
        # The newest file with the slot; a slot that was never written is in no file.
        file = np.where(within.any(axis=0), len(within) - 1 - within[::-1].argmax(axis=0), -1)
        row = self._begin[file, head] + place - self._first[file, head]
        for number in np.unique(file[file >= 0]):
            here = np.flatnonzero(file == number)
            for array, at in zip(rows, numbers, strict=True):
                array[here] = self._views[number][at][row[here]]
        if self._changed.size:
            at = np.minimum(np.searchsorted(self._changed, slots), self._changed.size - 1)
            here = np.flatnonzero(self._changed[at] == slots)
            for array, which in zip(rows, numbers, strict=True):
                array[here] = self._new[which][self._order[at[here]]]
        return rows
