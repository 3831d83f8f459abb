"""Files that are there whole or not at all.

A file is written under another name, flushed to the disk, and renamed. Then the directory is
flushed. A final name always stands for a whole file, even after a crash of the machine. The tests
in `tests/checkpoint/test_save_crash.py` check the order at every moment of a crash.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

import numpy as np

from fbuf.checkpoint import progress
from fbuf.checks.warn import warn

UNFINISHED = ".unfinished"
"""The end of the name of a file that is being written."""

CHUNK = 2**24
"""Bytes that are read or written at a time."""

CANNOT = {errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, 524}
"""The errors of a disk without the requested operation.

524 is Linux's own ENOTSUPP, without a name in Python; Cray's DVS returns it.
"""

_warned: set[int] = set()
"""The disks whose warning the user has already seen."""


@dataclasses.dataclass(frozen=True)
class Checksum:
    """The length of a file in bytes, and their CRC-32."""

    length: int
    crc32: int


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """An array to write: the number of rows, the bytes of a row, and the data in chunks."""

    rows: int
    width: int
    chunks: Iterable[np.ndarray]


Content = Callable[[BinaryIO], None]
"""A function that writes the content of a file."""


class ChecksumFile(io.RawIOBase):
    """A writable file that computes length and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.length, self.crc32 = file, 0, 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all bytes."""
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.length += len(view)
        self.crc32 = zlib.crc32(view, self.crc32)
        progress.moved(len(view))
        return len(view)


def write(folder: pathlib.Path, contents: Mapping[str, Content]) -> dict[str, Checksum]:
    """Write files of a directory.

    Args:
        folder: The directory.
        contents: The functions that write each file, by file name, which may have a subdirectory.

    Returns:
        The length and the checksum of each file.
    """
    found = {name: _written(folder / name, content) for name, content in contents.items()}
    for parent in {(folder / name).parent for name in contents}:
        sync(parent)
    return found


def _written(final: pathlib.Path, content: Content) -> Checksum:
    """Write a file; the caller has to flush its name to the disk."""
    unfinished = final.with_name(final.name + UNFINISHED)
    try:
        if os.path.lexists(unfinished):  # else a link would be followed
            unfinished.unlink()
        with open(unfinished, "xb") as file:
            summed = ChecksumFile(file)
            content(summed)  # pyright: ignore[reportArgumentType]  it is a file as far as it is used
            file.flush()
            _bring(file.fileno(), final)
        os.replace(unfinished, final)
    except BaseException:
        unfinished.unlink(missing_ok=True)  # free the disk for the next save
        raise
    return Checksum(summed.length, summed.crc32)


def make_folder(path: pathlib.Path) -> None:
    """Make a directory and its parents, so that they survive a crash."""
    if path.is_dir():
        return
    if path.exists():
        raise FileExistsError(
            errno.EEXIST, "fbuf saves to a directory, and this is a file", str(path)
        )
    make_folder(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)


def sync(folder: pathlib.Path) -> None:
    """Flush the names in a directory to the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _bring(descriptor, folder)
    finally:
        os.close(descriptor)


def _bring(descriptor: int, path: pathlib.Path) -> None:
    """Flush a file or directory to the disk; warn, once a disk, if the disk cannot do that."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT:
            raise
        device = os.fstat(descriptor).st_dev
        if device not in _warned:
            _warned.add(device)
            warn(
                f"fbuf: the disk of {path} cannot bring files to the disk on demand ({error}); "
                "what was saved last may be missing after a crash of the machine"
            )


def delete(folder: pathlib.Path, names: set[str]) -> None:
    """Delete files of a directory, and ignore missing ones."""
    for name in sorted(names):
        path = folder / name
        if path.is_symlink() or not path.is_dir():  # a directory with this name is not ours
            path.unlink(missing_ok=True)
