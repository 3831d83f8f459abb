"""Tensors of what a program has packed: each by itself, where it lies.

Torch knows more of a tensor than its bytes. It saves, pickles, moves and shares the storage. By the
count of writes autograd tells that a saved tensor has changed. A write to a view becomes part of
the gradient of its base.
Views of one tensor have all of that in common. So each leaf gets a storage that begins and ends
where the leaf does. All of them keep the memory that they lie in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

# Torch documents it, but does not mark it as public for type checkers.
from torch.utils.dlpack import to_dlpack  # pyright: ignore[reportPrivateImportUsage]

from fbuf_adapters.pytorch.crossing import _dlpack, _dtypes
from fbuf_adapters.pytorch.crossing._packed import PackedLayout
from fbuf_adapters.pytorch.crossing._to_torch import Aliases, on_cpu, torch_device

_LITTLE = 2**16
"""Bytes; an array up to this size may be kept for the sake of any leaf."""

_TIMES = 16
"""The most memory that a leaf may keep alive, in multiples of its own size."""

Axes = tuple[int | None, ...]
"""On which axis of each of its leaves a batch has its rows: the one that the size changes."""


class _Place(NamedTuple):
    """Where a leaf lies in a packed array.

    Attributes:
        leaf: The number of the leaf.
        field: The name of the leaf in a record of NumPy's.
        most: The largest array to keep for the sake of the leaf, in bytes.
        dtype: Torch's name of the dtype.
        shape: The shape of the leaf.
        start: In units of the array; the memory of what comes from JAX starts with the array.
    """

    leaf: int
    field: str
    most: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


class _Split(NamedTuple):
    """The leaves of one dtype in a packed array: one call of torch's splits all of them off.

    Attributes:
        dtype: Torch's name of the dtype.
        lengths: The lengths of all parts of the array, in units of it.
        places: The leaf that each part is; None for what lies between leaves.
    """

    dtype: torch.dtype
    lengths: list[int]
    places: list[_Place | None]


class _Packed(NamedTuple):
    """The leaves in a packed array.

    Attributes:
        record: The record whose fields are the leaves.
        places: Where each lies.
        splits: The same by dtype, as torch splits the array.
    """

    record: np.dtype[Any]
    places: list[_Place]
    splits: list[_Split]


class Unpack:
    """Makes leaves of the arrays that were packed by a program."""

    def __init__(self, layout: PackedLayout) -> None:
        self.shapes = tuple(shape for shape, _ in layout.specs)
        self._packed = [_packed(layout, unit, numbers) for unit, numbers in layout.packed]
        self._alone = layout.alone

    def place(self, number: int) -> tuple[int, int] | None:
        """Return the packed array that a leaf lies in, and where in it; None if it lies alone."""
        for array, packed in enumerate(self._packed):
            for place in packed.places:
                if place.leaf == number:
                    return array, place.start
        return None

    def __call__(
        self,
        arrays: tuple[jax.Array, ...],
        size: int = 0,
        axes: Axes | None = None,
        number: int | None = None,
        aliases: Aliases | None = None,
    ) -> list[torch.Tensor]:
        """The leaves: tensors on the memory of the arrays, which must be nobody else's.

        Args:
            arrays: The packed arrays.
            size: How many rows to keep.
            axes: The axes that these are on; None keeps all.
            number: Which batch it is of those that the arrays hold, on an axis before the others;
                None if there is no such axis.
            aliases: Makes tensors of arrays; None makes them for this call alone.
        """
        of_host = torch_device(arrays[0].sharding).type == "cpu"
        aliases = aliases or Aliases()
        cut = axes or (None,) * len(self.shapes)
        rest = iter(arrays)
        leaves: list[Any] = [None] * len(self.shapes)
        for packed, array in zip(self._packed, rest, strict=False):
            if of_host:
                memory = _memory(array)
                start = (number or 0) * packed.record.itemsize
                fields = np.ndarray((), packed.record, memory, start)
                for place in packed.places:
                    copied = memory.nbytes > place.most
                    leaves[place.leaf] = _of_host(fields, place, copied, size, cut[place.leaf])
            else:
                whole = aliases.of(array)
                for place, part in _parts(_numbered(whole, number), packed.splits):
                    leaves[place.leaf] = _of_device(part, place, size, cut[place.leaf])
        for place, array in zip(self._alone, rest, strict=True):
            leaf = _numbered(aliases.of(array), number)
            leaf = leaf if number is None else free(leaf)
            leaves[place] = _cut(leaf, size, cut[place])
        return leaves


def free(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the same memory that is no view of another to torch; see `_memory`."""
    try:
        return _dlpack.taken(to_dlpack(tensor))
    except RuntimeError:
        return tensor.clone()


