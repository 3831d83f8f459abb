"""Refuse to save a buffer over checkpoints of another run.

Each save deletes old checkpoints. Two buffers that save to one directory by turns would delete each
other's. A load would return either of them. A buffer belongs to a directory by its save id, if a
checkpoint there has it. It also belongs there by its tag, if this process has saved a buffer with
this tag there, or loaded it from there. So a loop may ignore what `save` returns. A buffer with
neither, such as a result of `fbuf.extend`, must have the rows of the checkpoint.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Sequence

import numpy as np

from fbuf.checkpoint import lineage, manifest, npy, row_ranges
from fbuf.checkpoint.errors import CheckpointError
from fbuf.checkpoint.incremental import Places
from fbuf.checkpoint.manifest import Manifest
from fbuf.checkpoint.row_ranges import Store
from fbuf.checkpoint.tree_json import Data
from fbuf.storage.ring import WRITTEN

_Row = list[np.ndarray]
"""One row, array by array: uint8 `[bytes of a row]`."""

_ENOUGH = 256
"""The rows to compare, enough to tell two buffers apart."""

_AROUND = 2**31
"""The distance of two laps from which on one of them has wrapped around."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """The identity of a buffer to save.

    Attributes:
        save_id: The save id that it carries.
        tag: The tag of its ids.
        config: The arguments of `fbuf.init`.
        rows: The store of its rows.
        places: The places of the rows.
        flags: The flags of its rows, uint8 `[capacity]`.
        alone: Whether it is a whole buffer. The rows of a shard may move to another shard.
    """

    save_id: int
    tag: int
    config: Data
    rows: Store
    places: Places
    flags: np.ndarray
    alone: bool


_tags: dict[pathlib.Path, set[int]] = {}
"""The tags of the buffers that this process has saved to a directory, or loaded from it."""

_last: dict[pathlib.Path, int] = {}
"""The tag of the buffer that this process has saved to a directory last."""

_given_up: dict[pathlib.Path, set[int]] = {}
"""The save ids of abandoned checkpoints, by directory: a buffer continued an older one."""

_lock = threading.Lock()


def note(folder: pathlib.Path, tag: int, *, saved: bool) -> None:
    """Record the tag of a buffer that is saved to a directory, or was loaded from it."""
    with _lock:
        _tags.setdefault(folder, set()).add(tag)
        if saved:
            _last[folder] = tag


def require_none(
    folder: pathlib.Path, numbers: Sequence[int], newest: Manifest, buffer: Buffer
) -> None:
    """Refuse to save a buffer if the newest checkpoint is of another one.

    Args:
        folder: The directory.
        numbers: The checkpoints there, the oldest first.
        newest: Its newest checkpoint.
        buffer: The buffer.

    Raises:
        CheckpointError: If no id or tag links the two buffers, and their rows differ.
    """
    related = _is_related(folder, numbers, newest, buffer)
    if related or not any(newest.live["rows"]):
        return
    try:
        of_checkpoint = _Rows(folder, newest, buffer.rows)
        if related is False:
            other = True
        elif buffer.alone:
            other = _lacks(of_checkpoint, newest, buffer)
        else:  # the rows of a shard may have moved to other shards
            other = newest.config == buffer.config and _differs(of_checkpoint, newest, buffer)
    except CheckpointError:  # a damaged file proves nothing
        return
    if other:
        raise CheckpointError(
            f"fbuf.save: the newest checkpoint in {folder} is of another buffer, whose rows "
            "this one does not have; saves to one directory would delete each other's "
            "checkpoints. Give each buffer a directory of its own. To go on with the saved one, "
            "load it, or use what its save returned; to give it up, delete the directory"
        )


def _is_related(
    folder: pathlib.Path, numbers: Sequence[int], newest: Manifest, buffer: Buffer
) -> bool | None:
    """Return whether a buffer continues the newest checkpoint or an older one.

    A buffer that continues an older one abandons the newest: buffers that continue that one then
    belong to another run. Return None if only the rows can tell.
    """
    own, given_up = set(lineage.line(buffer.save_id)), _given_up.setdefault(folder, set())
    if newest.save_id in own:
        return True
    if own & given_up:
        return False
    back = bool(own) and (
        buffer.save_id in lineage.line(newest.save_id)
        or any(found.save_id in own for found in manifest.readable(folder, numbers))
    )
    if not back and buffer.tag == _last.get(folder):
        return True  # the run ignores the buffers that `fbuf.save` returns
    if not back and buffer.tag not in _tags.get(folder, ()):
        return None
    given_up.add(newest.save_id)
    return True


class _Rows:
    """The rows of a checkpoint by their place, as bytes.

    Raises:
        CheckpointError: If a file that is read is damaged.
    """

    def __init__(self, folder: pathlib.Path, found: Manifest, store: Store) -> None:
        self._folder, self._found, self._store = folder, found, store
        self._views: dict[str, list[np.ndarray]] = {}

    def at(self, head: int, place: int) -> _Row:
        """Return a row; an empty list if it is in no file."""
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
    """Return whether a common row differs, or the buffer lacks too many rows."""
    total, saved, store = buffer.places.total, newest.totals["rows"], buffer.rows
    if any(abs(a - b) > _AROUND * store.head_places for a, b in zip(total, saved, strict=True)):
        return False
    oldest, rows, there = buffer.places.all[0], list[int](), list[_Row]()
    for head, live in enumerate(newest.live["rows"]):
        low = max(oldest[head], saved[head] - live)
        for place in _some(low, min(total[head], saved[head])):
            row = store.begin + head * store.beside + place % store.head_places * store.stride
            if not buffer.flags[row] & WRITTEN and (saved_row := of_checkpoint.at(head, place)):
                rows.append(row)
                there.append(saved_row)
        if len(rows) > _ENOUGH:
            break
    if not rows:
        # A new buffer lacks them; a buffer that is ahead may have overwritten them.
        return sum(total) < sum(saved)
    columns = _columns(store, np.array(rows))
    return any(
        (own != np.stack(column)).any() for own, *column in zip(columns, *there, strict=True)
    )


def _lacks(of_checkpoint: _Rows, newest: Manifest, buffer: Buffer) -> bool:
    """Return whether a buffer lacks most of the newest rows of a checkpoint.

    `fbuf.extend` moves rows to another buffer, except rows that cannot be drawn.
    """
    if newest.written is not None:
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


def _some(low: int, high: int) -> list[int]:
    """Return some places of a range, most of them near its newest end."""
    ages = {*range(8), *(2**power for power in range(3, 32))}
    return [high - 1 - age for age in sorted(ages) if high - 1 - age >= low]


def _columns(store: Store, rows: np.ndarray) -> list[np.ndarray]:
    """Return some rows of all arrays of a store, as bytes: uint8 `[rows, bytes of a row]`."""
    found: list[np.ndarray] = []
    for array, field, width in zip(store.arrays, store.fields, store.widths, strict=True):
        parts = (rows[at : at + store.step] for at in range(0, rows.size, store.step))
        copies = row_ranges.copied(array, field, parts, store.step)
        whole = [np.ascontiguousarray(part) for part in copies]
        whole = [part.reshape(-1).view(np.uint8).reshape(len(part), width) for part in whole]
        found.append(np.concatenate(whole))
    return found
