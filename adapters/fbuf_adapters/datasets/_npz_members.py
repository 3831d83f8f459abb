"""Arrays in npz files, read and written a part at a time."""

from __future__ import annotations

import collections
import contextlib
import lzma
import math
import os
import pathlib
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Generator
from typing import IO, Any

import numpy as np

from fbuf.adapter_api import foreign_files
from fbuf_adapters.datasets._errors import DatasetError, unreadable
from fbuf_adapters.datasets._fields import Array

_BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError),
    *(EOFError, OSError, ValueError, SyntaxError, TypeError, LookupError, AttributeError),
    *(RuntimeError, ArithmeticError, MemoryError),  # for a password, or an unknown method
)
"""The errors of zipfile and NumPy for a damaged file."""


class Unreadable(Exception):
    """An npz file, or an array in it, that cannot be read."""


@contextlib.contextmanager
def reading(name: str) -> Generator[None]:
    """Turn the errors of a damaged file into `Unreadable`."""
    try:
        yield
    except FileNotFoundError:
        raise
    except _BROKEN as error:
        raise Unreadable(f"{name}: {error}" if name else str(error)) from error


@contextlib.contextmanager
def opened(where: str, path: str | os.PathLike[str]) -> Generator[Npz]:
    """Open an npz file, and close it with all its arrays at the end of the block.

    Raises:
        DatasetError: If it cannot be read, then or in the block.
        FileNotFoundError: If there is no such file.
    """
    try:
        with contextlib.ExitStack() as held:
            with reading(""):
                file = held.enter_context(foreign_files.opened(pathlib.Path(path)))
                size = os.fstat(file.fileno()).st_size
                archive = held.enter_context(zipfile.ZipFile(file))
                declared = sum(member.file_size for member in archive.infolist())
                foreign_files.require_size(declared, size)
            yield Npz(where, archive, held)
    except Unreadable as error:
        raise unreadable(where, path, "npz", error) from error


class Npz:
    """An open npz file.

    Attributes:
        names: The names of its arrays.

    Raises:
        DatasetError: If two arrays have one name.
    """

    def __init__(self, where: str, archive: zipfile.ZipFile, held: contextlib.ExitStack) -> None:
        self._archive, self._held = archive, held
        files = [name for name in archive.namelist() if name.endswith(".npy")]
        self.names = [name.removesuffix(".npy") for name in files]
        for name, count in collections.Counter(self.names).items():
            if count > 1:
                raise DatasetError(
                    f"{where}: the file has two arrays {foreign_files.printable(name)!r}, and only "
                    "one of them can be read; write it again with two names"
                )

    def member(self, name: str, dtype: np.dtype[Any] | None = None) -> Member:
        """Return an array, which is open as long as the file is.

        Raises:
            Unreadable: If it cannot be read.
        """
        size = self._archive.getinfo(f"{name}.npy").file_size
        source = lambda: self._held.enter_context(self._archive.open(f"{name}.npy"))
        return Member(source, name, size, dtype)


class Member:
    """An array of an npz file; its rows are read in order, and from the first one again.

    An array in Fortran order, in which no row is in one piece, is read as a whole at its first row.

    Args:
        source: Opens the member of the npz file at its beginning; the caller closes it.
        name: The name of the array.
        size: The bytes of the member, with its header.
        dtype: The dtype of the items, if NumPy does not know it; None is the dtype of the file.

    Raises:
        Unreadable: If it is no array, or has another size than its header says. Also from reading
            rows, if it is damaged.
    """

    def __init__(
        self, source: Callable[[], Any], name: str, size: int, dtype: np.dtype[Any] | None
    ) -> None:
        self._source, self._name = source, foreign_files.printable(name)
        shape, fortran, stored = self._open()
        with reading(self._name):
            if stored.hasobject:
                raise ValueError("it holds objects of Python, which are not read")
            if not stored.itemsize:
                raise ValueError("its items have no bytes")
            if dtype is not None and dtype.itemsize != stored.itemsize:
                raise ValueError(f"{dtype} is not the dtype of {stored}")
            declared = foreign_files.require_shape(shape, stored.itemsize)
            there = size - self._stream.tell()
            if declared != there:
                raise ValueError(f"it has {there} bytes, and {declared} by its header")
        self._fortran: bool = fortran and len(shape) > 1
        self._whole: Array | None = None
        self.shape: tuple[int, ...] = shape
        self.dtype = stored if dtype is None else dtype
        self._last = np.empty((0, *shape[1:]), self.dtype)

    def __getitem__(self, part: slice) -> Array:
        """Return the next rows, the first rows, or again the last read rows."""
        if part.stop == self._read and part.start == self._read - len(self._last):
            return self._last
        if part.start == 0 and self._read and self._whole is None:
            self._stream.close()
            self._open()  # reopened: seeking would skip the checksum
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
        """Begin to read; return the shape, the order (True for Fortran) and the dtype."""
        with reading(self._name):
            self._stream, self._read = self._source(), 0
            version = np.lib.format.read_magic(self._stream)
            if version == (1, 0):
                return np.lib.format.read_array_header_1_0(self._stream)
            if version == (2, 0):
                return np.lib.format.read_array_header_2_0(self._stream)
            raise ValueError(f"it is of version {version} of npy")

    def _array(self, shape: tuple[int, ...], last: bool) -> Array:
        """Return the next array of the stream, read-only."""
        with reading(self._name):
            count = math.prod(shape) * self.dtype.itemsize
            found = self._stream.read(count)
            if len(found) != count:
                raise EOFError(f"it ends after row {self._read}")
            if last and self._stream.read(1):  # which also verifies the checksum
                raise zipfile.BadZipFile("it is longer than its header says")
            return np.frombuffer(found, self.dtype).reshape(shape)


def begin(file: IO[bytes], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    """Write the header of an array."""
    known = dtype if is_native(dtype) or dtype.kind == "U" else np.dtype(f"V{dtype.itemsize}")
    header = {"descr": np.lib.format.dtype_to_descr(known), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_2_0(file, header)


def is_native(dtype: np.dtype[Any]) -> bool:
    """Return whether npy files can name a dtype; bfloat16 has no name there."""
    return dtype.kind in "biufc"
