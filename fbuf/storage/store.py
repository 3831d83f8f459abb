"""The store: where the rows lie.

The narrow fields of a row lie side by side in one array of words. To read a row at random is then
to read one stretch of memory, and one gather serves all of them: with four fields and a million
rows that takes half the time of an array a field (`benchmarks/ablations/row_access.py`). It also
leaves a state with few arrays, each of which costs time in every call from Python. Wide fields,
such as images, have an array each: packing them would cost more than it saves.

A word is as wide as the widest number in a narrow field, at most 32 bits. Within a row the fields
lie by the width of their numbers, the widest first, so that little is lost to padding.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.checks import values as check
from fbuf.storage import words as words_of
from fbuf.xla.rows import read_rows, write_rows

Item = TypeVar("Item")

NARROW = 1024
"""The most bytes of a narrow field in a row; see `benchmarks/ablations/row_access.py`."""

_NARROW_SMALL = 64
"""The same for numbers of less than 32 bits, which have to be put together into words."""


@dataclasses.dataclass(frozen=True)
class Field:
    """One leaf of the item: its shape and dtype."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def size(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def narrow(self) -> bool:
        """Whether it is packed. Numbers of less than a byte, and complex ones, never are."""
        if self.size * self.dtype.itemsize > (
            NARROW if self.dtype.itemsize >= 4 else _NARROW_SMALL
        ):
            return False
        if self.dtype == jnp.bool_:
            return True
        if jnp.issubdtype(self.dtype, jnp.integer):
            return jnp.iinfo(self.dtype).bits >= 8
        return jnp.issubdtype(self.dtype, jnp.floating) and jnp.finfo(self.dtype).bits >= 8


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Storage(Generic[Item]):
    """The rows of a buffer.

    Attributes:
        words: `[capacity, words]`; the narrow fields of each row.
        wide: `[capacity, ...]` each; the wide fields, in the order of the item's leaves.
        fields: What the leaves of the item are; static.
        tree: How they make an item; static.
    """

    words: jax.Array
    wide: tuple[jax.Array, ...]
    fields: tuple[Field, ...] = dataclasses.field(metadata={"static": True})
    tree: Any = dataclasses.field(metadata={"static": True})

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return jax.tree.unflatten(
            self.tree, [jax.ShapeDtypeStruct(field.shape, field.dtype) for field in self.fields]
        )

    def read(self, slots: jax.Array) -> Item:
        """The rows at int32 slots `[...]`, each in range. Leaves `[..., *shape]`."""
        everything = range(len(self.fields))
        return jax.tree.unflatten(self.tree, self.read_leaves(slots, everything))

    def read_leaves(self, slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
        """Some leaves of the rows at slots, by number; no other wide leaf is touched.

        No gradient flows out of a buffer: for narrow fields there is none, as they are bits.
        """
        flat = slots.reshape(-1)
        places = _places(self.fields, self.words.dtype)
        wanted = [places[self._position(leaf)] for leaf in leaves if self.fields[leaf].narrow]
        first = min((place.first for place in wanted), default=0)
        last = max((place.last for place in wanted), default=0)
        words = read_rows(self.words, flat, (first, last))
        found: list[jax.Array] = []
        for leaf in leaves:
            field, position = self.fields[leaf], self._position(leaf)
            if field.narrow:
                rows = _unpacked(field, places[position], words, first)
            else:
                rows = read_rows(self.wide[position], flat)
            found.append(lax.stop_gradient(rows.reshape(*slots.shape, *field.shape)))
        return found

    def write(self, slots: jax.Array, rows: Item) -> Storage[Item]:
        """The store with `[B]` rows written to distinct slots; a slot of `capacity` is left out."""
        leaves = list(zip(self.fields, jax.tree.leaves(rows), strict=True))
        words = _packed([leaf for field, leaf in leaves if field.narrow], self.words.dtype)
        wide = [leaf for field, leaf in leaves if not field.narrow]
        return dataclasses.replace(
            self,
            words=write_rows(self.words, slots, words),
            wide=tuple(
                write_rows(old, slots, new) for old, new in zip(self.wide, wide, strict=True)
            ),
        )

    def write_leaves(self, slots: jax.Array, leaves: Mapping[int, jax.Array]) -> Storage[Item]:
        """As `write`, for some leaves by number; the others stay as they are."""
        words, wide = self.words, list(self.wide)
        narrow: dict[int, jax.Array] = {}
        for leaf, rows in leaves.items():
            position = self._position(leaf)
            if self.fields[leaf].narrow:
                narrow[position] = rows
            else:
                wide[position] = write_rows(wide[position], slots, rows)
        if narrow:
            old = read_rows(words, jnp.minimum(slots, words.shape[0] - 1))
            fields = [field for field in self.fields if field.narrow]
            places = _places(self.fields, words.dtype)
            rows = [_unpacked(*pair, old) for pair in zip(fields, places, strict=True)]
            rows = [narrow.get(number, leaf) for number, leaf in enumerate(rows)]
            new = _packed(rows, words.dtype)
            words = write_rows(words, slots, new)
        return dataclasses.replace(self, words=words, wide=tuple(wide))

    def find(self, function: str, argument: str, name: str) -> Any:
        """A field by name, as its tree with the numbers of its leaves.

        Args:
            function: Who asks, and `argument` with what, for the message if there is none.
            argument: See `function`.
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
                    f"have no such field; they are {self.item}"
                ) from None
        return jax.tree.map(lambda leaf: leaf.number, field)

    def _position(self, leaf: int) -> int:
        """Where a leaf lies among the narrow or among the wide ones."""
        narrow = self.fields[leaf].narrow
        return sum(other.narrow == narrow for other in self.fields[:leaf])


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """Stands for a leaf of an item while a field is looked for."""

    number: int


def _child(tree: Any, part: str) -> Any:
    """A field of a tree by one part of its name.

    Only what JAX takes for a child of the tree is a field: no other attribute that it may have.
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


def empty(item: Item, capacity: int) -> Storage[Item]:
    """A store of zeros, for items of these shapes and dtypes."""
    leaves, tree = jax.tree.flatten(item)
    fields = tuple(Field(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    narrow = [field for field in fields if field.narrow]
    word = words_of.UNSIGNED[max((min(field.dtype.itemsize, 4) for field in narrow), default=1)]
    row = [jax.ShapeDtypeStruct((1, *field.shape), field.dtype) for field in narrow]
    words = jax.eval_shape(lambda *leaves: _packed(leaves, word), *row).shape[1]
    return Storage(
        words=jnp.zeros((capacity, words), word),
        wide=tuple(
            jnp.zeros((capacity, *field.shape), field.dtype) for field in fields if not field.narrow
        ),
        fields=fields,
        tree=tree,
    )


def _packed(leaves: Sequence[jax.Array], word: Any) -> jax.Array:
    """Leaves `[B, ...]` as words `[B, words]`."""
    batch = leaves[0].shape[0] if leaves else 0
    columns: list[jax.Array] = []
    for width in (8, 4, 2, 1):
        numbers = [words_of.bits(leaf, word) for leaf in leaves if leaf.dtype.itemsize == width]
        if numbers:
            columns.append(words_of.widened(jnp.concatenate(numbers, axis=1), word))
    return jnp.concatenate(columns, axis=1) if columns else jnp.zeros((batch, 0), word)


class _Place(NamedTuple):
    """Where a narrow field lies: its first word, the one behind its last, and its first byte."""

    first: int
    last: int
    byte: int


def _places(fields: Sequence[Field], word: np.dtype[Any]) -> list[_Place]:
    """Where the narrow fields lie, in their order; as `_packed` lays them."""
    narrow = [field for field in fields if field.narrow]
    places: dict[int, _Place] = {}
    byte = 0
    for width in (8, 4, 2, 1):
        for at, field in enumerate(narrow):
            if field.dtype.itemsize == width:
                end = byte + field.size * width
                places[at] = _Place(byte // word.itemsize, -(-end // word.itemsize), byte)
                byte = end
        byte = -(-byte // word.itemsize) * word.itemsize
    return [places[at] for at in range(len(narrow))]


def _unpacked(field: Field, place: _Place, words: jax.Array, first: int = 0) -> jax.Array:
    """A narrow leaf `[B, ...]`, from words of the rows, `[B, words]`; these begin at `first`."""
    size = words.dtype.itemsize
    bits = words_of.narrowed(
        words[:, place.first - first : place.last - first], min(field.dtype.itemsize, size)
    )
    start = (place.byte - place.first * size) // bits.dtype.itemsize
    count = field.size * field.dtype.itemsize // bits.dtype.itemsize
    return words_of.numbers(bits[:, start : start + count], field.shape, field.dtype)
