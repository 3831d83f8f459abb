"""The store: the rows of a buffer.

The narrow fields of a row lie side by side in one array of words. A read of a row then touches one
stretch of memory, and one gather serves all narrow fields. With four fields and a million rows this
takes half the time of an array a field (`benchmarks/evidence/row_access.py`). The state then has
few arrays, each of which costs time in every call from Python. Wide fields, such as images, have an
array each: packing them would cost more than it saves.

A word is as wide as the widest number in a narrow field, at most 32 bits. Within a row the fields
are sorted by the width of their numbers, the widest first. So little is lost to padding.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from typing_extensions import TypeVar

from fbuf._pytree import pytree
from fbuf.storage import layout as layouts
from fbuf.storage import wide_rows
from fbuf.storage import words as words_of
from fbuf.storage.layout import Field, Layout
from fbuf.xla.filled import zeros
from fbuf.xla.loop import zero_after
from fbuf.xla.platform import by_platform
from fbuf.xla.rows import Part, read_parts, read_rows, taken_apart, write_rows

Item = TypeVar("Item", default=Any)

_PART = 2**12
"""The number of rows to pack at a time, if there are many."""


@pytree
class Storage(Generic[Item]):
    """The rows of a buffer.

    Attributes:
        words: `[capacity, words]`; the narrow fields of each row.
        wide: `[capacity, ...]` each; the wide fields, in the order of the item's leaves, as they
            lie by `fbuf.storage.wide_rows`.
        layout: The leaves of the item; static.
    """

    words: jax.Array
    wide: tuple[jax.Array, ...]
    layout: Layout = dataclasses.field(metadata={"static": True})

    @property
    def item(self) -> Item:
        """One item, of `jax.ShapeDtypeStruct`."""
        return self.layout.item

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """The words, and the arrays of the wide fields."""
        return (self.words, *self.wide)

    @property
    def fields(self) -> tuple[Field, ...]:
        """One row of each array: words, or the numbers of a wide field."""
        words = Field(self.words.shape[-1:], np.dtype(self.words.dtype))
        return (words, *(field for field in self.layout.fields if not field.narrow))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or pickle, also of a version that stored wide rows in their own dtype."""
        self.__dict__.update(state)
        pairs = zip(self.fields[1:], self.wide, strict=True)
        self.__dict__["wide"] = tuple(wide_rows.as_it_lies(*pair) for pair in pairs)

    def read(self, slots: jax.Array) -> Item:
        """Read the rows at int32 slots `[...]`, each in range. Leaves `[..., *shape]`."""
        everything = range(len(self.layout.fields))
        return jax.tree.unflatten(self.layout.tree, self.read_leaves(slots, everything))

    def read_leaves(
        self, slots: jax.Array, leaves: Sequence[int], by_words: bool = False
    ) -> list[jax.Array]:
        """Read some leaves of the rows at slots, by number; no other wide leaf is touched.

        No gradient flows out of a buffer: narrow fields are bits, and have none. `by_words` is that
        of `read_rows`, for wide leaves that are read as they lie.
        """
        layout, flat = self.layout, slots.reshape(-1)
        layout.check_width()
        parts = _parts(layout, self.words.dtype, leaves)
        narrow = read_parts(self.words, flat, parts) if parts else []
        fields = [layout.fields[leaf] for leaf in leaves if not layout.fields[leaf].narrow]
        wide = [
            read_rows(self.wide[at], flat, by_words=by_words and wide_rows.is_whole(field))
            for at, field in zip(wide_of(layout, leaves), fields, strict=True)
        ]
        return _in_order(layout, leaves, narrow, wide, slots.shape)

    def write(self, slots: jax.Array, rows: Item) -> Storage[Item]:
        """Write `[B]` rows to distinct slots; a slot of `capacity` is left out."""
        leaves = list(zip(self.layout.fields, jax.tree.leaves(rows), strict=True))
        narrow = [leaf for field, leaf in leaves if field.narrow]
        wide = [wide_rows.stored(*pair) for pair in leaves if not pair[0].narrow]
        return dataclasses.replace(
            self,
            words=_write_packed(self.words, slots, narrow),
            wide=tuple(
                write_rows(old, slots, new) for old, new in zip(self.wide, wide, strict=True)
            ),
        )

    def copy(self, source: jax.Array, slots: jax.Array) -> Storage[Item]:
        """Copy rows from `source` to `[B]` slots; as `write`."""
        return self.write(slots, self.read(source))

    def write_leaves(self, slots: jax.Array, leaves: Mapping[int, jax.Array]) -> Storage[Item]:
        """Write some leaves by number, as `write`; the other leaves stay."""
        words, wide = self.words, list(self.wide)
        narrow: dict[int, jax.Array] = {}
        for leaf, rows in leaves.items():
            position, field = self.layout.position(leaf), self.layout.fields[leaf]
            if field.narrow:
                narrow[position] = rows
            else:
                new = wide_rows.stored(field, rows)
                wide[position] = write_rows(wide[position], slots, new)
        if narrow:
            old = read_rows(words, jnp.minimum(slots, words.shape[0] - 1))
            every = range(len(self.layout.fields))
            rows = taken_apart(old, _parts(self.layout, words.dtype, every))
            rows = [narrow.get(number, leaf) for number, leaf in enumerate(rows)]
            new = _packed(rows, words.dtype)
            words = write_rows(words, slots, new)
        return dataclasses.replace(self, words=words, wide=tuple(wide))


