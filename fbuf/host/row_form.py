"""The form of stored rows: where NumPy finds each leaf in the arrays of a storage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fbuf.storage import store, wide_rows
from fbuf.storage.layout import Layout

Array = np.ndarray[Any, Any]
Integers = np.ndarray[Any, np.dtype[np.int64]]


class RowForm:
    """Where the leaves of rows lie.

    Attributes:
        all: The numbers of all leaves.
        fields: The leaves.
        record: A row of words; the narrow leaves are its fields, by their number.
        wide: The arrays of the other leaves, by the number of each.
    """

    def __init__(self, layout: Layout, words: Array) -> None:
        """Take the form of a layout; of `words` only shape and dtype count."""
        fields = layout.fields
        narrow = [n for n, field in enumerate(fields) if field.narrow]
        record: Any = {
            "names": [str(n) for n in narrow],
            "formats": [(fields[n].dtype, fields[n].shape) for n in narrow],
            "offsets": store.bytes_of(layout, words.dtype),
            "itemsize": words.shape[1] * words.itemsize,
        }
        self.all = range(len(fields))
        self.fields = fields
        self.record = np.dtype(record)
        wide = [n for n in self.all if not fields[n].narrow]
        self.wide = {n: array for array, n in enumerate(wide, start=1)}


class Rows(NamedTuple):
    """Rows in the arrays of a storage."""

    form: RowForm
    arrays: Sequence[Array]

    def take(self, slots: Integers, leaves: Sequence[int]) -> list[Array]:
        """Take some leaves of rows, by number; slots are taken around the end."""
        form = self.form
        words = self.arrays[0].take(slots, axis=0, mode="wrap")
        rows = np.ndarray(slots.size, form.record, words)
        return [self._of_wide(slots, n) if n in form.wide else rows[str(n)].copy() for n in leaves]

    def leaf(self, slots: Integers, number: int) -> Array:
        """Take one leaf of rows, by its number; slots are taken around the end."""
        if number in self.form.wide:
            return self._of_wide(slots, number)
        # `take` would copy the whole column first, because it does not lie in one piece.
        rows = np.ndarray(len(self.arrays[0]), self.form.record, self.arrays[0])
        return rows[str(number)][slots % len(rows)]

    def _of_wide(self, slots: Integers, number: int) -> Array:
        """Take a leaf that has an array of its own, as `leaf`."""
        rows = self.arrays[self.form.wide[number]].take(slots, axis=0, mode="wrap")
        return wide_rows.read(self.form.fields[number], rows)


def seen(array: Any) -> Array:
    """Return an array of JAX on the CPU as NumPy sees it, once it has been computed.

    It is read-only, and in the same memory. The array does not keep it, as it does the result of
    `np.asarray`. While it is there, a program that is to write into the array copies it first.

    Raises:
        RuntimeError: If the array has been consumed.
    """
    try:
        return np.asarray(memoryview(array))  # in a fifth of the time of `np.from_dlpack`
    except BufferError:
        raise RuntimeError("the array has been consumed") from None
