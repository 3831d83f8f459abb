"""What was saved to a directory last, so that only what has changed since is written.

What a checkpoint held is known here, for the directories that this process has saved to or loaded
from. A buffer goes on where it ends if it has the mark that the save gave it, or if its older rows
are those that were saved: then each of them is looked at. Else all of the buffer is written.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fbuf.checkpoint import progress, row_ranges
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.manifest import Manifest
from fbuf.checkpoint.row_ranges import Range, Store
from fbuf.checks import sizes
from fbuf.state import State
from fbuf.storage.ring import WRITTEN
from fbuf.xla.explicit import on_automatic_axes
from fbuf.xla.place import allocating

_HASHED = 2**22
"""Bytes of rows that are looked at together."""

_TURNS = 2**6
"""How many times a device does that before a progress bar moves."""

_MOST = 16
"""How many directories are remembered."""

_MARKS = 1000
"""How many marks of a directory are remembered."""


@dataclasses.dataclass(frozen=True)
class Looked:
    """What a save has to know of a buffer; on the host.

    Attributes:
        cursor: int32 `[4, heads]`; that of the ring.
        flags: uint8 `[capacity]`; those of the ring.
        next_end: int32 `[2, heads]`; where the next kept next observation goes, and the lap; None
            if none are kept.
    """

    cursor: np.ndarray
    flags: np.ndarray
    next_end: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint of which this process knows what it holds.

    Attributes:
        number: That of its manifest.
        manifest: The manifest.
        marks: Who has one of these has come from the buffer that was saved: what that was marked
            with when the save returned it, and then by saves to other directories, and by those
            that have failed. The newest are last. Empty if it was loaded.
        looked: What was known of the buffer.
        hashes: uint32 `[rows, 2]`; two numbers for what each row of a store holds, by the store.
            None if the buffer was known by its mark.
    """

    number: int
    manifest: Manifest
    marks: tuple[int, ...]
    looked: Looked
    hashes: dict[str, np.ndarray] | None


@dataclasses.dataclass(frozen=True)
class Places:
    """The rows of a store, and those of them that are not on the disk; see `row_ranges`."""

    total: tuple[int, ...]
    live: tuple[int, ...]
    new: Range

    @property
    def all(self) -> Range:
        """All that counts."""
        return tuple(a - b for a, b in zip(self.total, self.live, strict=True)), self.total


_LAST: dict[pathlib.Path, Saved] = {}

_SEEN: dict[pathlib.Path, set[bytes]] = {}
"""The checkpoints of a directory that this process has saved, or found there when it loaded one.

Each is the first line of its manifest: another run's can have the same number.
"""

_lock = threading.Lock()
"""Held while one of these is changed: saves in the background do it, too."""


def last(folder: pathlib.Path) -> Saved | None:
    """What this process knows of a directory."""
    return _LAST.get(folder)


def remember(folder: pathlib.Path, saved: Saved | None) -> None:
    """What there is in a directory now; None is unknown."""
    with _lock:
        _LAST.pop(folder, None)
        if saved is not None:
            _LAST[folder] = saved
            for oldest in list(_LAST)[:-_MOST]:
                del _LAST[oldest]


def passed_on(looked: Looked, mark: int, to: pathlib.Path | None) -> None:
    """Take note that a buffer will be marked: where it was known, it is known by the new mark, too.

    Args:
        looked: What is known of the buffer.
        mark: The mark.
        to: A directory that knows the buffer by its rows; None if there is none.
    """
    with _lock:
        for folder, saved in _LAST.items():
            if folder == to or has_mark(looked, saved):
                marks = (*saved.marks, mark)[-_MARKS:]
                _LAST[folder] = dataclasses.replace(saved, marks=marks)


def opened(
    folder: pathlib.Path, number: int, found: Manifest, state: State[Any], mark: int
) -> None:
    """Take note of a marked buffer that was read without its rows: the next save goes on from it.

    Args:
        folder: The directory.
        number: That of the manifest it was read from.
        found: The manifest.
        state: The buffer; of the rows nothing is read.
        mark: Its mark.
    """
    before = last(folder)
    if before is not None and (before.number, before.manifest) == (number, found):
        marks = (*before.marks, mark)[-_MARKS:]
        remember(folder, dataclasses.replace(before, marks=marks))
    else:
        remember(folder, Saved(number, found, (mark,), look(state), None))


