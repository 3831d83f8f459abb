"""The store: where the rows lie.

The narrow fields of a row lie side by side in one array of words. To read a row at random is then
to read one stretch of memory, and one gather serves all of them: with four fields and a million
rows that takes half the time of an array a field (`benchmarks/row_access.py`). It also leaves a
state with few arrays, each of which costs time whenever a function is called from Python. Wide
fields, such as images, have an array each: packing them would cost more than it saves.

A word is as wide as the widest number in a narrow field, at most 32 bits. Within a row the fields
lie by the width of their numbers, the widest first, so that little is lost to padding.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf import _rows

Item = TypeVar("Item")

NARROW = 1024
"""The most bytes of a narrow field in a row; see `benchmarks/row_access.py`."""

_NARROW_SMALL = 64
"""The same for numbers of less than 32 bits, which have to be put together into words."""

_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}


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

    def rows(self) -> Item:
        """All rows as the item's tree, leaves `[capacity, ...]`; for looking at, as it copies."""
        return _joined(self, _unpacked(self.fields, self.words), self.wide)


def empty(item: Item, capacity: int) -> Storage[Item]:
    """A store of zeros, for items of these shapes and dtypes."""
    leaves, tree = jax.tree.flatten(item)
    fields = tuple(Field(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in leaves)
    narrow = [field for field in fields if field.narrow]
    word = _WORDS[max((min(field.dtype.itemsize, 4) for field in narrow), default=1)]
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


def read(storage: Storage[Item], slots: jax.Array) -> Item:
    """The rows at int32 slots `[...]`, each of which must be in range. Leaves `[..., *shape]`."""
    everything = range(len(storage.fields))
    return jax.tree.unflatten(storage.tree, read_leaves(storage, slots, everything))


def read_leaves(storage: Storage[Any], slots: jax.Array, leaves: Sequence[int]) -> list[jax.Array]:
    """Some leaves of the rows at slots, by number: as `read`, without touching other wide ones."""
    flat = slots.reshape(-1)
    narrow: list[jax.Array] = []
    if any(storage.fields[leaf].narrow for leaf in leaves):
        narrow = _unpacked(storage.fields, _rows.read(storage.words, flat))
    found: list[jax.Array] = []
    for leaf in leaves:
        field = storage.fields[leaf]
        before = sum(other.narrow == field.narrow for other in storage.fields[:leaf])
        rows = narrow[before] if field.narrow else _rows.read(storage.wide[before], flat)
        found.append(rows.reshape(*slots.shape, *field.shape))
    return found


def write(storage: Storage[Item], slots: jax.Array, rows: Item) -> Storage[Item]:
    """The store with `[B]` rows written to distinct slots; a slot of `capacity` is left out."""
    leaves = list(zip(storage.fields, jax.tree.leaves(rows), strict=True))
    words = _packed([leaf for field, leaf in leaves if field.narrow], storage.words.dtype)
    wide = [leaf for field, leaf in leaves if not field.narrow]
    return dataclasses.replace(
        storage,
        words=_rows.write(storage.words, slots, words),
        wide=tuple(
            _rows.write(old, slots, new) for old, new in zip(storage.wide, wide, strict=True)
        ),
    )


def write_leaves(
    storage: Storage[Item], slots: jax.Array, leaves: Mapping[int, jax.Array]
) -> Storage[Item]:
    """As `write`, for some leaves by number; the others stay as they are."""
    words, wide = storage.words, list(storage.wide)
    narrow: dict[int, jax.Array] = {}
    for leaf, rows in leaves.items():
        field = storage.fields[leaf]
        before = sum(other.narrow == field.narrow for other in storage.fields[:leaf])
        if field.narrow:
            narrow[before] = rows
        else:
            wide[before] = _rows.write(wide[before], slots, rows)
    if narrow:
        old = _rows.read(words, jnp.minimum(slots, words.shape[0] - 1))
        fields = enumerate(_unpacked(storage.fields, old))
        new = _packed([narrow.get(number, rows) for number, rows in fields], words.dtype)
        words = _rows.write(words, slots, new)
    return dataclasses.replace(storage, words=words, wide=tuple(wide))


def find(function: str, argument: str, storage: Storage[Any], name: str) -> Any:
    """A field by name, as its tree with the numbers of its leaves.

    Args:
        function: Who asks, and `argument` with what, for the message if there is no such field.
        argument: See `function`.
        storage: The rows.
        name: Keys or attributes, from the outside inwards, with dots between them.
    """
    field: Any = jax.tree.unflatten(storage.tree, list(range(len(storage.fields))))
    for part in name.split("."):
        if isinstance(field, Mapping) and part in field:
            field = field[part]
        elif not isinstance(field, Mapping) and hasattr(field, part):
            field = getattr(field, part)
        else:
            raise ValueError(
                f"fbuf.{function}: {argument} names {name!r}, which the items of this buffer lack; "
                f"they are {storage.item}. Name a field they have, or store one"
            )
    return field


def _joined(storage: Storage[Item], narrow: Sequence[Any], wide: Sequence[Any]) -> Item:
    """The item's tree, from its narrow and its wide leaves."""
    narrow_leaves, wide_leaves = iter(narrow), iter(wide)
    return jax.tree.unflatten(
        storage.tree,
        [next(narrow_leaves if field.narrow else wide_leaves) for field in storage.fields],
    )


def _packed(leaves: Sequence[jax.Array], word: Any) -> jax.Array:
    """Leaves `[B, ...]` as words `[B, words]`."""
    batch = leaves[0].shape[0] if leaves else 0
    columns: list[jax.Array] = []
    for width in (8, 4, 2, 1):
        numbers = [_bits(leaf, word) for leaf in leaves if leaf.dtype.itemsize == width]
        if numbers:
            columns.append(_widened(jnp.concatenate(numbers, axis=1), word))
    return jnp.concatenate(columns, axis=1) if columns else jnp.zeros((batch, 0), word)


def _unpacked(fields: Sequence[Field], words: jax.Array) -> list[jax.Array]:
    """The narrow leaves `[B, ...]`, in the order of the fields, from words `[B, words]`."""
    narrow = [field for field in fields if field.narrow]
    found: dict[int, jax.Array] = {}
    done = 0
    for width in (8, 4, 2, 1):
        members = [at for at, field in enumerate(narrow) if field.dtype.itemsize == width]
        sizes = [narrow[at].size * width for at in members]
        columns = -(-sum(sizes) // words.dtype.itemsize)
        part = _narrowed(words[:, done : done + columns], min(width, words.dtype.itemsize))
        ends = [end // part.dtype.itemsize for end in itertools.accumulate(sizes)]
        for at, start, end in zip(members, [0, *ends], ends, strict=False):
            found[at] = _numbers(part[:, start:end], narrow[at])
        done += columns
    return [found[at] for at in range(len(narrow))]


def _bits(leaf: jax.Array, word: Any) -> jax.Array:
    """The numbers `[B, ...]` as unsigned integers of their width, or as two words: `[B, n]`."""
    if leaf.dtype == jnp.bool_:
        leaf = leaf.astype(jnp.uint8)
    unsigned = _WORDS.get(leaf.dtype.itemsize, word)
    return lax.bitcast_convert_type(leaf, unsigned).reshape(leaf.shape[0], -1)


def _numbers(bits: jax.Array, field: Field) -> jax.Array:
    """What `_bits` was given."""
    shape = (bits.shape[0], *field.shape)
    if field.dtype == jnp.bool_:
        return bits.reshape(shape) != 0
    if field.dtype.itemsize > bits.dtype.itemsize:
        bits = bits.reshape(*shape, field.dtype.itemsize // bits.dtype.itemsize)
        return lax.bitcast_convert_type(bits, field.dtype)
    return lax.bitcast_convert_type(bits.reshape(shape), field.dtype)


def _widened(bits: jax.Array, word: Any) -> jax.Array:
    """Small integers `[B, n]`, several to a word."""
    ratio = np.dtype(word).itemsize // bits.dtype.itemsize
    if ratio == 1:
        return bits
    padded = jnp.pad(bits, ((0, 0), (0, -bits.shape[1] % ratio)))
    return lax.bitcast_convert_type(padded.reshape(bits.shape[0], -1, ratio), word)


def _narrowed(words: jax.Array, width: int) -> jax.Array:
    """What `_widened` was given, and the padding behind it."""
    if words.dtype.itemsize == width:
        return words
    return lax.bitcast_convert_type(words, _WORDS[width]).reshape(words.shape[0], -1)
