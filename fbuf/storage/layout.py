"""The layout: the leaves of an item, and their names."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checks import values as check

NARROW = 1024
"""The most bytes of a narrow field in a row; see `benchmarks/evidence/row_access.py`."""

_NARROW_SMALL = 64
"""The same limit for numbers below 32 bits, which are packed several to a word."""

Fields = tuple[str, ...] | None
"""The names of the fields to read; None is the whole item."""

_REMEDIES = {
    "next_observation": 'make the buffer with fbuf.init(..., next_of="observation"), the name of '
    "the observation, or store the next one in a field of that name"
}
"""The remedy for a wrong field name, by argument; other arguments need an existing name."""

_SEVERAL = ("fields", "offsets")
"""The arguments that hold several names."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One leaf of the item: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """Shape and dtype, as JAX takes them."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @functools.cached_property
    def narrow(self) -> bool:
        """Whether the field is packed.

        Complex numbers and numbers below a byte are never packed.
        """
        if self.size * self.dtype.itemsize > (
            NARROW if self.dtype.itemsize >= 4 else _NARROW_SMALL
        ):
            return False
        if self.dtype == jnp.bool_:
            return True
        if jnp.issubdtype(self.dtype, jnp.integer):
            return jnp.iinfo(self.dtype).bits >= 8
        return jnp.issubdtype(self.dtype, jnp.floating) and jnp.finfo(self.dtype).bits >= 8


@dataclasses.dataclass(frozen=True)
class Layout:
    """The form of an item. A leaf is called by its number, in the order of the item's leaves.

    Attributes:
        fields: The leaves.
        tree: The tree of the leaves.
    """

    fields: tuple[Field, ...]
    tree: Any

    @property
    def item(self) -> Any:
        """One item, of `jax.ShapeDtypeStruct`."""
        return jax.tree.unflatten(self.tree, [field.spec for field in self.fields])

    def find(self, function: str, argument: str, name: str) -> Any:
        """Find a field by name: its tree with the numbers of its leaves.

        Args:
            function: The caller, for the message if there is no such field.
            argument: The argument with the name, for the message.
            name: Keys or attributes, from the outside inwards, with dots between them.
        """
        check.name(function, argument, name)
        field: Any = jax.tree.unflatten(self.tree, list(map(_Leaf, range(len(self.fields)))))
        for part in name.split("."):
            try:
                field = _child(field, part)
            except KeyError:
                raise ValueError(
                    f"fbuf.{function}: {argument} names {name!r}, but the items of this buffer "
                    f"have no such field; they have {self.in_words}; "
                    + self._remedy(argument, name)
                ) from None
        return jax.tree.map(lambda leaf: leaf.number, field)

    @property
    def in_words(self) -> str:
        """The names, dtypes and shapes of the leaves: `observation: float32[4], done: bool[]`."""
        named = zip(self._names(), self.fields, strict=True)
        return ", ".join(
            f"{name}: {field.dtype}{list(field.shape)}".removeprefix(": ") for name, field in named
        )

    def _names(self) -> list[str]:
        """Return the names of the leaves."""
        paths = [path for path, _ in jax.tree.leaves_with_path(self.item)]
        return [jax.tree_util.keystr(path, simple=True, separator=".") for path in paths]

    def _remedy(self, argument: str, name: str) -> str:
        """Return the remedy for a wrong field name: a nested field of that name, if one exists."""
        parts = [leaf.split(".") for leaf in self._names()]
        inside = {".".join(part[:depth]) for part in parts for depth in range(2, len(part) + 1)}
        likely = [
            field
            for field in sorted(inside, key=lambda field: (field.count("."), field))
            if field.endswith(f".{name}") or field.replace(".", "_") == name
        ]
        if not likely:
            return _REMEDIES.get(argument, f"give {argument} the name of one of their fields")
        one = argument.isidentifier() and argument not in _SEVERAL
        use = f'{argument}="{likely[0]}"' if one else f'"{likely[0]}" there'
        return f"the item has {likely[0]}: give {use}"

    def numbers(self, function: str, fields: Fields) -> Any:
        """Return the item as a tree of the numbers of its leaves, or a dict of some fields."""
        if fields is None:
            return jax.tree.unflatten(self.tree, list(range(len(self.fields))))
        return {name: self.find(function, "fields", name) for name in fields}

    def check_width(self) -> None:
        """Refuse to read or write leaves of 64 bits where JAX has no such numbers.

        JAX would truncate such numbers, or read each as two.
        """
        for (path, leaf), field in zip(
            jax.tree.leaves_with_path(self.item), self.fields, strict=True
        ):
            del leaf
            if (
                field.dtype.itemsize >= 8
                and jax.dtypes.canonicalize_dtype(field.dtype) != field.dtype
            ):
                raise TypeError(
                    f"fbuf: item{jax.tree_util.keystr(path)} of this buffer is {field.dtype}, and "
                    "JAX's 64-bit types are off here; switch them on as they were when the buffer "
                    "was made (jax_enable_x64, or jax.enable_x64(True) around the call)"
                )

    def position(self, leaf: int) -> int:
        """Return the position of a leaf among the narrow leaves, or among the wide ones."""
        narrow = self.fields[leaf].narrow
        return sum(other.narrow == narrow for other in self.fields[:leaf])


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """A placeholder for a leaf of an item during the search for a field."""

    number: int


def _child(tree: Any, part: str) -> Any:
    """Return a field of a tree by one part of its name.

    Only JAX's children of the tree are fields; no other attribute is a field.
    """
    if isinstance(tree, Mapping):
        return tree[part]
    children = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda node: node is not tree)[0]
    for path, child in children:
        by_number = isinstance(path[0], jax.tree_util.SequenceKey) if path else False
        name = str(path[0].idx) if by_number else part
        if path and name == part and (by_number or getattr(tree, part, None) is child):
            return child
    raise KeyError(part)


def of(item: Any) -> Layout:
    """Return the layout of items of these shapes and dtypes."""
    leaves, tree = jax.tree.flatten(item)
    fields = tuple(Field(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    return Layout(fields, tree)


def leaves_of(layout: Layout, leaves: Sequence[int]) -> list[jax.ShapeDtypeStruct]:
    """Return shape and dtype of some leaves."""
    return [layout.fields[leaf].spec for leaf in leaves]
