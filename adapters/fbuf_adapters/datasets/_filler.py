"""Blocks of any length, made into chunks of one size: one program adds them all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from fbuf_adapters.datasets._blocks import Block
from fbuf_adapters.datasets._fields import NEXT, Array, Casts, under
from fbuf_adapters.datasets._target import Chunk, Target


class Filler:
    """Room for one chunk, in the dtypes of the buffer. The chunks share it.

    Args:
        target: Who adds them.
        stored: The leaves of a row, by name, in the order of the item's.
        of: The field whose next value the blocks have.
        size: The rows of a chunk.
        casts: What may be cast.
    """

    def __init__(
        self,
        target: Target,
        stored: Mapping[str, jax.ShapeDtypeStruct],
        of: str | None,
        size: int,
        casts: Casts,
    ) -> None:
        room = lambda specs: {n: np.zeros((size, *s.shape), s.dtype) for n, s in specs.items()}
        self._size, self._of, self._casts = size, of or NEXT, casts
        self._fields: dict[str, Array] = room(stored)
        self._items = jax.tree.unflatten(
            jax.tree.structure(target.item), list(self._fields.values())
        )
        self._next: dict[str, Array] = {}
        self._next_observation: Any = None
        if target.next_of is not None:
            self._next = room(under(stored, target.next_of))
            item: Any = target.item
            for part in target.next_of.split("."):
                item = item[part] if isinstance(item, dict) else getattr(item, part)
            tree = jax.tree.structure(item)
            self._next_observation = jax.tree.unflatten(tree, list(self._next.values()))
        self._flags = np.zeros((4, size), np.bool_)

    def chunks(self, blocks: Iterable[Block]) -> Iterator[Chunk]:
        """The rows of all blocks. Use each chunk before the next one is made."""
        filled = 0
        for block in blocks:
            rows = len(block.terminated)
            at = 0
            while at < rows:
                count = min(rows - at, self._size - filled)
                self._put(block, at, filled, count)
                at, filled = at + count, filled + count
                if filled == self._size:
                    yield self._chunk(filled)
                    filled = 0
        if filled:
            yield self._chunk(filled)

    def _put(self, block: Block, at: int, to: int, count: int) -> None:
        """Copy rows of a block."""
        part, room = slice(at, at + count), slice(to, to + count)
        place = lambda row: block.place(at + row)
        for name, leaf in self._fields.items():
            if name in block.fields:
                given, said = block.fields[name], name
            else:  # a field for what the step led to, which is cast as the observation is
                suffix = name.removeprefix(NEXT)
                given, said = block.following[suffix], self._of + suffix
            cast = self._casts.cast(given[part], leaf.dtype, said, place)
            leaf[room] = cast.reshape(leaf[room].shape)  # [B, 1] may go where one number does
        for suffix, leaf in self._next.items():
            given = block.following[suffix][part]
            cast = self._casts.cast(given, leaf.dtype, self._of + suffix, place)
            leaf[room] = cast.reshape(leaf[room].shape)
        flags = block.terminated, block.truncated, block.unknown, block.stands_in
        for flag, given in zip(self._flags, flags, strict=True):
            flag[room] = given[part]

    def _chunk(self, rows: int) -> Chunk:
        self._flags[:, rows:] = False
        terminated, truncated, unknown, stands_in = self._flags
        led_to = self._next_observation
        return Chunk(self._items, terminated, truncated, led_to, unknown, stands_in, rows)