def empty(item: Item, capacity: int) -> Storage[Item]:
    """Return a store of zeros, for items of these shapes and dtypes."""
    layout = layouts.of(item)
    layout.check_width()
    return jax.tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype), spec(layout, capacity))


def spec(layout: Layout, capacity: int) -> Storage[Any]:
    """Return the shapes and dtypes of a store's arrays, as `jax.ShapeDtypeStruct`."""
    array: Any = jax.ShapeDtypeStruct
    narrow = [field for field in layout.fields if field.narrow]
    word = words_of.UNSIGNED[max((min(field.dtype.itemsize, 4) for field in narrow), default=1)]
    row = [array((1, *field.shape), field.dtype) for field in narrow]
    words = jax.eval_shape(lambda *leaves: _packed(leaves, word), *row).shape[1]
    wide: Any = [wide_rows.spec(field, capacity) for field in layout.fields if not field.narrow]
    return Storage(words=array((capacity, words), word), wide=tuple(wide), layout=layout)


def columns(layout: Layout, word: Any, leaves: Sequence[int]) -> tuple[int, int]:
    """Return the range of words that hold some leaves: the first, and the end."""
    places = _places(layout.fields, np.dtype(word))
    wanted = [places[layout.position(leaf)] for leaf in leaves if layout.fields[leaf].narrow]
    first = min((place.first for place in wanted), default=0)
    return first, max((place.last for place in wanted), default=0)


def wide_of(layout: Layout, leaves: Sequence[int]) -> list[int]:
    """Find the wide arrays that hold some leaves, in the order of the leaves."""
    return [layout.position(leaf) for leaf in leaves if not layout.fields[leaf].narrow]


def unpacked(
    layout: Layout,
    leaves: Sequence[int],
    words: jax.Array,
    wide: Sequence[jax.Array],
    shape: tuple[int, ...],
) -> list[jax.Array]:
    """Return leaves of rows, by number.

    Args:
        layout: The layout of the item.
        leaves: The numbers of the leaves.
        words: `[n, last - first]`; the words of the rows in the range of `columns`.
        wide: `[n, ...]` each; the rows of the arrays of `wide_of`, as they lie there.
        shape: The shape of the `n` rows.
    """
    layout.check_width()
    narrow = taken_apart(words, _parts(layout, words.dtype, leaves))
    return _in_order(layout, leaves, narrow, wide, shape)


