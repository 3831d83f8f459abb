"""Memory that processes share, the arrays in it, and the chunks that workers write there.

The memory has no name, so nothing is left of it after the processes, however they ended. A named
block (`multiprocessing.shared_memory`) stays if its last user is killed before unlinking it. It
also cannot be attached again after that, as a process that is started anew must.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
import weakref
from multiprocessing import reduction
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._chunk import StepChunk
from fbuf_adapters.gymnasium._spaces import FLAG, Spec, map_leaves, paths


class SharedMemory:
    """Bytes shared by a process and the processes that get this object as an argument."""

    def __init__(self, size: int = 0, *, file: int | None = None) -> None:
        """Allocate zeros, or attach to the memory of an open file."""
        self._file = _anonymous_file() if file is None else file
        weakref.finalize(self, os.close, self._file)
        self._map: mmap.mmap | None = None
        if file is None and size:
            self.grow(size)

    @classmethod
    def of(cls, data: bytes) -> SharedMemory:
        """Return memory that holds these bytes."""
        memory = cls(len(data))
        memory.buffer[:] = data
        return memory

    def grow(self, size: int) -> None:
        """Set the size of empty memory."""
        os.ftruncate(self._file, size)

    @property
    def buffer(self) -> mmap.mmap:
        """The bytes."""
        if self._map is None:
            self._map = mmap.mmap(self._file, os.fstat(self._file).st_size)
        return self._map

    def __reduce__(self) -> Any:
        return _attached, (reduction.DupFd(self._file),)


def _attached(file: Any) -> SharedMemory:
    return SharedMemory(file=file.detach())


def _anonymous_file() -> int:
    if sys.platform == "linux":
        # It may take all free memory, unlike /dev/shm, which in containers often has 64 MB.
        return os.memfd_create("fbuf", os.MFD_CLOEXEC)
    file, path = tempfile.mkstemp()
    os.unlink(path)
    return file


def size_of(specs: Any, lead: tuple[int, ...] = ()) -> int:
    """Return the bytes of arrays `[*lead, ...]` for a tree of specs; see `arrays_in`."""
    return sum(_size(spec, lead) for _, spec in paths(specs))


def arrays_in(buffer: Any, specs: Any, lead: tuple[int, ...] = ()) -> Any:
    """Return a tree of arrays `[*lead, ...]` in a buffer, each at the start of a cache line."""
    offset = 0

    def array(spec: Spec) -> np.ndarray[Any, Any]:
        nonlocal offset
        made = np.ndarray((*lead, *spec.shape), spec.dtype, buffer, offset)
        offset += _size(spec, lead)
        return made

    return map_leaves(array, specs)


def _size(spec: Spec, lead: tuple[int, ...]) -> int:
    return -(-math.prod((*lead, *spec.shape)) * spec.dtype.itemsize // 64) * 64


class SharedChunks:
    """Arrays `[slots, steps, envs, ...]` of all fields of a chunk, filled by workers.

    A slot is as long as a chunk and as wide as the environments of all workers. Each worker fills
    its own columns, so that the learner adds a slot as it is. The arrays exist once `allocate` or
    `attach` has been called with the spec of a row.
    """

    def __init__(
        self, slots: int, steps: int, envs: int, memory: SharedMemory | None = None
    ) -> None:
        self._shape = slots, steps, envs
        self._memory = SharedMemory() if memory is None else memory
        self._arrays: Any = None

    def allocate(self, spec: dict[str, Any]) -> None:
        """Make the memory large enough, and lay out the arrays."""
        self._memory.grow(size_of(_chunk_specs(spec), self._shape))
        self.attach(spec)

    def attach(self, spec: dict[str, Any]) -> None:
        """Lay out the arrays in allocated memory, unless done before."""
        if self._arrays is None:
            self._arrays = arrays_in(self._memory.buffer, _chunk_specs(spec), self._shape)

    def write(self, slot: int, envs: slice, chunk: StepChunk) -> None:
        """Copy a chunk of some environments into a slot."""
        given = {name: getattr(chunk, name) for name in self._arrays}

        def put(array: np.ndarray[Any, Any], part: np.ndarray[Any, Any]) -> None:
            array[slot, : chunk.steps, envs] = part

        map_leaves(put, self._arrays, given)

    def read(self, slot: int) -> dict[str, Any]:
        """Return the arrays `[steps, envs, ...]` of a slot; the next write changes them."""
        return map_leaves(lambda array: array[slot], self._arrays)

    def __reduce__(self) -> Any:
        return SharedChunks, (*self._shape, self._memory)


def _chunk_specs(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the specs of all fields of a chunk, from those of a row."""
    own = {name: spec[name] for name in ("observation", "action", "reward")}
    return {
        **own,
        "terminated": FLAG,
        "truncated": FLAG,
        "next_observation": spec["observation"],
        "extras": {name: part for name, part in spec.items() if name not in own},
    }
