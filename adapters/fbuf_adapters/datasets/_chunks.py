"""Blocks of any length, made into chunks of one size: one program adds them all."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fbuf_adapters.datasets._blocks import Block
from fbuf_adapters.datasets._buffers import Buffer
from fbuf_adapters.datasets._fields import NEXT, Array, Casts, under


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows to add, padded.

    Attributes:
        items: The item's tree, leaves `[size, ...]`.
        next_observation: A tree like the field `next_of`; None for buffers without it.
        terminated: bool `[size]`.
        truncated: bool `[size]`.
        unknown: bool `[size]`; truncated rows whose next observation nobody knows.
        stands_in: bool `[size]`; terminated rows for whose next observation another one stands in.
        rows: How many rows there are; the others are padding.
    """

    items: Any
    next_observation: Any
    terminated: Array
    truncated: Array
    unknown: Array
    stands_in: Array
    rows: int


def chunks(
    blocks: Iterable[Block],
    buffer: Buffer,
    stored: Mapping[str, jax.ShapeDtypeStruct],
    of: str | None,
    size: int,
    casts: Casts,
) -> Iterator[Chunk]:
    """Yield the rows of all blocks, in the dtypes of the buffer.

    All chunks share their memory: use each chunk before the next one is made.

    Args:
        blocks: The rows.
        buffer: The buffer that the chunks are added to.
        stored: The leaves of a row, by name, in the order of the item's.
        of: The field whose next value the blocks have.
        size: The rows of a chunk.
        casts: The fields that may be cast.
    """
    room = lambda specs: {n: np.zeros((size, *s.shape), s.dtype) for n, s in specs.items()}
    tree_of = lambda like, leaves: jax.tree.unflatten(jax.tree.structure(like), leaves.values())
    fields, of_next, next_observation = room(stored), dict[str, Array](), None
    items = tree_of(buffer.item, fields)
    if buffer.next_of is not None:
        of_next = room(under(stored, buffer.next_of))
        next_observation = tree_of(buffer.index.next_obs.rows.item, of_next)
    flags = np.zeros((4, size), np.bool_)
    terminated, truncated, unknown, stands_in = flags
    given = items, next_observation, terminated, truncated, unknown, stands_in
    observation, filled = of or NEXT, 0

    def put(block: Block, at: int, count: int) -> None:
        """Copy rows of a block behind the rows that are there."""
        part, to = slice(at, at + count), slice(filled, filled + count)
        # Cast next observations by the rule of their own field.
        following = {observation + suffix: leaf for suffix, leaf in block.following.items()}
        sources = [
            (leaf, block.fields, name)
            if name in block.fields
            else (leaf, following, observation + name.removeprefix(NEXT))
            for name, leaf in fields.items()
        ]
        sources += [(leaf, following, observation + name) for name, leaf in of_next.items()]
        for leaf, given, name in sources:
            place = lambda row: block.place(at + row)
            cast = casts.cast(given[name][part], leaf.dtype, name, place)
            leaf[to] = cast.reshape(leaf[to].shape)  # [B, 1] may go where one number does
        marks = block.terminated, block.truncated, block.unknown, block.stands_in
        flags[:, to] = [mark[part] for mark in marks]

    for block in blocks:
        rows, at = len(block.terminated), 0
        while at < rows:
            count = min(rows - at, size - filled)
            put(block, at, count)
            at, filled = at + count, filled + count
            if filled == size:
                yield Chunk(*given, size)
                filled = 0
    if filled:
        flags[:, filled:] = False
        yield Chunk(*given, filled)