def _parts(layout: Layout, word: Any, leaves: Sequence[int]) -> list[Part]:
    """Return the words of each narrow leaf, by number, and how they become its rows."""
    places = _places(layout.fields, np.dtype(word))
    pairs = [
        (layout.fields[leaf], places[layout.position(leaf)])
        for leaf in leaves
        if layout.fields[leaf].narrow
    ]
    return [
        Part(place.first, place.last, functools.partial(_unpacked, field, place))
        for field, place in pairs
    ]


def _in_order(
    layout: Layout,
    leaves: Sequence[int],
    narrow: Sequence[jax.Array],
    wide: Sequence[jax.Array],
    shape: tuple[int, ...],
) -> list[jax.Array]:
    """Return leaves of rows in order, from those of narrow fields and of wide ones as they lie."""
    rows, others, found = iter(narrow), iter(wide), list[jax.Array]()
    for leaf in leaves:
        field = layout.fields[leaf]
        read = next(rows) if field.narrow else wide_rows.read(field, next(others))
        found.append(lax.stop_gradient(read.reshape(*shape, *field.shape)))
    return found


def bytes_of(layout: Layout, word: Any) -> list[int]:
    """Return the first byte of each narrow leaf in the words of a row, in order of the leaves."""
    return [place.byte for place in _places(layout.fields, np.dtype(word))]


def _write_packed(words: jax.Array, slots: jax.Array, narrow: Sequence[jax.Array]) -> jax.Array:
    """Write the narrow fields of `[B]` rows, `[B, ...]` each; as `Storage.write`.

    On CPU many rows are packed a part at a time. Otherwise their words take as much memory as the
    rows.
    """

    def at_once(words: jax.Array, slots: jax.Array, narrow: Sequence[jax.Array]) -> jax.Array:
        return write_rows(words, slots, _packed(narrow, words.dtype))

    count = slots.shape[0]
    if count < 2 * _PART or not narrow:
        return at_once(words, slots, narrow)

    def in_parts(words: jax.Array, slots: jax.Array, narrow: Sequence[jax.Array]) -> jax.Array:
        def body(turn: jax.Array, words: jax.Array) -> jax.Array:
            # The last slice would end behind the rows, so it begins earlier. Some rows are written
            # twice, to the same slots.
            part = lambda array: lax.dynamic_slice_in_dim(
                array, turn * _PART, _PART, allow_negative_indices=False
            )
            return at_once(words, part(slots), [part(leaf) for leaf in narrow])

        return lax.fori_loop(zero_after(slots), -(-count // _PART), body, words)

    return by_platform(words, slots, list(narrow), cpu=in_parts, default=at_once)


def _packed(leaves: Sequence[jax.Array], word: Any) -> jax.Array:
    """Pack leaves `[B, ...]` into words `[B, words]`."""
    batch = leaves[0].shape[0] if leaves else 0
    columns: list[jax.Array] = []
    for width in (8, 4, 2, 1):
        numbers = [words_of.bits(leaf, word) for leaf in leaves if leaf.dtype.itemsize == width]
        if numbers:
            columns.append(words_of.widened(jnp.concatenate(numbers, axis=1), word))
    return jnp.concatenate(columns, axis=1) if columns else jnp.zeros((batch, 0), word)


class _Place(NamedTuple):
    """The place of a narrow field: its first word, the end of its words, its first byte."""

    first: int
    last: int
    byte: int


def _places(fields: Sequence[Field], word: np.dtype[Any]) -> list[_Place]:
    """Return the places of the narrow fields, in the layout of `_packed`."""
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


def _unpacked(field: Field, place: _Place, words: jax.Array) -> jax.Array:
    """Return a narrow leaf `[B, ...]` from its words of rows."""
    size = words.dtype.itemsize
    bits = words_of.narrowed(words, min(field.dtype.itemsize, size))
    start = (place.byte - place.first * size) // bits.dtype.itemsize
    count = field.size * field.dtype.itemsize // bits.dtype.itemsize
    return words_of.numbers(bits[:, start : start + count], field.shape, field.dtype)
