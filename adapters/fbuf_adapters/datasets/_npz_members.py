"""Arrays in npz files, read and written a part at a time."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable
from typing import IO, Any

import numpy as np

from fbuf_adapters.datasets._fields import Array


class Member:
    """An array of an npz file; its rows are read in order, and from the first one again.

    An array in Fortran order, in which no row is in one piece, is read as a whole at its first row.

    Args:
        source: Opens the member of the npz file at its beginning; the caller closes it.
        name: The name of the array.
        dtype: The dtype of the items, if NumPy does not know it; None is the dtype of the file.
    """

    def __init__(self, source: Callable[[], Any], name: str, dtype: np.dtype[Any] | None) -> None:
        self._source, self._name = source, name
        shape, fortran, stored = self._open()
        if stored.hasobject:
            raise ValueError(f"{name} holds objects of Python, which are not read")
        self._fortran: bool = fortran and len(shape) > 1
        self._whole: Array | None = None
        self.shape: tuple[int, ...] = shape
        self.dtype = stored if dtype is None else dtype
        self._last = np.empty((0, *shape[1:]), self.dtype)

    def __getitem__(self, part: slice) -> Array:
        """Return the next rows, or the first ones; or the rows that were read last, again."""
        if part.stop == self._read and part.start == self._read - len(self._last):
            return self._last
        if part.start == 0 and self._read and self._whole is None:
            self._stream.close()
            self._open()  # anew: to seek would leave out the checksum
        elif part.start != self._read and self._whole is None:
            raise IndexError(f"{self._name}: rows are read in order")
        if self._fortran:
            if self._whole is None:
                self._whole = self._array(self.shape[::-1], last=True).T
            self._last = self._whole[part].copy()
        else:
            shape = (part.stop - part.start, *self.shape[1:])
            self._last = self._array(shape, last=part.stop == self.shape[0]).copy()
        self._read = part.stop
        return self._last

    def _open(self) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
        """Begin to read; return the shape, whether in Fortran order, and the dtype."""
        self._stream, self._read = self._source(), 0
        version = np.lib.format.read_magic(self._stream)
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(self._stream)
        if version == (2, 0):
            return np.lib.format.read_array_header_2_0(self._stream)
        raise ValueError(f"{self._name} is of version {version} of npy")

    def _array(self, shape: tuple[int, ...], last: bool) -> Array:
        """Return the next array of the stream, which cannot be written to."""
        count = math.prod(shape) * self.dtype.itemsize
        found = self._stream.read(count)
        if len(found) != count:
            raise EOFError(f"{self._name} ends after row {self._read}")
        if last and self._stream.read(1):  # which checks its checksum, too
            raise zipfile.BadZipFile(f"{self._name} is longer than its header says")
        return np.frombuffer(found, self.dtype).reshape(shape)


def begin(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an array."""
    known = dtype if is_native(dtype) or dtype.kind == "U" else np.dtype(f"V{dtype.itemsize}")
    header = {"descr": np.lib.format.dtype_to_descr(known), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)


def is_native(dtype: np.dtype[Any]) -> bool:
    """Return whether npy files have a name for a dtype: bfloat16 and its like have none."""
    return dtype.kind in "biufc"
