"""The container of arrays: NumPy's `.npy`, several of them one after the other in a file.

`.npy` needs no package beside NumPy, and anyone can read it. A file is written and read in order.
All arrays are bytes, `[rows, bytes of a row]`. The manifest has their checksums, and their dtypes,
because NumPy has no bfloat16 or float8.
"""

from __future__ import annotations

import contextlib
import io
import math
import pathlib
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy

from fbuf.checkpoint import progress
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.files import CHUNK, Checksum, RowBlock
from fbuf.checks import foreign


def row_bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    """Return the bytes of a row of `[rows, *shape]`."""
    return math.prod(shape) * dtype.itemsize


def _header(rows: int, width: int) -> bytes:
    """Return the header of an array."""
    header = io.BytesIO()
    about = {"descr": "|u1", "fortran_order": False, "shape": (rows, width)}
    npy.write_array_header_1_0(header, about)
    return header.getvalue()


def put(file: BinaryIO, blocks: Iterable[RowBlock]) -> None:
    """Write arrays, one after the other."""
    for block in blocks:
        file.write(_header(block.rows, block.width))
        for chunk in block.chunks:
            data = np.ascontiguousarray(chunk).reshape(-1)
            if data.size:
                file.write(data.view(np.uint8).data)


def nbytes(rows: int, widths: Sequence[int]) -> int:
    """Return the bytes of a file of arrays of `rows` rows; `widths` are the bytes of a row."""
    return sum(len(_header(rows, width)) + rows * width for width in widths)


def views(path: pathlib.Path, rows: int, widths: Sequence[int]) -> list[np.ndarray]:
    """Return maps of the arrays in a checked file: uint8 `[rows, width]` each."""
    # One map for all arrays, as each map takes a file descriptor.
    whole, found, at = np.memmap(path, np.uint8, mode="r"), [], 0
    for width in widths:
        at += len(_header(rows, width))
        found.append(whole[at : at + rows * width].reshape(rows, width))
        at += rows * width
    return found


def check(folder: pathlib.Path, name: str, expected: Checksum) -> None:
    """Read a file, and compare its length and checksum.

    Raises:
        CheckpointError: If it is damaged.
    """
    with reading(folder, name, expected):
        pass


@contextlib.contextmanager
def reading(folder: pathlib.Path, name: str, expected: Checksum) -> Generator[NpyReader]:
    """Read the arrays of a file in a block, and check the whole file at the end.

    Raises:
        CheckpointError: If it cannot be read, or is damaged.
    """
    with opened(folder / name) as file:
        reader = NpyReader(file, str(folder / name), expected)
        yield reader
        reader.end()


def opened(path: pathlib.Path) -> BinaryIO:
    """Open a file of a checkpoint for reading.

    Raises:
        CheckpointError: If it cannot be read.
    """
    try:
        return foreign.opened(path)
    except (OSError, foreign.Refusal) as error:
        raise CheckpointError(f"fbuf.load: {path} cannot be read: {error}") from error


class NpyReader:
    """Reads the arrays of a file from its beginning to its end, and checks all that it reads.

    Args:
        file: The open file.
        name: Its name, for messages.
        expected: Its length and checksum.
    """

    def __init__(self, file: BinaryIO, name: str, expected: Checksum) -> None:
        self._file, self._name, self._expected = file, name, expected
        self._crc32 = self._length = 0

    def array(self, rows: int, width: int, step: int) -> Iterator[np.ndarray]:
        """Yield the next array, `step` rows at a time; its shape must be `[rows, width]`."""
        # Such an array has exactly one header, so nothing has to be parsed.
        expected = _header(rows, width)
        if self.read(len(expected)) != expected:
            raise self._damaged(f"has no array of ({rows}, {width}) where one must be")
        for first in range(0, rows, step):
            count = min(step, rows - first)
            data = self.read(count * width)
            if len(data) < count * width:
                raise self._damaged("ends too early")
            yield np.frombuffer(data, np.uint8).reshape(count, width)

    def read(self, count: int) -> bytes:
        """Return `count` bytes, or the rest."""
        data = self._file.read(count)
        self._crc32 = zlib.crc32(data, self._crc32)
        self._length += len(data)
        progress.moved(len(data))
        return data

    def end(self) -> None:
        """Check that the file ends behind the last array, and has the right checksum."""
        while self.read(CHUNK):
            pass
        if (self._length, self._crc32) != (self._expected.length, self._expected.crc32):
            raise self._damaged(
                f"has {self._length} bytes with the checksum {self._crc32:08x}, and "
                f"{self._expected.length} with {self._expected.crc32:08x} were written"
            )

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"fbuf.load: {self._name} is damaged: it {what}")
