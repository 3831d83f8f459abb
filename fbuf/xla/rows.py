"""Reading and writing rows of an array: the one place where storage is touched."""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fbuf.xla.loop import LINE, by_halves, fetched, gathered, is_large, with_room
from fbuf.xla.platform import by_platform, computed

_LONG = 64
"""The least numbers of a row that XLA's own gather reads by vectors; it is then the fastest."""

_FEW = 16
"""The most rows of a small array that are not worth a loop."""

_MANY = 2**13
"""The least cache lines to read for which waking other threads pays."""

_APART, _WIDE = 512, 6
"""The least rows whose parts are worth a gather each, and the least mean of their columns."""

_WIDEST_LOAD = 16
"""Bytes; the widest load of a GPU, of four words. Four narrower numbers take one load, too."""

_WORTH_WORDS = 2**17
"""Bytes of a batch; a GPU reads fewer in less time than the start of a kernel takes."""

_returned: contextvars.ContextVar[bool] = contextvars.ContextVar("fbuf_returned", default=False)


@contextlib.contextmanager
def returned() -> Generator[None]:
    """Trace a program that returns its batch as it is: nothing in it computes with the rows."""
    before = _returned.set(True)
    try:
        yield
    finally:
        _returned.reset(before)


def are_returned() -> bool:
    """Tell whether the program that is traced returns its batch as it is; see `returned`."""
    return _returned.get()


def read_rows(
    leaf: jax.Array,
    slots: jax.Array,
    columns: tuple[int, int] | None = None,
    by_words: bool = False,
) -> jax.Array:
    """Read the rows of `[capacity, ...]` at `[B]` slots, each of which must be in range.

    On CPU a few short rows are read in one thread. XLA wakes other threads for a gather from a
    large array, which takes longer than the rows do (`benchmarks/evidence/row_access.py`).

    Args:
        leaf: `[capacity, ...]`.
        slots: int32 `[B]`.
        columns: The first column of `[capacity, columns]` to read, and the one behind the last.
            None is all.
        by_words: Whether a GPU may read narrow numbers by 32-bit words. It does so in wider loads.
            A kernel that computes with the rows would have to wait for the words.
    """
    first, last = columns or (0, leaf.size // leaf.shape[0])
    size = last - first
    inner = leaf.shape[1:] if columns is None else (size,)
    if slots.shape[0] == 0 or size == 0:
        return jnp.zeros((slots.shape[0], *inner), leaf.dtype)
    if slots.shape[0] == 1:
        # XLA would read a single row again at every use, also after the array is written. For that
        # it would copy the whole array.
        return read_rows(leaf, jnp.concatenate([slots, slots]), columns)[:1]

    def gather(leaf: jax.Array, slots: jax.Array) -> jax.Array:
        rows = gathered(leaf, slots)
        return rows if columns is None else rows[:, first:last]

    if size >= _LONG:
        slots = computed(slots)
        if by_words and columns is None and _has_words(leaf, slots.shape[0]):
            return by_platform(leaf, slots, cpu=gathered, default=gathered, gpu=_gathered_by_words)
        return gather(leaf, slots)
    if slots.shape[0] <= _FEW and not is_large(leaf.size, leaf.dtype):
        return with_room(gather, leaf, slots)
    slots = fetched(leaf, slots, slots, (first, last))
    if _stays_in_thread(leaf, slots.shape[0], size):
        return by_halves(gather, leaf, slots)
    return gather(leaf, slots)


class Part(NamedTuple):
    """Some columns of `[capacity, columns]`, and what is made of them.

    Attributes:
        first: The first column.
        last: The column behind the last.
        make: Returns the result from rows `[B, last - first]`, for any B. It must hold no array.
    """

    first: int
    last: int
    make: Callable[[jax.Array], jax.Array]


def read_parts(leaf: jax.Array, slots: jax.Array, parts: Sequence[Part]) -> list[jax.Array]:
    """Return what is made of parts of the rows at `[B]` slots, `[B, ...]` each; see `read_rows`.

    On CPU each part of many rows is gathered by itself, and written as what is made of it. Rows
    that are gathered as they lie would be gone over once more.

    Args:
        leaf: `[capacity, columns]`.
        slots: int32 `[B]`, each in range.
        parts: At least one.
    """
    first, last = min(part.first for part in parts), max(part.last for part in parts)

    def together(leaf: jax.Array, slots: jax.Array) -> list[jax.Array]:
        return taken_apart(read_rows(leaf, slots, (first, last)), parts)

    if slots.shape[0] < _APART or not _WIDE * len(parts) <= last - first < _LONG:
        return together(leaf, slots)

    def apart(leaf: jax.Array, slots: jax.Array) -> list[jax.Array]:
        slots = fetched(leaf, slots, slots, (first, last))
        makes = [_gathers(part) for part in parts]
        if _stays_in_thread(leaf, slots.shape[0], last - first):
            return [by_halves(make, leaf, slots) for make in makes]
        return [make(leaf, slots) for make in makes]

    return by_platform(leaf, slots, cpu=apart, default=together)


def taken_apart(rows: jax.Array, parts: Sequence[Part]) -> list[jax.Array]:
    """Return what is made of parts of rows `[B, columns]`, from the leftmost part on."""
    first = min((part.first for part in parts), default=0)
    return [part.make(rows[:, part.first - first : part.last - first]) for part in parts]


def _gathers(part: Part) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """Return a function that makes a part of rows."""
    return lambda leaf, slots: part.make(gathered(leaf, slots, columns=(part.first, part.last)))


def _stays_in_thread(leaf: jax.Array, batch: int, size: int) -> bool:
    """Tell whether to gather some numbers of each row in one thread: others cost time to wake."""
    return batch * math.ceil(size * leaf.dtype.itemsize / LINE) < _MANY


def _has_words(leaf: jax.Array, batch: int) -> bool:
    """Tell whether rows are whole loads of words, and a batch of them is worth it."""
    row = leaf.size // leaf.shape[0] * leaf.dtype.itemsize
    narrow = leaf.dtype.itemsize < 4 and leaf.dtype != jnp.bool_
    return narrow and row % _WIDEST_LOAD == 0 and batch * row > _WORTH_WORDS


def _gathered_by_words(leaf: jax.Array, slots: jax.Array) -> jax.Array:
    """Gather whole rows; as `gathered`."""
    together = 4 // leaf.dtype.itemsize
    words = leaf.reshape(leaf.shape[0], -1, together)
    rows = gathered(lax.bitcast_convert_type(words, jnp.uint32), slots)
    return lax.bitcast_convert_type(rows, leaf.dtype).reshape(-1, *leaf.shape[1:])


def flat(leaf: jax.Array, axes: int = 2) -> jax.Array:
    """Join the first axes of an array: `[B, ...]`. The other axes may be of length 0."""
    return leaf.reshape(math.prod(leaf.shape[:axes]), *leaf.shape[axes:])


def write_rows(leaf: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """Write `[B]` rows to distinct slots of an array; a slot of `capacity` is left out."""
    return leaf.at[slots].set(rows, mode="drop", unique_indices=True)
