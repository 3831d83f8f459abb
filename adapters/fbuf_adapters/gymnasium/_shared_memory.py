"""Memory that processes share.

It has no name, so nothing is left of it once the processes have ended, however they ended. A named
block (`multiprocessing.shared_memory`) stays when its last user is killed before it was unlinked,
and cannot be attached any more after that, as a process that is started anew must.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from multiprocessing import reduction
from typing import Any

import numpy as np


class Memory:
    """Bytes that a process and those it spawns see. A process gets it as an argument."""

    def __init__(self, size: int = 0, *, file: int | None = None) -> None:
        """Make some, or attach to what was made: all zeros."""
        self._file = _anonymous_file() if file is None else file
        weakref.finalize(self, os.close, self._file)
        self._map: mmap.mmap | None = None
        if file is None and size:
            self.grow(size)

    @classmethod
    def of(cls, data: bytes) -> Memory:
        """Memory that holds these bytes."""
        memory = cls(len(data))
        memory.view(np.uint8, (len(data),))[:] = np.frombuffer(data, np.uint8)
        return memory

    def grow(self, size: int) -> None:
        """Give it its size. It must have been empty."""
        os.ftruncate(self._file, size)

    def view(self, dtype: Any, shape: tuple[int, ...], offset: int = 0) -> np.ndarray[Any, Any]:
        """An array in this memory."""
        return np.ndarray(shape, dtype, self._mapped(), offset)

    def numbers(self, code: Any) -> Any:
        """All of it as numbers of one type, in the words of `struct`: the quickest to set one."""
        return memoryview(self._mapped()).cast(code)

    def __bytes__(self) -> bytes:
        return self._mapped()[:]

    def __reduce__(self) -> Any:
        return _attached, (reduction.DupFd(self._file),)

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return self._map


def _attached(file: Any) -> Memory:
    return Memory(file=file.detach())


def _anonymous_file() -> int:
    if sys.platform == "linux":
        # Unlike /dev/shm, which containers often have 64 MB of, it may take what memory there is.
        return os.memfd_create("fbuf", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file
