"""The rows that a checkpoint adds: those that the checkpoint before it lacks."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fbuf.checkpoint import lineage, manifest, row_ranges
from fbuf.checkpoint.manifest import Manifest, Range
from fbuf.checkpoint.row_ranges import Store
from fbuf.checkpoint.tree_json import Data
from fbuf.checks.warn import warn
from fbuf.state import State
from fbuf.storage.ring import WRITTEN

_warned: set[pathlib.Path] = set()
"""The directories with a past warning about a save of all rows."""


@dataclasses.dataclass(frozen=True)
class Places:
    """The rows of a store.

    Attributes:
        total: For each head, the number of rows ever written.
        live: For each head, the number of newest rows that are still stored.
        new: The rows to add.
    """

    total: tuple[int, ...]
    live: tuple[int, ...]
    new: Range

    @property
    def all(self) -> Range:
        """The rows that are still stored."""
        return tuple(a - b for a, b in zip(self.total, self.live, strict=True)), self.total


def find_base(
    folder: pathlib.Path, numbers: Sequence[int], save_id: int, config: Data
) -> Manifest | None:
    """Return the newest ancestor checkpoint of a buffer; None without one.

    Args:
        folder: The directory.
        numbers: The checkpoints there, the oldest first.
        save_id: The id of the buffer.
        config: The arguments of `fbuf.init` for the buffer. Other arguments mean another layout of
            rows.
    """
    ids = set(lineage.ancestors(save_id))
    there = manifest.readable(folder, numbers if ids else ())
    return next((of for of in there if of.save_id in ids and of.config == config), None)


def warn_of_forgetting(function: str, folder: pathlib.Path) -> None:
    """Warn that a new buffer takes the place of a checkpoint with more rows."""
    warn(
        f"fbuf.{function}: the newest checkpoint in {folder} has more rows than this buffer, which "
        "comes from no checkpoint; old checkpoints are deleted in time. To go on with that run, "
        "load it, or go on with the buffer that its save returned; else save to another directory"
    )


def warn_of_rewriting(function: str, folder: pathlib.Path) -> None:
    """Warn, once a directory, that a save cannot tell which rows are new."""
    if folder not in _warned:
        _warned.add(folder)
        warn(
            f"fbuf.{function}: all rows are written to {folder} again, because the buffer does not "
            "descend from a checkpoint there. Go on with the buffer that is returned: "
            f"state = fbuf.{function}(path, state)"
        )


def places(
    state: State[Any], index: Mapping[str, np.ndarray], base: Manifest | None
) -> dict[str, Places]:
    """Return the rows of each store.

    Args:
        state: The buffer.
        index: Its arrays except the stores, by path.
        base: Its ancestor checkpoint; None adds all rows.
    """
    rows, *ends = row_ranges.of_state(state)
    head, lap, stored, _ = index[".ring.cursor"].astype(np.int64)
    found = {rows.name: _places((lap % 2**32) * rows.head_places + head, stored, rows, base)}
    for store in ends:
        at, lap = index[".next_obs[0].cursor"].astype(np.int64)
        # All places count, as after one write of each.
        total = (1 + lap % 2**32) * store.head_places + at
        found[store.name] = _places(total, np.full_like(total, store.head_places), store, base)
    return found


def _places(total: np.ndarray, live: np.ndarray, store: Store, base: Manifest | None) -> Places:
    """Return the rows of a store; new ones are those that a checkpoint lacks."""
    past = np.array(base.totals[store.name], np.int64) if base else np.zeros_like(total)
    # Lap 2**32 is 0 again. Places continue those of the checkpoint, and are at least 0.
    total = np.where(total < np.maximum(past, live), total + 2**32 * store.head_places, total)
    found = Places(tuple(total.tolist()), tuple(live.tolist()), ((), ()))
    return dataclasses.replace(found, new=row_ranges.newer(found.all, past.tolist()))


def changed_rows(flags: np.ndarray, store: Store, found: Places) -> np.ndarray:
    """Return the older rows that `fbuf.write` has changed: int64 `[rows]`."""
    changed = flags & WRITTEN > 0
    if not changed.any():
        return np.zeros(0, np.int64)
    older = np.zeros(flags.size, bool)
    for rows in store.rows((found.all[0], found.new[0])):
        older[rows] = True
    return np.flatnonzero(changed & older)