def saw(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Take note of checkpoints of a directory, which were saved here, or were there at a load."""
    with _lock:
        _SEEN.setdefault(folder, set()).update(heads)


def forget_but(folder: pathlib.Path, heads: Iterable[bytes]) -> None:
    """Forget checkpoints that were deleted: one that is put back later is a backup's."""
    with _lock:
        _SEEN[folder] = _SEEN.get(folder, set()) & set(heads)


def require_seen(function: str, folder: pathlib.Path, heads: Mapping[int, bytes]) -> None:
    """Refuse to save where a checkpoint is another run's, or a backup's: old ones are deleted.

    Args:
        function: How the error begins.
        folder: The directory.
        heads: The first lines of the manifests that it has.
    """
    seen = _SEEN.get(folder, set())
    unknown = [number for number, head in heads.items() if head not in seen]
    if unknown:
        raise CheckpointError(
            f"fbuf.{function}: {folder} has a checkpoint, number {unknown[-1]}, that this process "
            "has neither saved nor found there when it loaded; load from the directory to go on "
            "from its newest checkpoint, or save to another directory"
        )


@jax.jit
def _copied(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


def look(state: State[Any]) -> Looked:
    """Look at a buffer. Nothing of it is held."""
    arrays = [state.ring.cursor, state.ring.flags]
    if state.next_obs is not None:
        arrays.append(state.next_obs.cursor)
    found = [np.asarray(array) for array in _copied(arrays)]
    return Looked(*found, *([None] * (3 - len(found))))


@jax.jit
@on_automatic_axes
def _with_mark(cursor: jax.Array, mark: jax.Array) -> jax.Array:
    return cursor.at[3].set(mark)


def marked(state: State[Any], mark: int) -> State[Any]:
    """The buffer with a mark, 0 for none; all other arrays are the same ones."""
    cursor = _with_mark(state.ring.cursor, np.int32(mark))
    return dataclasses.replace(state, ring=dataclasses.replace(state.ring, cursor=cursor))


def _hashed(arrays: tuple[Any, ...]) -> np.ndarray:
    """Two numbers for each row, of all of its bits: uint32 `[rows, 2]`."""
    rows = arrays[0].shape[0]
    width = max(sizes.nbytes(arrays) // max(rows, 1), 1)
    # Some rows at a time: XLA would lay out all of their bits.
    step = min(max(_HASHED // width, 1), rows)
    turns = -(-rows // step)
    if isinstance(arrays[0], jax.Array):
        with allocating():
            hashed = jnp.zeros((rows, 2), jnp.uint32)
        for turn in range(0, turns, _TURNS):
            until = min(turn + _TURNS, turns)
            with allocating():
                hashed = _hashed_by(step, hashed, turn, until, arrays).block_until_ready()
            progress.moved((min(until * step, rows) - turn * step) * width)
        return np.asarray(hashed)
    found = np.empty((rows, 2), np.uint32)
    for turn in range(turns):
        first = min(turn * step, rows - step)
        part = [array[first : first + step] for array in arrays]
        found[first : first + step] = _some_hashed(part)
        progress.moved(min(step, rows - turn * step) * width)
    return found


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
@on_automatic_axes
def _hashed_by(
    step: int, hashed: jax.Array, turn: int, until: int, arrays: tuple[jax.Array, ...]
) -> jax.Array:
    """The same on a device, for some of the turns, with so many rows in each."""
    rows = arrays[0].shape[0]

    def some(turn: jax.Array, hashed: jax.Array) -> jax.Array:
        first = jnp.minimum(turn * step, rows - step)
        part = [lax.dynamic_slice_in_dim(array, first, step) for array in arrays]
        return lax.dynamic_update_slice_in_dim(hashed, _of_rows(part), first, 0)

    return lax.fori_loop(turn, until, some, hashed)


def _of_rows(arrays: Sequence[jax.Array]) -> jax.Array:
    """Two numbers for each row `[rows, 2]`: sums of what is random for each number and place."""
    found = jnp.zeros((arrays[0].shape[0], 2), jnp.uint32)
    for number, array in enumerate(arrays):
        bits = _bits(array)
        place = jnp.arange(bits.shape[1], dtype=jnp.uint32)[None] + jnp.uint32(number << 28)
        key = _mixed(place * jnp.uint32(0x9E3779B1) + jnp.uint32(1))
        mixed = _mixed(_mixed(bits ^ key) + key)
        each = mixed, mixed * (2 * key + 1)
        sums = [jnp.sum(numbers, axis=1, dtype=jnp.uint32) for numbers in each]
        found += jnp.stack(sums, axis=1)
    return found


def _mixed(bits: jax.Array) -> jax.Array:
    """As random as 32 bits can be made of 32 (the end of MurmurHash3)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0xC2B2AE35)
    return bits ^ (bits >> 16)


def _bits(array: jax.Array) -> jax.Array:
    """The numbers of each row as uint32 `[rows, n]`."""
    rows = array.shape[0]
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        return jnp.concatenate([_bits(array.real), _bits(array.imag)], axis=1)
    if array.dtype == jnp.bool_:
        array = array.astype(jnp.uint8)
    elif jnp.issubdtype(array.dtype, jnp.integer) and jnp.iinfo(array.dtype).bits < 8:
        array = array.astype(jnp.int8)
    elif jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits < 8:
        array = array.astype(jnp.float32)
    width = array.dtype.itemsize
    unsigned = {1: jnp.uint8, 2: jnp.uint16}.get(width, jnp.uint32)
    array = lax.bitcast_convert_type(array, unsigned).reshape(rows, -1)
    if width >= 4:
        return array
    several = 4 // width
    array = jnp.pad(array, ((0, 0), (0, -array.shape[1] % several)))
    return lax.bitcast_convert_type(array.reshape(rows, -1, several), jnp.uint32)


_some_hashed = jax.jit(_of_rows)


def hashes(state: State[Any]) -> dict[str, np.ndarray]:
    """Two numbers for what each row of each store holds. It reads all of them once."""
    found = row_ranges.of_state(state)
    with progress.shown("fbuf: hashing rows", sum(sizes.nbytes(of.arrays) for of in found)):
        return {store.name: _hashed(store.arrays) for store in found}


def places(
    state: State[Any], looked: Looked, before: Saved | None
) -> tuple[dict[str, Places], np.ndarray]:
    """What there is of each store, and the rows that `fbuf.write` has changed besides.

    Args:
        state: The buffer.
        looked: What is known of it.
        before: The last checkpoint; None if all is to be written.
    """
    rows, *ends = row_ranges.of_state(state)
    found = {rows.name: _places_of_rows(looked, rows, before)}
    for store in ends:
        found[store.name] = _places_of_ends(looked, store, before)
    return found, _written_besides(looked, rows, found[rows.name])


def has_mark(looked: Looked, before: Saved) -> bool:
    """Whether a buffer has come from what a save returned, by any ways and detours."""
    return set(map(int, looked.cursor[3])) <= set(before.marks)


def goes_on(state: State[Any], looked: Looked, now: dict[str, np.ndarray], before: Saved) -> bool:
    """Whether a buffer goes on where a checkpoint ends: its older rows are those saved there.

    Args:
        state: The buffer.
        looked: What is known of it.
        now: The hashes of its rows.
        before: The checkpoint.
    """
    if before.hashes is None:
        return False
    found, _ = places(state, looked, before)
    rows, *ends = row_ranges.of_state(state)
    if found[rows.name].new == found[rows.name].all and any(found[rows.name].live):
        return False  # nothing is left of it
    same = _retained(rows, found[rows.name])
    # Of a row that `fbuf.write` has changed, the old content is still in the file of its segment.
    if (same & (looked.flags & WRITTEN < before.looked.flags & WRITTEN)).any():
        return False
    # Such rows are written again.
    same &= looked.flags & WRITTEN == 0
    if (now[rows.name] != before.hashes[rows.name])[same].any():
        return False
    return not any(
        (now[s.name] != before.hashes[s.name])[_retained(s, found[s.name])].any() for s in ends
    )


def _retained(store: Store, at: Places) -> np.ndarray:
    """Which rows of a store count and are not new: bool `[rows]`."""
    found = np.zeros(store.arrays[0].shape[0], bool)
    for some in store.rows((at.all[0], at.new[0])):
        found[some] = True
    return found


def _places_of_rows(looked: Looked, store: Store, before: Saved | None) -> Places:
    head, lap, stored, _ = looked.cursor.astype(np.int64)
    total = tuple(map(int, (lap % 2**32) * store.room + head))
    return _since(total, tuple(map(int, stored)), store, before)


def _places_of_ends(looked: Looked, store: Store, before: Saved | None) -> Places:
    """Of the ends that are kept, all of which count."""
    assert looked.next_end is not None
    at, lap = looked.next_end.astype(np.int64)
    # As if all places had been written once before.
    total = tuple(map(int, (1 + lap % 2**32) * store.room + at))
    return _since(total, (store.room,) * store.heads, store, before)


def _since(
    total: tuple[int, ...], live: tuple[int, ...], store: Store, before: Saved | None
) -> Places:
    """What there is of a store, of which all that is not in a checkpoint is new."""
    found = Places(total, live, ((0,) * store.heads, total))
    past = before.manifest.totals[store.name] if before else found.all[0]
    if any(was > is_now for was, is_now in zip(past, total, strict=True)):
        past = found.all[0]
    return dataclasses.replace(found, new=row_ranges.newer(found.all, past))


def _written_besides(looked: Looked, store: Store, now: Places) -> np.ndarray:
    """The rows that `fbuf.write` has changed, without those that are written anyway."""
    marked = looked.flags & WRITTEN > 0
    if not marked.any():
        return np.zeros(0, np.int64)
    return np.flatnonzero(marked & _retained(store, now))
