"""Blocks of any length, made into chunks of one size: one program adds them all."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fbuf_adapters.datasets._buffers import Buffer
from fbuf_adapters.datasets._checks import checked_block
from fbuf_adapters.datasets._errors import DatasetError
from fbuf_adapters.datasets._fields import NEXT, Array, Casts, named, native, refuse_foreign, within
from fbuf_adapters.datasets._source import Block, RowFlags, Source

_MOST_ROWS = 2**14
_FEWEST_ROWS = 2**8
_MOST_BYTES = 2**22  # larger chunks of images were slower; about ten are in memory


def rows_at_once(specs: Iterable[Any], rows: int) -> int:
    """Return the number of rows to move at a time: one of a few sizes, smaller for wide rows.

    Args:
        specs: Shape and dtype of each leaf of a row.
        rows: The number of rows.
    """
    width = sum(math.prod(spec.shape) * np.dtype(spec.dtype).itemsize for spec in specs)
    most = max(min(_MOST_ROWS, _MOST_BYTES // max(width, 1)), 1)
    return min(most, max(_FEWEST_ROWS, 1 << (max(rows, 1) - 1).bit_length()))


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows to add, padded.

    Attributes:
        items: The item's tree, leaves `[size, ...]`.
        next_observation: A tree like the field `next_of`; None for buffers without it.
        flags: The flags of the rows, bool `[size]`.
        rows: The number of rows; the rest is padding.
    """

    items: Any
    next_observation: Any
    flags: RowFlags
    rows: int


def chunks(
    source: Source,
    blocks: Iterable[Block],
    buffer: Buffer,
    stored: Mapping[str, jax.ShapeDtypeStruct],
    size: int,
    casts: Casts,
) -> Iterator[Chunk]:
    """Yield the rows of all blocks, in the dtypes of the buffer.

    All chunks share their memory: use each chunk before the next one is made.

    Args:
        source: The data set.
        blocks: Its rows.
        buffer: The buffer for the chunks.
        stored: The leaves of a row, by name, in the order of the item's.
        size: The rows of a chunk.
        casts: The fields that may be cast.

    Raises:
        DatasetError: If the blocks are not as the source says, or if a number does not fit.
    """
    room = lambda specs: {n: np.zeros((size, *s.shape), s.dtype) for n, s in specs.items()}
    tree_of = lambda like, leaves: jax.tree.unflatten(jax.tree.structure(like), leaves.values())
    fields, kept, next_observation = room(stored), dict[str, Array](), None
    items = tree_of(buffer.item, fields)
    if buffer.next_of is not None:
        kept = room(within(stored, buffer.next_of))
        next_observation = tree_of(buffer.index.next_obs.rows.item, kept)
    flags = RowFlags(*np.zeros((4, size), np.bool_))
    shapes = {name: tuple(leaf.shape) for name, leaf in named(source.item).items()}
    targets = [  # a field of next observations may come from next values
        (leaf, name if name in shapes else f"observation{name.removeprefix(NEXT)}", name in shapes)
        for name, leaf in fields.items()
    ]
    targets += [(leaf, name, False) for name, leaf in kept.items()]
    filled = first = episode = 0
    counted = dict.fromkeys(("rows", "ends", "unknown", "stands_in"), 0)

    def place(ended: Array, at: int, row: int) -> str:
        """Return the place of a row as text."""
        number = episode + int(ended[: at + row].sum())
        return f"episode {number}, row {first + at + row} of the data set"

    for given in blocks:
        block = checked_block(source.where, given)
        ended, at = block.flags.ended, 0
        rows, count = len(ended), int(ended.sum())
        episode = episode if block.episode is None else block.episode
        here = [flag.sum() for flag in block.flags[2:]]
        for what, more in zip(counted, (rows, count, *map(int, here)), strict=True):
            counted[what] += more
            if counted[what] > (said := getattr(source, what)):
                raise DatasetError(
                    f"{source.where}: {what} of the source is {said}, and its blocks have more"
                )
        arrays = [
            _array(f"{source.where}: {place(ended, 0, 0)}", block, name, of_row, shapes[name])
            for _, name, of_row in targets
        ]
        while at < rows:
            part = slice(at, min(at + size - filled, rows))
            to = slice(filled, filled + part.stop - at)
            for (leaf, name, _), array in zip(targets, arrays, strict=True):
                # Cast next observations by the rule of their own field.
                cast = casts.cast(
                    array[part], leaf.dtype, name, functools.partial(place, ended, at)
                )
                leaf[to] = cast.reshape(leaf[to].shape)  # [B, 1] may go where one number does
            for flag, new in zip(flags, block.flags, strict=True):
                flag[to] = new[part]
            at, filled = part.stop, to.stop
            if filled == size:
                yield Chunk(items, next_observation, flags, size)
                filled = 0
        first, episode = first + rows, episode + count
    if first < source.rows:
        raise DatasetError(
            f"{source.where}: rows of the source is {source.rows}, and its blocks have {first}"
        )
    if filled:
        for flag in flags:
            flag[filled:] = False
        yield Chunk(items, next_observation, flags, filled)


def _array(at: str, block: Block, name: str, of_row: bool, shape: tuple[int, ...]) -> Array:
    """Return an array of a block, a field or a next value; refuse another shape."""
    called, leaves = ("fields", block.fields) if of_row else ("following", block.following)
    wanted = (len(block.flags.ended), *shape)
    got = np.shape(leaves[name]) if name in leaves else "none"
    if got != wanted:
        raise DatasetError(
            f"{at}: {called} of the block must have {name!r} as an array {wanted}, got {got}"
        )
    refuse_foreign(at, f"{called}[{name!r}]", leaves[name])
    return native(leaves[name])
