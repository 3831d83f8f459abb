"""Weights of a policy: their structure, and shared memory with the newest ones."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fbuf_adapters.gymnasium._errors import CollectorError
from fbuf_adapters.gymnasium._shared_memory import SharedMemory, arrays_in, size_of
from fbuf_adapters.gymnasium._spaces import Spec, map_leaves, paths

_HEADER = 64
"""The bytes of the header: the count of writes, and the write and checksum of each slot."""

_SLOTS = 2
"""The number of slots: one is read while the next is written."""


class WeightsForm:
    """The form of weights: the containers of their tree, and the shapes and dtypes of the arrays.

    Args:
        tree: Any tree of mappings, tuples, lists and arrays.
        owner: The collector, for errors.
    """

    def __init__(self, tree: Any, owner: str) -> None:
        self._owner = owner
        arrays = _of_arrays(tree, "weights", owner)
        self.specs = map_leaves(lambda array: Spec(array.shape, array.dtype), arrays)

    def checked(self, tree: Any) -> Any:
        """Return another tree of this form, in NumPy arrays, without copies where possible."""
        tree = _of_arrays(tree, "weights", self._owner)
        specs, arrays = dict(paths(self.specs, "weights")), dict(paths(tree, "weights"))
        containers = lambda tree: map_leaves(lambda _: None, tree)
        if containers(tree) != containers(self.specs):
            differ = sorted(arrays.keys() ^ specs.keys()) or ["its containers"]
            raise CollectorError(
                f"{self._owner}.publish: weights must be a tree like the weights= that the "
                f"collector was made with; {differ[0]} differs"
            )
        for path, spec in specs.items():
            array = arrays[path]
            if (array.dtype, array.shape) != (spec.dtype, spec.shape):
                raise CollectorError(
                    f"{self._owner}.publish: {path} must be {spec.dtype} of shape {spec.shape}, as "
                    f"in the weights= that the collector was made with; got {array.dtype} of shape "
                    f"{array.shape}"
                )
        return map_leaves(lambda _, array: array, self.specs, tree)


class SharedWeights:
    """The newest weights, in shared memory, with a version that counts up from 0.

    They are written to two slots by turns. The writer sets the number of a slot to 0, writes, and
    then sets the number of the write. A reader reads again if the number changed meanwhile. A
    reader needs that only if it takes longer than a whole write. So no reader waits for ever: not
    for a writer without a pause, nor for one that was interrupted. A checksum finds what processors
    have reordered.
    """

    def __init__(self, tree: Any, owner: str = "ProcessCollector") -> None:
        """Hold a first version: any tree of mappings, tuples, lists and arrays."""
        self._form = WeightsForm(tree, owner)
        self.attach(SharedMemory(_HEADER + _SLOTS * size_of(self._form.specs)))
        self.publish(tree)

    def attach(self, memory: SharedMemory) -> None:
        """Use this memory. A process gets it as an argument, and unpickles the rest."""
        self.memory = memory
        size = size_of(self._form.specs)
        self._writes = np.ndarray((1,), np.int64, memory.buffer)
        self._slots = np.ndarray((_SLOTS, 2), np.int64, memory.buffer, 8)
        self._data = np.ndarray((_SLOTS, size), np.uint8, memory.buffer, _HEADER)

    @property
    def version(self) -> int:
        """The version of the newest weights."""
        return int(self._writes[0]) - 1

    def publish(self, tree: Any) -> int:
        """Replace the weights, and return the version of the new ones."""
        tree = self._form.checked(tree)
        write = int(self._writes[0]) + 1
        slot, data = self._slot(write)
        slot[0] = 0
        map_leaves(np.copyto, arrays_in(data.data, self._form.specs), tree)
        slot[:] = write, zlib.crc32(data.data)
        self._writes[0] = write
        return self.version

    def read(self) -> tuple[int, Any]:
        """Return the newest version, and a copy of its weights."""
        while True:
            write = int(self._writes[0])
            slot, data = self._slot(write)
            data, (of, checksum) = data.copy(), slot.tolist()
            if of == write and zlib.crc32(data.data) == checksum:
                return write - 1, arrays_in(data.data, self._form.specs)
            time.sleep(1e-4)

    def _slot(self, write: int) -> tuple[Any, Any]:
        """Return the slot of a write: its number and checksum, and its bytes."""
        return self._slots[write % _SLOTS], self._data[write % _SLOTS]

    def __getstate__(self) -> dict[str, Any]:
        return {"_form": self._form}


def _of_arrays(tree: Any, path: str, owner: str) -> Any:
    """Return a tree of dicts, lists, tuples and NumPy arrays."""
    if isinstance(tree, Mapping):
        return {key: _of_arrays(part, f"{path}[{key!r}]", owner) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [_of_arrays(part, f"{path}[{i}]", owner) for i, part in enumerate(tree)]
        return parts if isinstance(tree, list) else tuple(parts)
    detach = getattr(tree, "detach", None)  # a tensor: NumPy refuses gradients and GPUs
    array = np.asarray(tree if detach is None else detach().cpu())
    if array.dtype.hasobject:
        raise CollectorError(
            f"{owner}: {path} is a {type(tree).__name__}, which is no array; give the "
            "weights as dicts, tuples and lists of arrays"
        )
    return array
