"""What was saved to a directory last, so that only what has changed since is written.

A state does not know what was saved of it. What is known here, for the directories that this
process has saved to or loaded from, is what the checkpoint held; it is held against the state to be
saved. If that does not go on where the checkpoint ends, all of it is written.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fbuf.disk import stores
from fbuf.disk.manifest import Manifest
from fbuf.disk.stores import Range, Store
from fbuf.state import State
from fbuf.storage.ring import CUT, DUMMY, TERMINATED, TRUNCATED, WRITTEN

_TAIL = 256
"""How many of the newest rows are held against those that were saved."""


@dataclasses.dataclass(frozen=True)
class Looked:
    """What a save has to know of a buffer; on the host.

    Attributes:
        cursor: int32 `[3, heads]`; that of the ring.
        flags: uint8 `[capacity]`; those of the ring.
        newest: int32 `[lanes]`; the newest row of each lane.
        owners: int32 `[2, ends]`; which rows the kept next observations are of: the slot and the
            generation. None if none are kept.
        next_end: int32 `[heads]`; where the next of them goes; None likewise.
    """

    cursor: np.ndarray
    flags: np.ndarray
    newest: np.ndarray
    owners: np.ndarray | None
    next_end: np.ndarray | None


@dataclasses.dataclass(frozen=True)
class Saved:
    """A checkpoint of which this process knows what it holds.

    Attributes:
        number: That of its manifest.
        manifest: The manifest.
        looked: What was known of the buffer.
        tail: int64 `[T]`; some of its newest rows, and `rows`, what they held, an array each.
        rows: See `tail`.
    """

    number: int
    manifest: Manifest
    looked: Looked
    tail: np.ndarray
    rows: tuple[np.ndarray, ...]


@dataclasses.dataclass(frozen=True)
class Places:
    """What there is of a store, and what of it is not on the disk; see `fbuf.disk.stores`."""

    total: tuple[int, ...]
    live: tuple[int, ...]
    new: Range

    @property
    def all(self) -> Range:
        """All that counts."""
        return tuple(a - b for a, b in zip(self.total, self.live, strict=True)), self.total


_LAST: dict[pathlib.Path, Saved] = {}


def last(folder: pathlib.Path) -> Saved | None:
    """What this process knows of a directory."""
    return _LAST.get(folder)


def remember(folder: pathlib.Path, saved: Saved | None) -> None:
    """What there is in a directory now; None is unknown."""
    if saved is None:
        _LAST.pop(folder, None)
    else:
        _LAST[folder] = saved


@jax.jit
def _seen(state: State[Any]) -> tuple[jax.Array, ...]:
    ring, kept = state.ring, state.next_obs
    found = (jnp.copy(ring.cursor), jnp.copy(ring.flags), ring.newest())
    if kept is None:
        return found
    owner = kept.owner[ring.lanes :]
    owners = jnp.stack([owner, ring.generation_of(jnp.maximum(owner, 0))])
    return (*found, owners, jnp.copy(kept.cursor))


def look(state: State[Any]) -> Looked:
    """Look at a buffer. Nothing of it is held."""
    found = [np.asarray(array) for array in _seen(state)]
    return Looked(*found, *([None] * (5 - len(found))))


def tail(state: State[Any], looked: Looked) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Some of the newest rows, and what they hold."""
    (store, *_) = stores.of_state(state)
    total, live = _rows_written(looked, store)
    each = max(_TAIL // store.heads, 1)
    first = tuple(t - min(n, each) for t, n in zip(total, live, strict=True))
    rows = np.concatenate([np.zeros(0, np.int64), *store.rows((first, total))])
    return rows, _read(store, rows)


def _read(store: Store, rows: np.ndarray) -> tuple[np.ndarray, ...]:
    """What rows hold, an array each."""
    size = _TAIL * max(1, -(-rows.size // _TAIL))  # few sizes, so that few programs are compiled
    return tuple(
        np.concatenate([np.zeros((0, *array.shape[1:]), array.dtype), *stores.copied(
            array, iter([rows] if rows.size else []), size
        )])
        for array in store.arrays
    )  # fmt: skip


def places(
    state: State[Any], looked: Looked, before: Saved | None
) -> tuple[dict[str, Places], np.ndarray]:
    """What there is of each store, and the rows that `fbuf.write` has changed besides.

    Args:
        state: The buffer.
        looked: What is known of it.
        before: The last checkpoint; None if all is to be written.
    """
    rows, *ends = stores.of_state(state)
    found = {rows.name: _places_of_rows(looked, rows, before)}
    for store in ends:
        found[store.name] = _places_of_ends(looked, store, before)
    return found, _written_besides(looked, rows, found[rows.name])


def goes_on(state: State[Any], looked: Looked, before: Saved) -> bool:
    """Whether a buffer goes on where a checkpoint ends: its older rows are those saved there."""
    store = stores.of_state(state)[0]
    now = _places_of_rows(looked, store, before)
    if now.new == now.all and any(now.live):
        return False  # nothing is left of it
    same = np.zeros(looked.flags.size, bool)
    for some in store.rows((now.all[0], now.new[0])):
        same[some] = True
    changed = (looked.flags ^ before.looked.flags) & (TERMINATED | TRUNCATED | DUMMY | CUT)
    newest = before.looked.newest
    changed[newest[newest < changed.size]] &= ~np.uint8(TRUNCATED)  # by `end_episode`
    if changed[same].any():
        return False
    left = same[before.tail] & (looked.flags[before.tail] & WRITTEN == 0)
    found = _read(store, before.tail)
    return all(
        np.array_equal(a[left].reshape(-1).view(np.uint8), b[left].reshape(-1).view(np.uint8))
        for a, b in zip(found, before.rows, strict=True)
    )


def _rows_written(looked: Looked, store: Store) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """How many rows each head has ever written, and how many of them are there."""
    head, lap, stored = looked.cursor.astype(np.int64)
    total = (lap % 2**32) * store.room + head
    return tuple(map(int, total)), tuple(map(int, stored))


def _places_of_rows(looked: Looked, store: Store, before: Saved | None) -> Places:
    total, live = _rows_written(looked, store)
    found = Places(total, live, ((0,) * store.heads, total))
    past = before.manifest.totals[store.name] if before else found.all[0]
    if any(was > is_now for was, is_now in zip(past, total, strict=True)):
        past = found.all[0]
    return dataclasses.replace(found, new=stores.newer(found.all, past))


def _places_of_ends(looked: Looked, store: Store, before: Saved | None) -> Places:
    """Of the ends that are kept. Their cursor has no laps; whose they are tells which are new."""
    assert looked.next_end is not None
    assert looked.owners is not None
    cursor = tuple(map(int, looked.next_end))
    live = (store.room,) * store.heads
    if before is not None:
        assert before.looked.owners is not None
        past = before.manifest.totals[store.name]
        total = tuple(was + (at - was) % store.room for was, at in zip(past, cursor, strict=True))
        new = np.zeros(looked.owners.shape[1], bool)
        for some in store.rows((past, total)):
            new[some - store.begin] = True
        changed = (looked.owners != before.looked.owners).any(axis=0)
        if not changed[~new].any():
            return Places(total, live, (past, total))
        total = tuple(was + store.room for was in total)
        return Places(total, live, (tuple(t - store.room for t in total), total))
    total = tuple(store.room + at for at in cursor)
    return Places(total, live, (cursor, total))


def _written_besides(looked: Looked, store: Store, now: Places) -> np.ndarray:
    """The rows that `fbuf.write` has changed, without those that are written anyway."""
    marked = looked.flags & WRITTEN > 0
    if not marked.any():
        return np.zeros(0, np.int64)
    older = np.zeros(marked.size, bool)
    for some in store.rows((now.all[0], now.new[0])):
        older[some] = True
    return np.flatnonzero(marked & older)
