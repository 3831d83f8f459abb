"""Rows in NumPy arrays: in host memory, or in mapped files.

Their layout is that of `fbuf.storage.store.Storage`, so that both have the same checkpoints. The
narrow fields of a row lie side by side as words; each wide field has its own array.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fbuf.checkpoint import free_space
from fbuf.checks import sizes
from fbuf.host import memory_maps
from fbuf.storage import store, wide_rows
from fbuf.storage.deferred import PendingWrite
from fbuf.storage.layout import Layout
from fbuf.storage.store import Storage

Leaves = list[np.ndarray[Any, Any]]
"""Leaves of rows, `[B, ...]` each, in the order of the item's leaves."""

LeavesByNumber = dict[int, np.ndarray[Any, Any]]
"""Some leaves of rows, `[B, ...]` each, by number."""


def writes(
    pending: Sequence[PendingWrite], rows: Leaves, capacity: int
) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any] | None, LeavesByNumber]]:
    """Yield the slots of each write, with either the slots of the rows to copy or the leaves.

    Args:
        pending: The pending writes.
        rows: The new rows of the caller, for writes of whole rows.
        capacity: The number of slots; a slot of `capacity` is left out.
    """
    for write in pending:
        slots = np.asarray(write.slots)
        there = np.flatnonzero(slots < capacity)
        if write.source is not None:
            yield slots[there], np.asarray(write.source)[there], {}
        else:
            leaves = dict(enumerate(rows)) if write.values is None else write.values
            yield slots[there], None, {n: np.asarray(x)[there] for n, x in leaves.items()}


class Rows:
    """The rows of a buffer, on the host.

    Attributes:
        storage: The arrays, in the layout of a buffer's storage.
        arrays: The arrays in a list: the words, and the wide fields.
        maps: The maps of files under the arrays.
    """

    def __init__(self, layout: Layout, capacity: int, folder: pathlib.Path | None = None) -> None:
        """Make arrays of zeros, in memory or in files of a directory.

        Args:
            layout: The leaves.
            capacity: The number of rows.
            folder: The directory of the files; None is memory.
        """
        like = jax.eval_shape(lambda: store.empty(layout.item, capacity))
        self.maps: list[mmap.mmap] = []
        specs = like.arrays
        if folder is None:
            arrays = [np.zeros(spec.shape, np.dtype(spec.dtype)) for spec in specs]
        else:
            arrays = [self._mapped(spec, folder) for spec in specs]
        self.storage: Storage[Any] = Storage(arrays[0], tuple(arrays[1:]), layout)  # type: ignore (no arrays of JAX)
        self.arrays = arrays
        memory_maps.at_random(self.maps)
        self._words, *self._wide = arrays
        self._bytes = store.bytes_of(layout, self._words.dtype)
        self._places: dict[tuple[int, ...], tuple[int, int, list[int]]] = {}

    @property
    def nbytes(self) -> int:
        """The bytes of the arrays."""
        return sizes.nbytes(self.storage)

    @property
    def capacity(self) -> int:
        """The number of rows."""
        return self._words.shape[0]

    def reserve(self, count: int) -> None:
        """Make room for writes of rows; these arrays always have room."""

    def take(self, slots: np.ndarray[Any, Any], leaves: Sequence[int]) -> Leaves:
        """Return the input of `fbuf.storage.store.unpacked`: words, and rows of wide arrays."""
        flat = slots.reshape(-1)
        first, last, wide = self._place(tuple(leaves))
        words = self._words.take(flat, axis=0)[:, first:last]
        return [words, *(self._wide[at].take(flat, axis=0) for at in wide)]

    def _place(self, leaves: tuple[int, ...]) -> tuple[int, int, list[int]]:
        """Return the words and the wide arrays that hold some leaves. Cached."""
        if leaves not in self._places:
            layout = self.storage.layout
            words = store.columns(layout, self._words.dtype, leaves)
            self._places[leaves] = *words, store.wide_of(layout, leaves)
        return self._places[leaves]

    def read(self, slots: np.ndarray[Any, Any], number: int) -> np.ndarray[Any, Any]:
        """A leaf of some rows, `[B, ...]`, by its number."""
        layout = self.storage.layout
        field, at = layout.fields[number], layout.position(number)
        if not field.narrow:
            return wide_rows.read(field, self._wide[at][slots])
        size = math.prod(field.shape) * field.dtype.itemsize
        row = self._words[slots].view(np.uint8)
        data = np.ascontiguousarray(row[:, self._bytes[at] : self._bytes[at] + size])
        return data.view(field.dtype).reshape(slots.size, *field.shape)

    def apply(self, pending: Sequence[PendingWrite], rows: Leaves) -> None:
        """Apply pending writes; `rows` are the new rows of this call."""
        for slots, source, leaves in writes(pending, rows, self.capacity):
            if source is None:
                self.write(slots, leaves)
            else:
                for array in self.arrays:
                    array[slots] = array[source]

    def write(self, slots: np.ndarray[Any, Any], leaves: LeavesByNumber) -> None:
        """Write some leaves by number; all other leaves stay."""
        if not slots.size:
            return
        layout = self.storage.layout
        narrow = [n for n in leaves if layout.fields[n].narrow]
        if narrow:
            whole = len(narrow) == sum(field.narrow for field in layout.fields)
            shape = (slots.size, *self._words.shape[1:])
            words = np.zeros(shape, self._words.dtype) if whole else self._words[slots]
            row = words.view(np.uint8)
            for number in narrow:
                data = np.ascontiguousarray(leaves[number]).reshape(slots.size, -1).view(np.uint8)
                begin = self._bytes[layout.position(number)]
                row[:, begin : begin + data.shape[1]] = data
            self._words[slots] = words
        for number, leaf in leaves.items():
            field = layout.fields[number]
            if not field.narrow:
                self._wide[layout.position(number)][slots] = wide_rows.stored(field, leaf)

    def _mapped(self, spec: Any, folder: pathlib.Path) -> np.ndarray[Any, Any]:
        """Return an array of zeros in a file that no other process can open."""
        dtype, length = np.dtype(spec.dtype), sizes.nbytes(spec)
        if not length:
            return np.zeros(spec.shape, dtype)
        folder.mkdir(parents=True, exist_ok=True)
        # Otherwise it would fill the disk before it fails.
        free_space.require("HostStore", folder, length)
        # Without a name, the file disappears with the process, however that ends.
        with tempfile.TemporaryFile(dir=folder) as file:
            # A write to a map on a full disk would kill the process silently.
            os.posix_fallocate(file.fileno(), 0, length)
            try:
                mapped = mmap.mmap(file.fileno(), length)
            except OSError as error:
                if error.errno != errno.ENOMEM:
                    raise
                raise MemoryError(
                    f"HostStore: a file of {sizes.in_words(length)} cannot be mapped into this "
                    f"process ({error.strerror}); take a smaller capacity, or raise the limits of "
                    "the process"
                ) from error
        self.maps.append(mapped)
        return np.frombuffer(mapped, np.uint8).view(dtype).reshape(spec.shape)