def _memory(array: jax.Array) -> np.ndarray[Any, Any]:
    """The memory of an array on the host, to be written to.

    Within `torch.func.grad` and its like each new tensor is a wrapper, whose memory torch does not
    show. There the array is copied.
    """
    try:
        return on_cpu(array).numpy()
    except RuntimeError:
        return np.array(array)


def _of_host(fields: Any, place: _Place, copied: bool, size: int, axis: int | None) -> torch.Tensor:
    """A leaf in memory of the host. NumPy takes a tenth of torch's time to name a part."""
    leaf = fields[place.field]
    if axis is not None:
        leaf = np.ascontiguousarray(leaf[(slice(None),) * axis + (slice(size),)])
    return torch.from_numpy(leaf.copy() if copied else leaf)


def _numbered(whole: torch.Tensor, number: int | None) -> torch.Tensor:
    """The part of a batch in an array that several lie in."""
    return whole if number is None else whole[number]


def _parts(whole: torch.Tensor, splits: list[_Split]) -> Iterator[tuple[_Place, torch.Tensor]]:
    """The leaves of a packed array in any memory, each in one axis.

    To split costs a fifth of naming each part by itself. The parts share their storage, still.
    """
    for dtype, lengths, places in splits:
        typed = whole if whole.dtype is dtype else whole.view(dtype)
        for place, part in zip(places, torch.unsafe_split_with_sizes(typed, lengths), strict=True):
            if place is not None:
                yield place, part


def _of_device(part: torch.Tensor, place: _Place, size: int, axis: int | None) -> torch.Tensor:
    """A leaf in any memory, as DLPack hands it over."""
    leaf = part if len(place.shape) == 1 else part.view(place.shape)
    return free(leaf) if axis is None else _cut(leaf, size, axis)


def _cut(leaf: torch.Tensor, size: int, axis: int | None) -> torch.Tensor:
    """The first rows of a leaf."""
    return leaf if axis is None else free(leaf.narrow(axis, 0, size).contiguous())


def _packed(layout: PackedLayout, unit: np.dtype[Any], numbers: list[int]) -> _Packed:
    """The leaves in an array of a unit."""
    starts, units = layout.starts(unit)
    size = units * unit.itemsize
    places: list[_Place] = []
    for number, start in zip(numbers, starts, strict=True):
        shape, dtype = layout.specs[number]
        most = max(_LITTLE, _TIMES * math.prod(shape) * dtype.itemsize)
        places.append(_Place(number, str(number), most, _dtypes.to_torch(dtype), shape, start))
    record: Any = np.dtype(
        {
            "names": [place.field for place in places],
            "formats": [layout.specs[number][::-1] for number in numbers],
            "offsets": [start * unit.itemsize for start in starts],
            "itemsize": size,
        }
    )
    by_dtype = itertools.groupby(places, lambda place: place.dtype)
    return _Packed(record, places, [_split(d, list(some), units) for d, some in by_dtype])


def _split(dtype: torch.dtype, places: list[_Place], units: int) -> _Split:
    """The split of an array of so many units that has these leaves of a dtype."""
    lengths: list[int] = []
    found: list[_Place | None] = []
    for place in places:
        if gap := place.start - sum(lengths):
            lengths.append(gap)
            found.append(None)
        lengths.append(math.prod(place.shape))
        found.append(place)
    if rest := units - sum(lengths):
        lengths.append(rest)
        found.append(None)
    return _Split(dtype, lengths, found)
