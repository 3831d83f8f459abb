"""Whether the newest checkpoint of a directory is of another buffer than the one to save.

Each save deletes old checkpoints. So two buffers that are saved to one directory by turns would
delete each other's. A load would return now one and now the other. Save ids tell most buffers
apart. A buffer without one, as of a loop that ignores what `save` returns, is told by its rows. The
rows that it has in common with the checkpoint must be the same in both.
"""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np

from fbuf.checkpoint import lineage, npy, row_ranges
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.incremental import Places
from fbuf.checkpoint.manifest import Manifest
from fbuf.checkpoint.row_ranges import Store
from fbuf.checkpoint.tree_json import Data
from fbuf.storage.ring import WRITTEN

_Row = list[np.ndarray]
"""A row, array by array: uint8 `[bytes of a row]`."""

_ENOUGH = 256
"""So many rows tell two buffers apart."""

_AROUND = 2**31
"""So many laps apart one of two counts has gone around."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A buffer to save, as far as it is known.

    Attributes:
        save_id: The save id that it carries.
        config: The arguments of `fbuf.init`.
        rows: The store of its rows.
        places: Where they are.
        flags: The flags of its rows, uint8 `[capacity]`.
        in_order: Whether rows lie in the order in which they were added.
        alone: Whether it is a whole buffer, and not a shard, whose rows may go to another shard.
    """

    save_id: int
    config: Data
    rows: Store
    places: Places
    flags: np.ndarray
    in_order: bool
    alone: bool


def require_none(folder: pathlib.Path, newest: Manifest, buffer: Buffer) -> None:
    """Refuse to save a buffer where the newest checkpoint is of another one.

    Args:
        folder: The directory.
        newest: Its newest checkpoint.
        buffer: The buffer.

    Raises:
        CheckpointError: If nothing ties the two, and a row shows that they are two.
    """
    if not any(newest.live["rows"]) or _is_related(newest.save_id, buffer.save_id):
        return
    try:
        of_checkpoint = _Rows(folder, newest, buffer.rows)
        if newest.config == buffer.config:
            other = _differs(of_checkpoint, newest, buffer)
        else:
            other = _lacks(of_checkpoint, newest, buffer)
    except CheckpointError:  # a damaged file shows nothing
        return
    if other:
        raise CheckpointError(
            f"fbuf.save: the newest checkpoint in {folder} is of another buffer, whose rows "
            "this one does not have; saves to one directory would delete each other's "
            "checkpoints. Give each buffer a directory of its own. To go on with the saved one, "
            "load it, or use what its save returned; to give it up, delete the directory"
        )


def _is_related(newest: int, own: int) -> bool:
    """Return whether a buffer continues a checkpoint, or goes back behind it, by their save ids."""
    return newest in lineage.line(own) or own in lineage.line(newest)


class _Rows:
    """The rows of a checkpoint by their place, as bytes.

    Raises:
        CheckpointError: If a file that is read is damaged.
    """

    def __init__(self, folder: pathlib.Path, found: Manifest, store: Store) -> None:
        self._folder, self._found, self._store = folder, found, store
        self._views: dict[str, list[np.ndarray]] = {}

    def at(self, head: int, place: int) -> _Row:
        """Return a row; an empty list if no file has it."""
        for segment in reversed(self._found.segments["rows"]):
            if segment.first[head] <= place < segment.last[head]:
                row = sum(segment.counts[:head]) + place - segment.first[head]
                views = self._of(segment.file, sum(segment.counts))
                return [view[row] for view in views]
        return []

    def _of(self, file: str, count: int) -> list[np.ndarray]:
        if file not in self._views:
            expected = self._found.files[file]
            npy.check(self._folder, file, expected)
            if expected.length != npy.nbytes(count, self._store.widths):
                raise CheckpointError(f"fbuf.save: {file} has rows of another size")
            self._views[file] = npy.views(self._folder / file, count, self._store.widths)
        return self._views[file]


def _differs(of_checkpoint: _Rows, newest: Manifest, buffer: Buffer) -> bool:
    """Return whether a row that both have is another one, or the buffer has too few of them."""
    total, saved, store = buffer.places.total, newest.totals["rows"], buffer.rows
    if any(abs(a - b) > _AROUND * store.room for a, b in zip(total, saved, strict=True)):
        return False
    oldest, rows, there = buffer.places.all[0], list[int](), list[_Row]()
    for head, live in enumerate(newest.live["rows"]):
        low = max(oldest[head], saved[head] - live)
        for place in _some(low, min(total[head], saved[head])):
            row = store.begin + head * store.beside + place % store.room * store.stride
            if not buffer.flags[row] & WRITTEN and (saved_row := of_checkpoint.at(head, place)):
                rows.append(row)
                there.append(saved_row)
        if len(rows) > _ENOUGH:
            break
    if not rows:
        # As of a new buffer where the checkpoint has rows; one that is ahead may have lost them.
        return sum(total) < sum(saved)
    columns = _columns(store, np.array(rows))
    return any(
        (own != np.stack(column)).any() for own, *column in zip(columns, *there, strict=True)
    )


def _lacks(of_checkpoint: _Rows, newest: Manifest, buffer: Buffer) -> bool:
    """Return whether a buffer of another kind, which has lost no row, lacks most of the newest.

    `fbuf.extend` moves rows to a buffer of another sampler, but for some that nobody can draw.
    `fbuf.resize` begins with a later lap.
    """
    if not buffer.alone or newest.written is not None or _has_lost_rows(buffer):
        return False
    wanted: list[_Row] = []
    for head, (total, live) in enumerate(
        zip(newest.totals["rows"], newest.live["rows"], strict=True)
    ):
        rows = (of_checkpoint.at(head, place) for place in _some(total - live, total))
        wanted += [row for row in rows if row]
        if len(wanted) > _ENOUGH:
            break
    found = np.zeros(len(wanted), bool)
    for some in buffer.rows.rows(buffer.places.all):
        columns = _columns(buffer.rows, some)
        for number in np.flatnonzero(~found):
            pairs = zip(columns, wanted[number], strict=True)
            alike = [(column == own).all(axis=1) for column, own in pairs]
            found[number] = np.logical_and.reduce(alike).any()
    return bool(found.mean() < 0.5) if wanted else False


def _has_lost_rows(buffer: Buffer) -> bool:
    """Return whether a buffer may have had rows that it has no longer."""
    at, store = buffer.places, buffer.rows
    if not buffer.in_order:  # then the rows of a full buffer have changed in their places
        return sum(at.live) == store.heads * store.room
    return at.total != at.live


def _some(low: int, high: int) -> list[int]:
    """Return some places of a range: the newest ones, and fewer and fewer of the older ones."""
    ages = {*range(8), *(2**power for power in range(3, 32))}
    return [high - 1 - age for age in sorted(ages) if high - 1 - age >= low]


def _columns(store: Store, rows: np.ndarray) -> list[np.ndarray]:
    """Return some rows of all arrays of a store, as bytes: uint8 `[rows, bytes of a row]`."""
    found: list[np.ndarray] = []
    for array, width in zip(store.arrays, store.widths, strict=True):
        parts = (rows[at : at + store.step] for at in range(0, rows.size, store.step))
        whole = [np.ascontiguousarray(part) for part in row_ranges.copied(array, parts, store.step)]
        whole = [part.reshape(-1).view(np.uint8).reshape(len(part), width) for part in whole]
        found.append(np.concatenate(whole))
    return found
