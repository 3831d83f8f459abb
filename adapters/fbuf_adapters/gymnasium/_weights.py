"""Weights of a policy: what they are a tree of, and room for processes to read them in."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._shared_memory import Memory

_HEADER = 64
"""Bytes before the arrays: the number of writes, and of each slot which write it has, and a sum."""

_SLOTS = 2
"""How many versions there is room for: one is read while the next is written."""


class Form:
    """What weights are a tree of: its containers, and the shapes and dtypes of its arrays.

    Args:
        tree: Any tree of mappings, tuples, lists and arrays.
        owner: The collector, for errors.
    """

    def __init__(self, tree: Any, owner: str) -> None:
        arrays: list[np.ndarray[Any, Any]] = []
        self._owner = owner
        self._paths: list[str] = []
        self._tree = _flattened(tree, "weights", arrays, self._paths, owner)
        self.leaves = [(array.dtype, array.shape) for array in arrays]

    def arrays(self, tree: Any) -> list[np.ndarray[Any, Any]]:
        """The arrays of another tree of this form; they may be the very ones that are in it."""
        arrays: list[np.ndarray[Any, Any]] = []
        paths: list[str] = []
        if _flattened(tree, "weights", arrays, paths, self._owner) != self._tree:
            differ = sorted(set(paths) ^ set(self._paths)) or ["its containers"]
            raise CollectorError(
                f"{self._owner}.publish: weights must be a tree like the weights= that the "
                f"collector was made with; {differ[0]} differs"
            )
        for path, array, (dtype, shape) in zip(paths, arrays, self.leaves, strict=True):
            if (array.dtype, array.shape) != (dtype, shape):
                raise CollectorError(
                    f"{self._owner}.publish: {path} must be {dtype} of shape {shape}, as in the "
                    f"weights= that the collector was made with; got {array.dtype} of shape "
                    f"{array.shape}"
                )
        return arrays

    def tree(self, arrays: list[np.ndarray[Any, Any]]) -> Any:
        """A tree of this form with these arrays."""
        return _unflattened(self._tree, arrays)


class Weights:
    """The newest weights, in shared memory, with a version that counts up from 0.

    They are written to two slots by turns. The writer makes the number of a slot 0, writes, and
    says which write it has; who has read meanwhile reads again. That happens to a reader only if
    it takes longer than a whole write, so nobody waits for ever for a writer that never rests, nor
    for one that was interrupted. Processors may reorder all this, so there is a checksum as well.
    """

    def __init__(self, tree: Any, owner: str = "ProcessCollector") -> None:
        """Hold a first version: any tree of mappings, tuples, lists and arrays."""
        self._form = Form(tree, owner)
        self._places: list[tuple[np.dtype[Any], tuple[int, ...], int]] = []
        size = 0
        for dtype, shape in self._form.leaves:
            self._places.append((dtype, shape, size))
            size += -(-dtype.itemsize * math.prod(shape) // 64) * 64
        self._size = size
        self._memory: Memory | None = None
        self.attach(Memory(_HEADER + _SLOTS * size))
        self.publish(tree)

    def attach(self, memory: Memory) -> None:
        """Use this memory: a process unpickles the rest, and gets that as an argument."""
        self._memory = memory
        self._writes = memory.view(np.int64, (1,))
        self._slots = memory.view(np.int64, (_SLOTS, 2), 8)
        self._data = memory.view(np.uint8, (_SLOTS, self._size), _HEADER)

    @property
    def memory(self) -> Memory:
        """Where they are."""
        assert self._memory is not None
        return self._memory

    @property
    def version(self) -> int:
        """That of the newest weights."""
        return int(self._writes[0]) - 1

    def publish(self, tree: Any) -> int:
        """Replace them, and return the version of the new ones."""
        arrays = self._form.arrays(tree)
        write = int(self._writes[0]) + 1
        slot, data = self._slot(write)
        slot[0] = 0
        for array, place in zip(arrays, self._places, strict=True):
            np.copyto(_array(data, *place), array)
        slot[:] = write, zlib.crc32(data.data)
        self._writes[0] = write
        return self.version

    def read(self) -> tuple[int, Any]:
        """The newest version, and its weights, in memory of their own."""
        while True:
            write = int(self._writes[0])
            slot, data = self._slot(write)
            data, (of, checksum) = data.copy(), slot.tolist()
            if of == write and zlib.crc32(data.data) == checksum:
                arrays = [_array(data, *place) for place in self._places]
                return write - 1, self._form.tree(arrays)
            time.sleep(1e-4)

    def _slot(self, write: int) -> tuple[Any, Any]:
        """Of the slot of a write: which one it has and its sum, and the bytes."""
        return self._slots[write % _SLOTS], self._data[write % _SLOTS]

    def __getstate__(self) -> dict[str, Any]:
        views = ("_memory", "_writes", "_slots", "_data")
        return {name: value for name, value in self.__dict__.items() if name not in views}


def _array(
    data: np.ndarray[Any, Any], dtype: np.dtype[Any], shape: tuple[int, ...], offset: int
) -> np.ndarray[Any, Any]:
    return np.ndarray(shape, dtype, data.data, offset)


def _flattened(
    tree: Any, path: str, arrays: list[np.ndarray[Any, Any]], paths: list[str], owner: str
) -> Any:
    """The tree with numbers for leaves, which are put into the lists."""
    if isinstance(tree, Mapping):
        # Numbered in one order, whatever the order they were put in: jax.tree.map sorts them.
        parts = {
            key: _flattened(tree[key], f"{path}[{key!r}]", arrays, paths, owner)
            for key in sorted(tree, key=str)
        }
        return {key: parts[key] for key in tree}
    if isinstance(tree, list | tuple):
        parts = [
            _flattened(part, f"{path}[{i}]", arrays, paths, owner) for i, part in enumerate(tree)
        ]
        return parts if isinstance(tree, list) else tuple(parts)
    detach = getattr(tree, "detach", None)  # a tensor: NumPy takes none with a gradient, or of GPUs
    array = np.asarray(tree if detach is None else detach().cpu())
    if array.dtype.hasobject:
        raise CollectorError(
            f"{owner}: {path} is a {type(tree).__name__}, which is no array; give the "
            "weights as dicts, tuples and lists of arrays"
        )
    arrays.append(array)
    paths.append(path)
    return len(paths) - 1


def _unflattened(tree: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if isinstance(tree, dict):
        return {key: _unflattened(part, arrays) for key, part in tree.items()}
    if isinstance(tree, list):
        return [_unflattened(part, arrays) for part in tree]
    if isinstance(tree, tuple):
        return tuple(_unflattened(part, arrays) for part in tree)
    return arrays[tree]
