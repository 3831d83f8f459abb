"""Arrays side by side in one: what crosses as a whole crosses faster than leaf by leaf.

A compiled program takes a few microseconds for every argument and every result, and so does every
array on its way to PyTorch. So leaves of 4 bytes a number lie in one array of words, those of 1
byte in one of bytes. Leaves of other widths, and large ones, stay by themselves, and
cross as one long row. XLA would first copy steps of environments to write them as rows. Where it
has no memory for the copy, the state that it writes to is lost.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_ALIGNED = 64
"""Bytes; what begins at a multiple of them, JAX can read where it is."""

_LARGE = 2**17
"""Bytes; the copy of more takes longer than to hand them over by themselves."""

_WORD, _BYTE = np.dtype(np.int32), np.dtype(np.uint8)

_UNITS = {
    **{np.dtype(name): _WORD for name in ("float32", "int32", "uint32")},
    **{np.dtype(name): _BYTE for name in ("bool", "uint8", "int8")},
}

_Spec = tuple[tuple[int, ...], np.dtype[Any]]


def is_large(size: int) -> bool:
    """Tell whether a leaf of `size` bytes stays by itself."""
    return size > _LARGE


class PackedLayout:
    """Where leaves lie. There is one of each kind: see `layout`.

    Attributes:
        specs: The shape and the dtype of each leaf.
        among: The unit of the packed array of each; None for a leaf that stays by itself.
        packed: The units of packed arrays, each with the numbers of its leaves.
        alone: The numbers of the others.
    """

    def __init__(self, specs: tuple[_Spec, ...]) -> None:
        self.specs = specs
        self.among = tuple(_among(*spec) for spec in specs)
        self.packed = [(u, self._of(u)) for u in (_WORD, _BYTE) if u in self.among]
        self.alone = self._of(None)

    def _of(self, unit: np.dtype[Any] | None) -> list[int]:
        """Those of a dtype lie together: torch then looks at all of them as one tensor."""
        numbers = [n for n, among in enumerate(self.among) if among is unit]
        return numbers if unit is None else sorted(numbers, key=lambda n: self.specs[n][1].name)

    def starts(self, unit: np.dtype[Any]) -> tuple[list[int], int]:
        """Where the leaves packed into a unit start, in these, and where the last one ends."""
        starts, end = [], 0
        for number in self._of(unit):
            starts.append(end)
            count = math.prod(self.specs[number][0])
            end += count + _padding(count, unit)
        return starts, end


def _among(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.dtype[Any] | None:
    count = math.prod(shape)
    if not count or is_large(count * dtype.itemsize):
        return None
    return _UNITS.get(dtype)


def layout(leaves: list[Any]) -> PackedLayout:
    """The layout of leaves that are arrays of any kind."""
    return _layout(tuple([(leaf.shape, leaf.dtype) for leaf in leaves]))


_layout = functools.cache(PackedLayout)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["array"],
    meta_fields=["start", "shape", "dtype"],
)
@dataclasses.dataclass(frozen=True)
class Part:
    """A leaf in an array of words that has others, too.

    Attributes:
        array: The array, int32.
        start: The place in it where the leaf begins.
        shape: The shape of the leaf.
        dtype: Its dtype, of 4 bytes.
    """

    array: Any
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any] = _WORD


# In a compiled program.


def whole(tree: Any) -> Any:
    """The tree with each `Part` taken out of its array."""

    def taken(leaf: Any) -> Any:
        if not isinstance(leaf, Part):
            return leaf
        end = leaf.start + math.prod(leaf.shape)
        part = lax.slice(leaf.array, (leaf.start,), (end,)).reshape(leaf.shape)
        return lax.bitcast_convert_type(part, leaf.dtype)

    return jax.tree.map(taken, tree, is_leaf=lambda leaf: isinstance(leaf, Part))


def pack(layout: PackedLayout, leaves: list[jax.Array]) -> tuple[jax.Array, ...]:
    """The words, the bytes, if there are any, and the other leaves."""
    packed: list[jax.Array] = []
    for unit, numbers in layout.packed:
        parts: list[jax.Array] = []
        for leaf in (leaves[n] for n in numbers):
            leaf = leaf.astype(jnp.uint8) if leaf.dtype == jnp.bool_ else leaf
            parts.append(lax.bitcast_convert_type(leaf, unit).reshape(-1))
            parts.append(jnp.zeros(_padding(leaf.size, unit), unit))
        packed.append(jnp.concatenate(parts))
    return *packed, *(leaves[n] for n in layout.alone)


def unpack(layout: PackedLayout, arrays: tuple[jax.Array, ...]) -> list[jax.Array]:
    """The leaves that were packed on the host."""
    rest, leaves = iter(arrays), dict[int, jax.Array]()
    for (_, numbers), whole in zip(layout.packed, rest, strict=False):
        at = 0
        for number in numbers:
            shape, dtype = layout.specs[number]
            count = math.prod(shape)
            part = lax.slice(whole, (at,), (at + count,)).reshape(shape)
            at += count
            boolean = dtype == np.bool_
            leaves[number] = part != 0 if boolean else lax.bitcast_convert_type(part, dtype)
    for number, array in zip(layout.alone, rest, strict=True):
        leaves[number] = array.reshape(layout.specs[number][0])
    return [leaves[number] for number in range(len(leaves))]


# On the host.


def pack_numpy(layout: PackedLayout, leaves: list[np.ndarray[Any, Any]]) -> tuple[Any, ...]:
    """The same for NumPy arrays, one behind the other."""
    packed: list[Any] = [
        np.concatenate([leaves[n].reshape(-1).view(unit) for n in numbers])
        for unit, numbers in layout.packed
    ]
    packed += [leaves[n].reshape(-1) for n in layout.alone]
    return tuple(packed)


def _padding(count: int, unit: np.dtype[Any]) -> int:
    """Return the units of padding behind `count` units, so that the next leaf is aligned."""
    return -count % (_ALIGNED // unit.itemsize)
