"""The large arrays of a buffer, which heads write in rings of places.

A store has one head, or one for each lane, and each head goes around its own places. Places are
counted from the first row ever written. So the rows added since some moment are a range of places,
and so are the rows overwritten since.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.checkpoint import npy
from fbuf.checkpoint.files import CHUNK
from fbuf.checkpoint.manifest import Range
from fbuf.state import State
from fbuf.storage import wide_rows
from fbuf.storage.layout import Field
from fbuf.xla.explicit import on_automatic_axes


@dataclasses.dataclass(frozen=True)
class Store:
    """Rows that heads write in rings.

    Attributes:
        name: Its name in a manifest.
        arrays: `[rows, ...]` each; or their shapes and dtypes.
        fields: A row of each array: its shape and dtype. Files have these; the array may differ by
            `fbuf.storage.wide_rows`.
        heads: The number of heads.
        head_places: The number of places of each head.
        begin: The row of the first place of the first head.
        stride: The number of rows from one place of a head to its next place.
        beside: The number of rows from a place of a head to the same place of the next head.
    """

    name: str
    arrays: tuple[Any, ...]
    fields: tuple[Field, ...]
    heads: int
    head_places: int
    begin: int
    stride: int
    beside: int

    @property
    def widths(self) -> list[int]:
        """The bytes of a row of each array in a file."""
        return [npy.row_bytes(field.shape, field.dtype) for field in self.fields]

    @property
    def step(self) -> int:
        """The number of rows to move at a time."""
        return max(1, min(CHUNK // max(*self.widths, 1), 2**14))

    def rows(self, places: Range) -> Iterator[np.ndarray]:
        """Yield the rows of a range, head by head, `step` at a time."""
        first = np.array(places[0], np.int64)
        counts = np.array(places[1], np.int64) - first
        ends = np.cumsum(counts)
        for begin in range(0, int(ends[-1]), self.step):
            number = np.arange(begin, min(begin + self.step, int(ends[-1])))
            head = np.searchsorted(ends, number, side="right")
            place = first[head] + number - (ends - counts)[head]
            yield self.begin + head * self.beside + place % self.head_places * self.stride


def of_state(state: State[Any]) -> list[Store]:
    """Return the stores of a buffer: its rows, and the next observations of ends of episodes."""
    ring, storage, kept = state.ring, state.storage, state.next_obs
    arrays, fields = storage.arrays, storage.fields
    heads, room = ring.heads, ring.head_capacity
    found = [Store("rows", arrays, fields, heads, room, begin=0, stride=heads, beside=1)]
    if kept is not None:
        arrays, fields = kept.rows.arrays, kept.rows.fields
        room = (kept.owner.shape[0] - ring.lanes) // heads
        ends = Store("ends", arrays, fields, heads, room, begin=ring.lanes, stride=1, beside=room)
        found.append(ends)
    return found


def size(places: Range) -> int:
    """Return the number of rows in a range."""
    return sum(last - first for first, last in zip(*places, strict=True))


def newer(places: Range, than: Sequence[int]) -> Range:
    """Return the part of a range that begins at some places."""
    first = tuple(max(a, b) for a, b in zip(places[0], than, strict=True))
    return first, tuple(max(a, b) for a, b in zip(first, places[1], strict=True))


SIZES = (64, 1024)
"""The padded sizes of a few rows; three programs serve any number of rows."""


def padded_size(count: int, step: int) -> int:
    """Return the padded number of rows, for rows moved `step` at a time."""
    return min(step, next((size for size in SIZES if count <= size), step))


@jax.jit
@on_automatic_axes
def _taken(array: jax.Array, rows: jax.Array) -> jax.Array:
    return jnp.take(array, rows, axis=0, mode="clip")


def copied(array: Any, field: Field, rows: Iterator[np.ndarray], step: int) -> Iterator[np.ndarray]:
    """Yield copies of rows of an array, as arrays of NumPy; the array itself is not kept."""
    for some in rows:
        if isinstance(array, jax.Array):
            padded = np.resize(some, padded_size(some.size, step)).astype(np.int32)
            yield wide_rows.read(field, jax.device_get(_taken(array, padded))[: some.size])
        else:
            yield wide_rows.read(field, array[some])


def put(array: Any, field: Field, rows: np.ndarray, new: np.ndarray, step: int) -> Any:
    """Write rows to an array in place, and return it; rows are moved `step` at a time."""
    new = wide_rows.stored(field, new)
    if isinstance(array, np.ndarray):
        array[rows] = new
        return array
    padding = padded_size(rows.size, step) - rows.size
    if padding:
        new = np.concatenate([new, np.zeros((padding, *array.shape[1:]), array.dtype)])
        rows = np.concatenate([rows, np.full(padding, array.shape[0])])
    return _written(array, rows.astype(np.int32), new)


@functools.partial(jax.jit, donate_argnums=0)
@on_automatic_axes
def _written(array: jax.Array, rows: jax.Array, new: jax.Array) -> jax.Array:
    """Write rows to an array, and return the array; a row behind its end is left out."""
    return array.at[rows].set(new, mode="drop")
